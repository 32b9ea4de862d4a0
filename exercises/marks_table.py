"""The marks of a class, as tables for a terminal and as CSV for a spreadsheet."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from exercises.verdicts import Verdict, titles

HEADER = ("student", "activity", "check", "title", "status", "seen")
WIDTH = 80
FORMULA = ("=", "+", "-", "@")  # first letters of texts that a spreadsheet would compute instead of showing

Marks = Mapping[tuple[str, str], list[Verdict]]  # by student and activity; a missing work has no entry


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


def to_csv(students: Sequence[str], activities: Sequence[str], marks: Marks) -> str:
    """A line for each student, activity and check, below HEADER."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(HEADER)
    names = [_one_line(student) for student in students]
    # Names may differ in spaces at their ends or in control characters alone.
    names = [repr(student) if names.count(name) > 1 else name for name, student in zip(names, students, strict=True)]
    for student, written in zip(students, names, strict=True):
        for activity in activities:
            found = {verdict.check: (verdict.status, verdict.seen) for verdict in marks.get((student, activity), ())}
            for name, title in titles(activity).items():
                row = (written, activity, name, title, *found.get(name, ("missing", "")))
                lines.writerow([_one_line(text) for text in row])
    return text.getvalue()


def _one_line(text: str) -> str:
    """A text that a spreadsheet shows unchanged: in one line, and not read as a formula."""
    line = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return f"'{line}" if line.startswith(FORMULA) else line
