"""Makes a copy of the project for students: without solutions, answers, wrong answers and pages for instructors.

The checks stay, but packed, so that nobody reads what they expect by chance. Whoever wants to can unpack them.
"""

import base64
import re
import shutil
import subprocess
import zlib
from pathlib import Path

from common.platform.errors import UserError
from exercises.checking import FOLDER
from exercises.course import ACTIVITIES, differences_outside_gaps

PROJECT = FOLDER.parent
LEFT_OUT = re.compile(
    r"(tests|\.ci|\.github|exercises/slides)/.*|benchmarks/network\.py|CONTRIBUTING\.md|\.pre-commit-config\.yaml"
    r"|exercises/(marking|marks_table|sandbox|student_copy)\.\w+|exercises/(\w+_answers|instructors)\.md"
    r"|exercises/\w+/(solution\.py|answers\.md|(right|wrong)\.diff)"
)
FOR_OTHERS = re.compile(r"`solution\.py`|\(instructors\.md\)|\(exercises/instructors\.md\)")  # such paragraphs go
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)(#[^)]*)?\)")


def make_student_copy(folder: Path) -> int:
    """Copies the files that git knows, as they are now; returns their number.

    Raises:
      UserError: the folder is in the project, exists and is not empty, or can't be written; a gap is filled; or the
        project is not a git checkout.
    """
    if folder.is_relative_to(PROJECT):
        raise UserError(f"student-copy {folder}: the folder is in the project itself")
    for name in ACTIVITIES:
        if differences_outside_gaps(FOLDER / name):
            raise UserError(
                f"student-copy: exercises/{name}/exercise.py: its gaps are filled, or something else is changed"
            )
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"student-copy: {PROJECT} is not a git checkout, so its files can't be listed") from None
    names = [name for name in listed.decode().split("\0") if name and not LEFT_OUT.fullmatch(name)]
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"student-copy {folder}: the folder is not empty")
        for name in names:
            source, target = PROJECT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("exercises/") and source.name == "check.py":
                target.with_suffix(".packed").write_bytes(base64.encodebytes(zlib.compress(source.read_bytes())))
            elif source.suffix == ".md":
                target.write_text(_for_students(source, source.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copy2(source, target)
    except OSError as error:
        raise UserError(f"student-copy {folder}: {error.strerror}: {error.filename}") from None
    return len(names)


def _for_students(page: Path, text: str) -> str:
    """A page that starts the exercises instead of the solutions, and does not mention what is left out."""

    def is_left_out(link: re.Match[str]) -> bool:
        target = (page.parent / link[2]).resolve()
        return target.is_relative_to(PROJECT) and bool(LEFT_OUT.fullmatch(str(target.relative_to(PROJECT))))

    text = re.sub(r"(exercises\.\w+)\.solution\b", r"\1.exercise", text)
    text = re.sub(r"^make test .*\n", "", text, flags=re.MULTILINE)
    text = "\n\n".join(part for part in text.split("\n\n") if not FOR_OTHERS.search(part)).rstrip() + "\n"
    return LINK.sub(lambda link: link[1] if is_left_out(link) else link[0], text)
