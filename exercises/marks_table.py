"""The marks of a class: tables for a terminal, a grade book and details as CSV, and words for students."""

import csv
import io
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from exercises.verdicts import Marks, Verdict, one_line, titles

HEADER = ("student", "activity", "check", "title", "status", "seen")
WIDTH = 80
POINTS = 8  # for all checks of an activity; the rubric in instructors.md has the others


def cell(found: list[Verdict] | None) -> str:
    """The cell of a table: how many of the checks have passed, `6/8`; `-` without a work, `not run` without a mark."""
    if found is None:
        return "-"
    if any(verdict.status == "not run" for verdict in found):
        return "not run"
    return f"{sum(verdict.status == 'passed' for verdict in found)}/{len(found)}"


def tables(students: Sequence[str], activities: Sequence[str], marks: Marks) -> Iterator[Table]:
    """A row for each student and a column for each activity, split into tables of at most WIDTH characters a line."""
    first = min(max(len("student"), *map(len, students)), WIDTH // 3)
    left = list(activities)
    while left:
        number, width = 0, first
        while number < len(left) and (width := width + 2 + len(left[number])) <= WIDTH:
            number += 1
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("student", width=first, overflow="fold")
        for name in left[:number]:
            table.add_column(name, no_wrap=True)
        for student in students:
            table.add_row(shown(student), *(cell(marks.get((student, name))) for name in left[:number]))
        yield table
        left = left[number:]


def shown(text: str) -> Text:
    """A text for a terminal, with `?` in place of control characters, which would change the terminal."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in text))


def points(found: Sequence[Verdict]) -> int:
    """Points for the checks that have passed, rounded down."""
    return POINTS * sum(verdict.status == "passed" for verdict in found) // max(1, len(found))


def _names(students: Sequence[str]) -> list[str]:
    """The students' names in one line each; they may differ in spaces at their ends or in control characters alone."""
    names = [one_line(student) for student in students]
    return [repr(student) if names.count(name) > 1 else name for name, student in zip(names, students, strict=True)]


def to_grades(students: Sequence[str], activities: Sequence[str], marks: Marks) -> str:
    """The grade book: a line for each student, with points for each activity; empty where there is no mark."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("student", *activities, "points", "of"))
    for student, written in zip(students, _names(students), strict=True):
        found = [marks.get((student, activity)) for activity in activities]
        given = [points(verdicts) if verdicts and cell(verdicts) != "not run" else None for verdicts in found]
        total = sum(number or 0 for number in given)
        lines.writerow((written, *given, total, POINTS * len(activities)))
    return text.getvalue()


def to_csv(students: Sequence[str], activities: Sequence[str], marks: Marks) -> str:
    """A line for each student, activity and check, below HEADER."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEADER)
    for student, written in zip(students, _names(students), strict=True):
        for activity in activities:
            found = {verdict.check: (verdict.status, verdict.seen) for verdict in marks.get((student, activity), ())}
            for name, title in titles(activity).items():
                row = (written, activity, name, title, *found.get(name, ("missing", "")))
                lines.writerow([one_line(text) for text in row])
    return text.getvalue()


def to_feedback(student: str, activities: Sequence[str], marks: Marks) -> str:
    """What a student gets to read: of each activity the checks that have not passed, and what they have seen."""
    lines = []
    for activity in activities:
        found = marks.get((student, activity))
        if found is None:
            lines += [f"{activity}: no work was found", ""]
            continue
        passed, names = sum(verdict.status == "passed" for verdict in found), titles(activity)
        lines.append(f"{activity}: {passed} of {len(found)} checks passed, {points(found)} of {POINTS} points")
        for verdict in found:
            if verdict.status != "passed":
                lines += [f"  {verdict.status}  {names[verdict.check]}", f"    {one_line(verdict.seen)}"]
        lines.append("")
    return "\n".join(lines)
