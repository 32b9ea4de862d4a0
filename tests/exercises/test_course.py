"""The course: a student starts an activity, reads what the checks say, and runs the page's commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import REPOSITORY, run

from exercises.course import ACTIVITIES, FOLDER, start_text

QUICK = ("sampler", "scaling")
SLOW = pytest.mark.slow
BY_ACTIVITY = [pytest.param(name, marks=() if name in QUICK else SLOW) for name in ACTIVITIES]


def exercises(*words, cwd, expect=0):
    return run(sys.executable, "-m", "exercises", *words, cwd=cwd, expect=expect, PYTHONPATH=str(REPOSITORY))


def changed(folder, name, old, new):
    """The solution with a change."""
    work = folder / f"{name}.py"
    work.write_text((FOLDER / name / "work.py").read_text().replace(old, new))
    return work


def test_the_list_names_each_folder():
    listed = [line.split()[0] for line in exercises("list", cwd=REPOSITORY).stdout.splitlines()]
    assert listed == list(ACTIVITIES)
    assert {path.parent.name for path in FOLDER.glob("*/work.py")} == set(ACTIVITIES)


@pytest.mark.parametrize("name", BY_ACTIVITY)
def test_the_solution_passes_and_the_start_is_open(name, tmp_path):
    exercises("start", name, cwd=tmp_path)
    text = (tmp_path / f"{name}.py").read_text()
    assert "SOLUTION" not in text
    gaps = [int(number) for number in re.findall(r'raise NotImplementedError\("gap (\d+)"\)', text)]
    assert gaps == list(range(1, text.count("NotImplementedError") + 1)) and gaps
    opened = exercises("check", name, cwd=tmp_path, expect=1).stdout.splitlines()[1:]
    assert not [line for line in opened if line.startswith("  FAILED")]
    passed = exercises("check", name, FOLDER / name / "work.py", cwd=tmp_path).stdout.splitlines()[1:]
    statuses = [[line.split()[0] for line in lines if line[2:3].strip()] for lines in (opened, passed)]
    assert len(statuses[0]) == len(statuses[1]) and set(statuses[0]) <= {"open", "passed"}
    assert "open" in statuses[0] and set(statuses[1]) == {"passed"}
    assert max(map(len, opened + passed)) <= 80


def test_a_failed_check_shows_yours_and_wanted_and_a_hint(tmp_path):
    changed(tmp_path, "sampler", "-(-self.length // self.world_size)", "self.length // self.world_size")
    done = exercises("check", "sampler", "--junit", "marks.xml", cwd=tmp_path, expect=1)
    _, title, values, hint, *_ = done.stdout.splitlines()
    assert title == "  FAILED  len() says how many indices each process gets"
    assert values == "          yours 2, wanted 3"
    assert hint == "          10 examples for 4 processes that make the same number of steps"
    (suite,) = ElementTree.parse(tmp_path / "marks.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("7", "0") and int(suite.get("failures")) >= 1


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("len(self) *", "len(selv) *", ["`whole = islice(cycle(order), len(selv) * self.world_size)`: NameError"]),
        (
            "from collections.abc",
            "é(\nfrom collections.abc",
            ["the file is not valid Python: line 6: '(' was never closed"],
        ),
        ("raise", "raise", []),
    ],
)
def test_a_mistake_of_another_kind_is_a_line_of_the_work(old, new, lines, tmp_path):
    changed(tmp_path, "sampler", old, new)
    shown = " ".join(exercises("check", "sampler", cwd=tmp_path, expect=int(bool(lines))).stdout.split())
    assert all(line in shown for line in lines) and "Traceback" not in shown


def test_an_error_in_a_rank_names_the_rank_and_the_line(tmp_path):
    changed(tmp_path, "ddp", "dist.all_reduce(totals)", "totals = totals / dist.get_rank()")
    shown = " ".join(exercises("check", "ddp", cwd=tmp_path, expect=1).stdout.split())
    assert "hint" not in shown and "FAILED the loss is the mean over the examples of all" in shown
    changed(tmp_path, "ddp", "dist.all_reduce(totals)", "[][dist.get_rank()]")
    shown = " ".join(exercises("check", "ddp", cwd=tmp_path, expect=1).stdout.split())
    assert re.search(r"rank [01]: line \d+, `\[\]\[dist.get_rank\(\)\]`: IndexError: list index out of range", shown)


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_is_ended(tmp_path):
    changed(tmp_path, "ddp", "dist.all_reduce(totals)", "dist.get_rank() or dist.barrier()")
    shown = exercises("check", "ddp", cwd=tmp_path, expect=1).stdout
    assert "one process waits for another" in shown or "rank 0" in shown


def test_mistakes_in_the_command_are_one_line(tmp_path):
    (tmp_path / "ddp.py").write_text("mine")
    for words, message in {
        ("start", "ddp"): "start ddp: ddp.py exists and is left as it is; rename it to start again",
        ("check", "smpler"): "argument NAME: smpler: no such activity; sampler? (python -m exercises list)",
        ("check",): "name one activity, or give --all",
        ("check", "--all", "--junit", "x.xml"): "--junit x.xml: goes with one activity alone",
        ("check", "sampler"): "sampler.py: there is no such file (python -m exercises start sampler writes sampler.py)",
        ("release", REPOSITORY / "x"): f"release {REPOSITORY}/x: must be a new folder outside the project",
        ("release", tmp_path): f"release {tmp_path}: must be a new folder outside the project",
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "exercises", *map(str, words)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode and done.stderr.splitlines()[-1].endswith(message), done.stderr
    assert (tmp_path / "ddp.py").read_text() == "mine"


# --- The copy for students ---


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies") / "course"
    exercises("release", folder, cwd=REPOSITORY)
    return folder


def test_the_release_has_starts_and_no_answers(copy):
    for name in ACTIVITIES:
        assert (copy / "exercises" / name / "work.py").read_text() == start_text(name)
    left = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert not [name for name in left if "answers" in name or "variants" in name or "instructors" in name]
    links = [
        (page, link) for page in copy.rglob("*.md") for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    ]
    local = [(page, link) for page, link in links if "://" not in link]
    assert local and all((page.parent / link).exists() for page, link in local)


def test_the_release_runs_on_its_own(copy, tmp_path):
    run(sys.executable, "-m", "exercises", "start", "sampler", cwd=copy)
    assert (
        "gap 1 is not filled" in run(sys.executable, "-m", "exercises", "check", "sampler", cwd=copy, expect=1).stdout
    )


# --- The pages ---


def commands(page):
    """The commands of a page that are shown with their output: `$ ...` at the beginning of a block."""
    return re.findall(r"^```\n\$ (.+)\n", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "sampler" else SLOW) for name in ACTIVITIES])
def test_the_commands_of_a_page_run(name, tmp_path):
    (tmp_path / f"{name}.py").write_text((FOLDER / name / "work.py").read_text())
    (tmp_path / "compare.py").symlink_to(REPOSITORY / "compare.py")
    assert commands(FOLDER / name / "README.md")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands(FOLDER / name / "README.md"):
        run(*shlex.split(command), cwd=tmp_path, PATH=path, PYTHONPATH=str(REPOSITORY), CUDA_VISIBLE_DEVICES="")
