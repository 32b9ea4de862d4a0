"""The results of checks: written in a sandbox, read outside, where they are not trusted, and written as JUnit XML."""

import ast
import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from exercises.checking import FOLDER, NOT_DONE, NOT_ENDED, read_checks
from exercises.course import MAX_ENDLESS, make_checker, not_python
from exercises.server import show_memory

MAX_BYTES = 2**20  # maximum that is read of a work's verdicts
MAX_LETTERS = 1000  # maximum length of what a check has seen
FORMULA = ("=", "+", "-", "@")  # first letters of texts that a spreadsheet would compute instead of showing

Status = Literal["passed", "FAILED", "open", "not run", "begun"]


class Verdict(BaseModel):
    """The result of a check; `seen` is empty if it has passed. `begun` is only written before a result."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    check: str
    status: Status
    seen: str = Field("", max_length=MAX_LETTERS)


@cache
def titles(activity: str) -> dict[str, str]:
    """The titles of an activity's checks by their functions' names, in order; read without importing a framework."""
    functions = ast.parse(read_checks(FOLDER / activity / "check.py")).body
    return {
        function.name: str(ast.literal_eval(decorator.args[0]))
        for function in functions
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
    }


# --- In the sandbox ---


def write(activity: str, work: Path, descriptor: int) -> None:
    """Checks `work`, and writes a line of JSON for each check as soon as it is done.

    Processes of the work do not have `descriptor`. They can't take it from this process either: from here on, the
    system shows the memory and descriptors of this process only to root.
    """
    os.set_inheritable(descriptor, False)
    show_memory(False)

    def tell(check: str, status: Status, seen: str = "") -> None:
        verdict = Verdict(check=check, status=status, seen=seen[:MAX_LETTERS])
        text = json.dumps(verdict.model_dump(), ensure_ascii=False).encode(errors="replace")
        os.write(descriptor, text + b"\n")

    if trouble := not_python(work):
        for name in titles(activity):
            tell(name, "FAILED", trouble)
        return
    checker = make_checker(activity)
    endless = 0
    for name in checker.checks:
        if endless == MAX_ENDLESS:
            tell(name, "not run", f"{MAX_ENDLESS} checks before it were {NOT_DONE} in their time")
            continue
        tell(name, "begun")
        seen = checker.run(name, work)
        endless += seen.vague == NOT_ENDED
        tell(name, seen.status, seen.what)


# --- Outside ---


def read(content: bytes, activity: str, ended: str | None) -> list[Verdict]:
    """A verdict for each check of the activity, in order, whatever a sandbox has left.

    Args:
      content: lines as `write` makes them, in the checks' order. After a line that is something else, no line counts.
      ended: why the checks were ended before all were done; None if they were not.
    """
    lines = iter(content[:MAX_BYTES].splitlines())
    reason = f"the checks were ended: {ended}" if ended else "the checker has not told of this check"
    found: list[Verdict] = []
    for name in titles(activity):
        verdict = _next(lines, name)
        if begun := verdict is not None and verdict.status == "begun":
            verdict = _next(lines, name)
        if verdict is None or verdict.status == "begun":
            lines = iter(())
            verdict = Verdict(check=name, status="FAILED" if begun else "not run", seen=reason[:MAX_LETTERS])
        found.append(verdict)
    return found


def _next(lines: Iterator[bytes], name: str) -> Verdict | None:
    """The next line, if it is about the check `name`."""
    try:
        verdict = Verdict.model_validate_json(next(lines, b""))
    except ValidationError:
        return None
    return verdict if verdict.check == name else None


# --- For other programs ---


Marks = Mapping[tuple[str, str], list[Verdict]]  # by student and activity; a missing work has no entry


def to_junit(marks: Marks) -> str:
    """JUnit XML, which most systems for automatic marking read: a suite for each work, a case for each check."""
    root = ET.Element("testsuites")
    for (student, activity), found in marks.items():
        failures, not_run = ([v for v in found if v.status in kinds] for kinds in (("FAILED", "open"), ("not run",)))
        suite = ET.SubElement(root, "testsuite", name=f"{one_line(student)}: {activity}", tests=str(len(found)))
        suite.set("failures", str(len(failures)))
        suite.set("skipped", str(len(not_run)))
        names = titles(activity)
        for verdict in found:
            case = ET.SubElement(suite, "testcase", classname=activity, name=names[verdict.check])
            if verdict.status != "passed":
                kind = "skipped" if verdict.status == "not run" else "failure"
                ET.SubElement(case, kind, message=one_line(verdict.seen))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def one_line(text: str) -> str:
    """A text that a spreadsheet shows unchanged: in one line, and not read as a formula."""
    line = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return f"'{line}" if line.startswith(FORMULA) else line
