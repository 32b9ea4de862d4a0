"""The course: a student starts an activity, reads what the checks say, and runs the page's commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from conftest import REPOSITORY, run

from exercises.course import ACTIVITIES, FOLDER, start_text

PYTEST = (sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider")


def exercises(*words, cwd, expect=0):
    return run(sys.executable, "-m", "exercises", *words, cwd=cwd, expect=expect, PYTHONPATH=str(REPOSITORY)).stdout


def changed(folder, name, old, new):
    """A file with the solution, in which `old` is replaced."""
    work = folder / f"{name}.py"
    work.write_text((FOLDER / name / "work.py").read_text().replace(old, new))
    return work


def test_the_list_names_each_folder():
    assert [line.split()[0] for line in exercises("list", cwd=REPOSITORY).splitlines()] == list(ACTIVITIES)
    assert {path.parent.name for path in FOLDER.glob("*/work.py")} == set(ACTIVITIES)


@pytest.mark.quick("sampler", "scaling")
@pytest.mark.parametrize("name", ACTIVITIES)
def test_the_solution_passes_and_the_start_is_open(name, tmp_path):
    exercises("start", name, cwd=tmp_path)
    text = (tmp_path / f"{name}.py").read_text()
    gaps = [int(number) for number in re.findall(r'raise NotImplementedError\("gap (\d+)"\)', text)]
    assert gaps == list(range(1, text.count("NotImplementedError") + 1)) and gaps and "SOLUTION" not in text
    opened = exercises("check", name, cwd=tmp_path, expect=1)
    passed = exercises("check", name, FOLDER / name / "work.py", cwd=tmp_path)
    statuses = [re.findall(r"^  (\w+)  ", printed, re.MULTILINE) for printed in (opened, passed)]
    assert set(statuses[0]) == {"open"} and statuses[1] == ["passed"] * len(statuses[0]), opened + passed
    assert max(map(len, (opened + passed.partition("\n")[2]).splitlines())) <= 80


def test_a_failed_check_shows_yours_and_wanted_and_a_hint(tmp_path):
    changed(tmp_path, "sampler", "-(-self.length // self.world_size)", "self.length // self.world_size")
    printed = exercises("check", "sampler", "--junit", "marks.xml", cwd=tmp_path, expect=1)
    _, title, values, hint, *_ = printed.splitlines()
    assert title == "  FAILED  len() says how many indices each process gets"
    assert values == "          yours 2, wanted 3"
    assert hint == "          10 examples for 4 processes that make the same number of steps"
    (suite,) = ElementTree.parse(tmp_path / "marks.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("5", "0") and int(suite.get("failures")) >= 1


@pytest.mark.quick("name", "syntax", "rank")
@pytest.mark.parametrize(
    ("name", "check", "old", "new", "line"),
    [
        ("scaling", "speed_up", "seconds[1] /", "second[1] /", r"line \d+, `return .*`: NameError: name 'second'"),
        ("scaling", "speed_up", "import", "(import", r"the file is not valid Python: line \d+: invalid syntax"),
        ("rank_zero", "one_message", "print(message", "print([][rank]", r"rank 0: line \d+, `print.*`: IndexError"),
        ("rank_zero", "one_message", "print(message, flush=True", "time.sleep(1e4", "not done"),
    ],
    ids=["name", "syntax", "rank", "endless"],
)
def test_an_error_is_a_line_of_the_work(name, check, old, new, line, tmp_path):
    work, checks = changed(tmp_path, name, old, new), f"exercises/{name}/test_work.py::test_{check}"
    shown = " ".join(run(*PYTEST, "-qq", "--tb=no", "--brief", f"--work={work}", checks, expect=1).stdout.split())
    assert re.search(line, shown) and "Traceback" not in shown


def variants():
    for name in ACTIVITIES:
        for kind, entries in yaml.safe_load((FOLDER / name / "variants.yaml").read_text()).items():
            for entry in entries:
                yield pytest.param(name, kind, entry, id=f"{name}-{entry['name']}")


@pytest.mark.quick("scaling")
@pytest.mark.parametrize(("name", "kind", "entry"), list(variants()))
def test_a_wrong_work_fails_its_check_and_a_right_one_passes(name, kind, entry, tmp_path):
    assert (FOLDER / name / "work.py").read_text().count(entry["old"]) == 1, f"not once in {name}/work.py"
    work = changed(tmp_path, name, entry["old"], entry["new"])
    checks = f"exercises/{name}/test_work.py" + (f"::{entry['fails']}" if kind == "wrong" else "")
    done = run(*PYTEST, checks, "--work", work, expect=int(kind == "wrong"))
    assert kind == "right" or "error" not in done.stdout.splitlines()[-1], done.stdout


def test_mistakes_in_the_command_are_one_line(tmp_path):
    (tmp_path / "ddp.py").write_text("mine")
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": ""}
    for words, message in {
        "start ddp": "start ddp: ddp.py exists and is left as it is; rename it to start again",
        "check smpler": "argument NAME: invalid choice: 'smpler' (choose from 'one_device', 'ddp'",
        "check": "one of the arguments NAME --all is required",
        "check --all --junit x.xml": "--junit x.xml: goes with one activity alone",
        "check sampler": "sampler.py: there is no such file (python -m exercises start sampler writes sampler.py)",
        f"release {REPOSITORY}/x": f"release {REPOSITORY}/x: must be a new folder outside the project",
        f"release {tmp_path}": f"release {tmp_path}: must be a new folder outside the project",
    }.items():
        command = [sys.executable, "-m", "exercises", *words.split()]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode and message in done.stderr.splitlines()[-1], done.stderr
    assert (tmp_path / "ddp.py").read_text() == "mine"


def test_the_release_has_starts_and_no_answers_and_runs(tmp_path):
    copy = tmp_path / "course"
    exercises("release", copy, cwd=REPOSITORY)
    for name in ACTIVITIES:
        assert (copy / "exercises" / name / "work.py").read_text() == start_text(name)
    assert not [path for path in copy.rglob("*") if re.search("answers|variants|instructors", path.name)]
    pages = [(page, re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())) for page in copy.rglob("*.md")]
    local = [page.parent / link for page, links in pages for link in links if "://" not in link]
    assert local and all(path.exists() for path in local)
    run(sys.executable, "-m", "exercises", "start", "sampler", cwd=copy)
    checked = run(sys.executable, "-m", "exercises", "check", "sampler", cwd=copy, expect=1)
    assert "gap 1 is not filled" in checked.stdout


def run_commands(page, cwd=REPOSITORY):
    """What each command of a page prints that is shown with its output: `$ ...` at the beginning of a block."""
    commands = re.findall(r"^```\n\$ (.+)\n", page.read_text(), re.MULTILINE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": ""}
    assert commands
    return [run(*shlex.split(command), cwd=cwd, **environment).stdout for command in commands]


@pytest.mark.quick("sampler")
@pytest.mark.parametrize("name", ACTIVITIES)
def test_the_commands_of_a_page_run(name, tmp_path):
    changed(tmp_path, name, "", "")
    (tmp_path / "compare.py").symlink_to(REPOSITORY / "compare.py")
    run_commands(FOLDER / name / "README.md", tmp_path)
