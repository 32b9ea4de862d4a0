"""The course: every activity passes its own tests, the checker marks as documented, and the pages are complete."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest
from conftest import REPOSITORY, run

from common.platform.errors import UserError, describe_signal
from exercises import course, student_copy, verdicts
from exercises.checking import (
    FOLDER,
    NOT_ENDED,
    Check,
    Checker,
    NotPassedError,
    Seen,
    largest_difference,
    read_changes,
)
from exercises.course import ACTIVITIES, differences_outside_gaps, make_checker

EXERCISES = REPOSITORY / "exercises"


def check(*arguments, expect=0):
    return run(sys.executable, "-m", "exercises", *arguments, expect=expect).stdout


# --- Every activity is whole ---


LONG = (
    "scaling",
    "mirrored_strategy",
    "model_parallelism",
    "rank_zero",
    "to_lightning",
    "gradient_accumulation",
    "ddp",
    "batch_norm",
    "float_formats",
    "input_pipeline",
    "tracking",
    "preempted_job",
    "sharding",
    "two_nodes",
)  # their quick tests check only the solutions


@pytest.mark.quick("sampler")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in ACTIVITIES]
)
def test_solutions_pass_and_gaps_and_mistakes_do_not(name):
    assert check("check", name, "--solutions").startswith(f"passed  {name}: ")


@pytest.mark.quick("ddp", "scaling")
@pytest.mark.parametrize("name", LONG)
def test_the_solution_passes(name):
    number = len(verdicts.titles(name))
    assert f"{number} of {number} passed" in check("check", name, "--file", EXERCISES / name / "solution.py")


def test_every_folder_is_an_activity_and_listed():
    folders = {path.parent.name for path in EXERCISES.glob("*/exercise.py")}
    assert folders == set(ACTIVITIES)
    listed = [line.split()[0] for line in check("list").splitlines()]
    assert listed == list(ACTIVITIES)
    index = (EXERCISES / "README.md").read_text()
    assert re.findall(r"^\| \d+ \| \[(\w+)\]\(\1/README\.md\)", index, re.MULTILINE) == list(ACTIVITIES)
    assert set(re.findall(r"`(\w+)`", (EXERCISES / "instructors.md").read_text())) >= set(ACTIVITIES)


PAGES = {"multi_gpu.md": "multi_gpu_answers.md", **{f"{name}/README.md": f"{name}/answers.md" for name in ACTIVITIES}}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_asks_before_it_runs(page):
    text = (EXERCISES / page).read_text()
    parts = [
        "**Aim.**",
        "**Time.**",
        "**Read.**",
        "## Before you run it",
        "## Steps",
        "## Output to expect",
        "## Questions",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)
    before = text[places[3] : places[4]]
    assert len(re.findall(r"^\d\. .*\?", before, re.MULTILINE | re.DOTALL)) and "?" in before
    assert "\n$ " in text[places[5] :]


def numbered(text):
    """The entries of a numbered list, each with its number."""
    parts = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)
    return list(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def section(text, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("page", PAGES)
def test_every_prediction_and_question_has_its_answer(page):
    asked, answered = ((EXERCISES / name).read_text() for name in (page, PAGES[page]))
    title = asked.partition("\n")[0].removeprefix("# ")
    assert answered.startswith(f"# Answers: {title}\n")
    for part in ("Before you run it", "Questions"):
        answers = numbered(section(answered, part))
        numbers = [number for number, _ in numbered(section(asked, part))]
        assert numbers and [number for number, _ in answers] == numbers, part
        for number, answer in answers:
            right, *wrong = re.split(r"^ *Often answered: ", answer, flags=re.MULTILINE)
            assert right.strip() and len(wrong) == 1 and wrong[0].strip(), f"{part}, {number}"


def test_the_quiz_has_an_answer_to_each_question_from_an_activity():
    asked, answered = (numbered((EXERCISES / name).read_text()) for name in ("quiz.md", "quiz_answers.md"))
    numbers = list(range(1, 26))
    assert [number for number, _ in asked] == [number for number, _ in answered] == numbers
    taught = [re.findall(r"\]\(([\w/]+\.md)\)", answer) for _, answer in answered]
    assert all(taught) and {page for pages in taught for page in pages} == set(PAGES)


def test_pages_of_students_do_not_link_to_answers():
    for page in (*PAGES, "README.md", "quiz.md"):
        assert "answers.md" not in (EXERCISES / page).read_text(), page
    links = (EXERCISES / "instructors.md").read_text()
    assert all(f"]({page})" in links for page in (*PAGES.values(), "quiz.md", "quiz_answers.md"))


CLASSICAL = {
    "no set_epoch",
    "saving from every rank",
    "averaging averages",
    "per-replica instead of global batch",
    "reading the clock before the device is done",
    "forgetting optimizer.zero_grad",
    "scaling the loss twice",
    "evaluating on padded data",
    "loading a module.-prefixed state dict",
}


def test_the_classical_mistakes_are_written_down():
    mistakes = {name: {wrong.name for wrong in read_changes(EXERCISES / name / "wrong.diff")} for name in ACTIVITIES}
    table = re.findall(r"^\| (.+) \| (`.+`) \|$", (EXERCISES / "instructors.md").read_text(), re.MULTILINE)
    told = {mistake.replace("`", ""): set(re.findall(r"`(\w+)`", places)) for mistake, places in table}
    for mistake in CLASSICAL:
        places = {name for name in ACTIVITIES if any(one.startswith(mistake) for one in mistakes[name])}
        assert places and told[mistake] == places, mistake


def test_every_check_has_a_mistake_that_it_rejects():
    """A check that no known mistake fails could be empty."""
    for name in ACTIVITIES:
        caught = {wrong.caught_by for wrong in read_changes(EXERCISES / name / "wrong.diff")}
        assert caught == set(verdicts.titles(name)), name


def test_the_slides_ask_before_they_tell():
    slides = (EXERCISES / "slides" / "course.md").read_text().split("\n---\n")
    titles = [
        found[1] for slide in slides if (found := re.search(r"^## (.*): (?:predict|the idea)$", slide, re.MULTILINE))
    ]
    assert titles[::2] == titles[1::2] and len(titles[::2]) == len(ACTIVITIES) + 1  # one for the classical programs
    asked = [slide for slide in slides if ": predict\n" in slide]
    assert all("_class: question" in slide and "?" in slide for slide in asked) and len(asked) == len(titles) / 2


# --- A student's view ---


SHARE = "    return list(range(rank, length, world_size))\n"


@pytest.fixture
def work(tmp_path):
    """A function that writes a changed solution of the activity sampler and returns its path."""

    def write(old, new):
        text = (EXERCISES / "sampler" / "solution.py").read_text()
        assert old in text
        path = tmp_path / "work.py"
        path.write_text(text.replace(old, new))
        return path

    return write


@pytest.mark.xdist_group("marks")
def test_marks_name_what_was_seen_and_a_hint(work):
    printed = check("check", "sampler", "--file", work("        sampler.set_epoch(epoch)\n", ""), expect=1)
    assert "  FAILED  every epoch has another order, and the seed makes it again\n" in printed
    assert "          seen: epochs 0 and 1 have the same order\n" in printed
    assert "          hint: on what does the generator depend?\n" in printed
    assert printed.count("  passed  ") == 6 and printed.endswith("6 of 8 passed\n")
    assert all(len(line) <= 80 for line in printed.splitlines()[1:])  # the first line names the file


@pytest.mark.xdist_group("marks")
def test_results_as_junit_xml(work, tmp_path):
    file = tmp_path / "results.xml"
    check("check", "sampler", "--file", work("        sampler.set_epoch(epoch)\n", ""), "--junit", file, expect=1)
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.attrib == {"name": "work: sampler", "tests": "8", "failures": "2", "skipped": "0"}
    failures = {case.get("name"): case.find("failure") for case in suite}
    assert list(failures) == list(verdicts.titles("sampler").values())
    assert [failure.get("message") for failure in failures.values() if failure is not None] == [
        "epochs 0 and 1 have the same order",
        "the orders of epochs 0, 1 and 2 are not those after set_epoch(0), (1) and (2)",
    ]


@pytest.mark.xdist_group("marks")
def test_a_gap_is_open_not_failed():
    printed = check("check", "sampler", expect=1)
    assert printed.count("  open    ") == 8 and "seen: gap 1 is not filled" in printed and "hint" not in printed


@pytest.mark.xdist_group("marks")
def test_a_right_work_passes():
    solution = EXERCISES / "sampler" / "solution.py"
    assert check("check", "sampler", "--file", solution).endswith("8 of 8 passed\n")


def test_a_hint_belongs_to_a_cause_not_to_a_check(tmp_path):
    text = (EXERCISES / "checkpoints" / "solution.py").read_text()
    forgotten = '"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}'
    assert forgotten in text
    path = tmp_path / "work.py"
    path.write_text(text.replace(forgotten, '"optimizer": optimizer.state_dict()}'))
    printed = check("check", "checkpoints", "--file", path, expect=1)
    assert printed.count("  FAILED  ") == 2 and printed.count("KeyError: 'schedule' (line ") == 1
    assert printed.count("hint:") == 1
    assert " ".join(printed.split()).count('seen: the same error as where "training goes on as if it had not') == 1


@pytest.mark.quick("PT_CNN_MultiGPU")
@pytest.mark.parametrize("program", ["PT_CNN_MultiGPU", "PTL_multiGPU"])
def test_a_program_started_by_its_path_says_how_to_start_it(program):
    done = run(sys.executable, f"exercises/{program}.py", expect=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"{program}.py: start it from the project's folder as a module: python -m exercises.{program}"
    )


@pytest.fixture(scope="module")
def checker():
    return make_checker("sampler")


@pytest.mark.xdist_group("marks")
@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("    return list(range(rank, length, world_size)\n", "SyntaxError: '(' was never closed"),
        ("    return list(rang(rank, length, world_size))\n", "NameError: name 'rang' is not defined"),
        ("    raise SystemExit('enough')\n", "SystemExit: enough"),
        ("    import os; os._exit(7)\n", "the process has ended by itself, with status 7"),
        ("    import os; os.kill(os.getpid(), 9)\n", f"the process has ended by {describe_signal(9)}"),
        ("    print('x' * 1000); return []\n", "10 test examples for 4 processes: counted are []"),
    ],
)
def test_whatever_a_work_does_is_reported_in_a_line(checker, work, code, seen, capfd):
    path = work(SHARE, code)
    where = path.read_text().splitlines().index(code.rstrip("\n")) + 1
    located = f" (line {where} of work.py)" if seen.split(":")[0] in ("SyntaxError", "NameError", "SystemExit") else ""
    found = checker.run("testing", path)
    assert (found.status, found.what) == ("FAILED", seen + located)
    assert capfd.readouterr() == ("", "")


@pytest.mark.xdist_group("marks")
def test_the_temporary_files_of_a_work_are_removed(checker, work, tmp_path):
    made = tmp_path / "made"
    checker.run("testing", work(SHARE, f"    import tempfile; open('{made}', 'w').write(tempfile.mkdtemp())\n"))
    assert made.exists() and not Path(made.read_text()).exists()


@pytest.mark.xdist_group("marks")
def test_a_work_that_never_ends_is_ended(checker, work, monkeypatch):
    one = checker.checks["testing"]
    monkeypatch.setitem(checker.checks, "testing", Check(one.title, one.hint, one.ranks, seconds=0.5))
    seen = checker.run("testing", work(SHARE, "    while True: pass\n"))
    assert seen == Seen("FAILED", "not done after 0.5 s", vague=NOT_ENDED)


@pytest.mark.xdist_group("marks")
def test_two_checks_that_never_end_are_enough(checker, work, monkeypatch, capsys):
    quick = {name: replace(one, seconds=0.3) for name, one in checker.checks.items()}
    monkeypatch.setattr(checker, "checks", quick)
    monkeypatch.setattr(course, "make_checker", lambda name: checker)
    seen = course.mark("sampler", work("        sampler.set_epoch(epoch)\n", "        while True: pass\n"))
    assert sorted(one.status for one in seen.values()) == ["FAILED"] * 2 + ["not run"] * 5 + ["passed"]
    printed = capsys.readouterr().out
    assert printed.count("seen: not done after 0.3 s\n") == 2
    assert printed.endswith("  2 checks ran out of time; the others are skipped\n1 of 8 passed\n")


@pytest.mark.xdist_group("marks")
def test_a_work_that_is_not_python_is_reported_once(work):
    path = work(SHARE, "    return list(range(rank, length, world_size)\n")
    number = path.read_text().splitlines().index("    return list(range(rank, length, world_size)") + 1
    first, second = check("check", "sampler", "--file", path, expect=1).splitlines()
    assert first == f"sampler: {path}"
    assert second == f"  FAILED  the file is not valid Python: line {number}: '(' was never closed"


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b"\xef\xbb\xbfx = 1\n", None),
        (b"# coding: latin-1\nx = '\xe9'\n", None),
        (b"x = '\xe9'\n", "line 1: (unicode error) 'utf-8' codec can't decode byte 0xe9"),
        (b"# coding: nonsense\n", "unknown encoding: nonsense"),
        (b"x = 1\0", "source code string cannot contain null bytes"),
        (b"-" * 10**5 + b"1", "it is nested too deeply"),
    ],
    ids=["mark", "declared", "undeclared", "unknown", "null", "nested"],
)
def test_a_work_is_compiled_as_python_does_it(tmp_path, content, trouble):
    (tmp_path / "work.py").write_bytes(content)
    seen = course.not_python(tmp_path / "work.py")
    assert seen is None if trouble is None else seen.startswith(f"the file is not valid Python: {trouble}")


@pytest.mark.xdist_group("marks")
def test_ctrl_c_ends_the_checks_in_one_line(work):
    path = work("        sampler.set_epoch(epoch)\n", "        while True: pass\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "exercises", "check", "sampler", "--file", str(path)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines[1].startswith("  passed"), lines  # the next check never ends
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(family) >= 3
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "python -m exercises: interrupted\n")
    assert psutil.wait_procs(family, timeout=10)[1] == []


SEVERAL = """
import os, socket, time
from exercises.checking import check, expect

@check("rank 1 still reaches what rank 0 has opened", "", ranks=2)
def reached(work):
    address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] == "0":
        work.here = socket.create_server(address)
        return True
    time.sleep(0.5)
    return bool(socket.create_connection(address))

@reached.judge
def _(first, second):
    expect(first and second, "not reached")

@check("what rank 0 has observed explains the error of rank 1", "", ranks=2)
def explained(work):
    return work.answer() if os.environ["RANK"] == "0" else work.error

@explained.judge
def _(first, second):
    expect(first == "right", f"the answer is {first}")
    expect(len(second) == 3, "that is no error")
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    path = tmp_path_factory.mktemp("several") / "check.py"
    path.write_text(SEVERAL)
    return Checker(path, ())


@pytest.mark.xdist_group("several")
def test_a_rank_that_is_done_waits_for_the_slower_ones(several, tmp_path):
    (tmp_path / "work.py").write_text("")
    assert several.run("reached", tmp_path / "work.py") == Seen("passed")


@pytest.mark.xdist_group("several")
@pytest.mark.parametrize(
    ("code", "status", "what"),
    [
        ("answer = lambda: 'wrong'", "FAILED", "the answer is wrong"),
        ("answer = lambda: 'right'", "FAILED", "AttributeError: module 'loaded_"),
        ("def answer(): raise NotImplementedError('gap 2')", "open", "gap 2 is not filled"),
        ("answer = lambda: 'right'\nerror = 3", "FAILED", "what was observed has another form than a right answer"),
        ("answer = lambda: 'right'\nerror = [1, 2, 3]", "passed", ""),
    ],
)
def test_of_several_ranks_the_clearest_word_counts(several, tmp_path, code, status, what):
    (tmp_path / "work.py").write_text(code)
    seen = several.run("explained", tmp_path / "work.py")
    assert seen.status == status and seen.what.startswith(what)


NAN = float("nan")


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        ([[1.0, 2.5], [[3.0]]], None),
        ([[NAN, 2.0], [[3.0]]], "not all numbers are finite"),
        ([[1.0, 2.0], [[NAN]]], "not all numbers are finite"),
        ([[1.0, float("inf")], [[3.0]]], "not all numbers are finite"),
        ([[1.0, 2.0], [3.0]], r"an array has the shape \(1,\) instead of \(1, 1\)"),
    ],
)
def test_the_largest_difference_misses_nothing(found, seen):
    found = json.loads(json.dumps(found))
    with pytest.raises(NotPassedError, match=seen) if seen else nullcontext():
        assert largest_difference(found, [np.array([1.0, 2.0]), np.array([[3.0]])]) == 0.5


BACKGROUND = """
import os, time
from pathlib import Path
reads, writes = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        for _ in range(3):  # which fork on while one of them is ended
            os.fork()
        os.write(writes, f"{os.getpid()} ".encode())
        time.sleep(60)
    os._exit(0)
started = b""
while started.count(b" ") < 8:
    started += os.read(reads, 999)
Path("FILE").write_bytes(started)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_CHILD_SUBREAPER")
@pytest.mark.xdist_group("several")
def test_what_a_work_has_started_in_the_background_is_ended(several, tmp_path):
    (tmp_path / "work.py").write_text(BACKGROUND.replace("FILE", str(tmp_path / "started")))
    seen = several.run("explained", tmp_path / "work.py")
    assert seen.what.startswith("AttributeError")
    assert not [pid for pid in (tmp_path / "started").read_text().split() if psutil.pid_exists(int(pid))]


@pytest.mark.xdist_group("several")
def test_a_work_that_ends_the_server_ends_the_checks(tmp_path):
    (tmp_path / "check.py").write_text(SEVERAL)
    (tmp_path / "work.py").write_text("import os; os.kill(os.getppid(), 9)")
    with pytest.raises(UserError, match="during its check explained the process that runs the checks has ended"):
        Checker(tmp_path / "check.py", ()).run("explained", tmp_path / "work.py")


# Lines with which a wrong work would pass if it could reach the verdict.
FORGERIES = {
    "a result instead of what was observed": """import json; json.dumps = lambda *_, **__: '["passed", "", 0]'""",
    "no data": """import json; json.dumps = lambda *_, **__: '{"data": null}'""",
    "nested data": """import json; json.dumps = lambda *_, **__: '{"data": ' + "[" * 100_000""",
    "no expectations": "import exercises.checking; exercises.checking.expect = lambda *_: None",
    "no judge": """
import sys
from exercises.checking import CheckFunctions
CheckFunctions.decide = sys.modules["__main__"]._judge = lambda *_: None""",
    "all is equal": "import torch; torch.equal = torch.allclose = torch.Tensor.__lt__ = lambda *_, **__: True",
    "written to all descriptors": """
import os
SENT = b'["passed", "", 0]'
for number in range(3, 64):
    try:
        os.write(number, len(SENT).to_bytes(4, "big") + SENT)
    except OSError:
        pass
os._exit(0)""",
}


@pytest.fixture(scope="module")
def batch_norm():
    return make_checker("batch_norm")


@pytest.mark.xdist_group("several")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_work_writes_its_own_verdict(batch_norm, tmp_path, forgery):
    folder = FOLDER / "batch_norm"
    wrong = read_changes(folder / "wrong.diff")[0]
    work = tmp_path / "work.py"
    work.write_text(f"{FORGERIES[forgery]}\n{wrong.apply((folder / 'solution.py').read_text())}")
    assert batch_norm.run(wrong.caught_by, work).status == "FAILED"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "name an activity, or give --all"),
        (["check", "samplr"], "samplr: no such activity; sampler?"),
        (["check", "sampler", "--all"], "name an activity, or give --all"),
        (["check", "sampler", "ddp", "--file", "x.py"], "--file x.py: goes with one activity alone"),
        (["check", "--all", "--junit", "x.xml"], "--junit x.xml: goes with one activity alone"),
        (["check", "sampler", "--file", "nowhere.py"], "--file nowhere.py: there is no such file"),
        (["check", "sampler", "--file", "x" * 300 + ".py"], "x.py: there is no such file, or it can't be read"),
        (["check-json"], "invalid choice: 'check-json'"),
        (["check", "sampler", "--file", "README.md"], "--file README.md: must be a Python file"),
    ],
)
def test_mistakes_in_the_command_are_reported_in_one_line(arguments, message):
    done = run(sys.executable, "-m", "exercises", *arguments, expect=2)
    assert message in done.stderr.splitlines()[-1] and not done.stdout


# --- The instructor's test can fail ---


DAMAGES = [
    ("solution.py", "    return list(range(rank, length, world_size))", "    return list(range(length))"),
    ("solution.py", '"""The test examples of one process.', '"""Test examples.'),
    ("exercise.py", 'raise NotImplementedError("gap 1")', "return -(-self.length // self.world_size)"),
    ("wrong.diff", "in each process [all_examples]", "in each process [lengths]"),
    ("right.diff", "whole[self.rank ::", "whole[0 ::"),
    ("README.md", "[4, 3, 6]  [1, 9, 2]", "[4, 3, 6]"),
]
TROUBLES = [
    "the solution: each test example is counted once: 10 test examples for 4",
    "differ outside a gap",
    "the exercise with its gaps: len() says how many indices each process gets: passed",
    "an order of its own in each process: is not rejected by lengths",
    "indices that are tensors: all_examples: 10 examples for 4 processes: [",
    "evaluating on padded data: ' return list(range(rank, length, world_size))\\n' stands 0 times in the solution",
    "prints something else than the page says",
]


@pytest.mark.slow
def test_a_damaged_activity_is_reported(tmp_path):
    for name in ("common", "exercises"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in DAMAGES:
        path = tmp_path / "exercises" / "sampler" / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    done = run(sys.executable, "-m", "exercises", "check", "sampler", "--solutions", cwd=tmp_path, expect=1)
    printed = " ".join(done.stdout.split())
    assert printed.startswith("FAILED sampler")
    for trouble in TROUBLES:
        assert trouble in printed


def test_differences_are_gaps_numbered_from_one(tmp_path):
    (tmp_path / "solution.py").write_text("a = 1\nb = 2\nc = 3\n")
    exercise = tmp_path / "exercise.py"
    exercise.write_text('a = 1\nraise NotImplementedError("gap 1")\nc = 3\n')
    assert differences_outside_gaps(tmp_path) == []
    exercise.write_text('a = 1\nraise NotImplementedError("gap 2")\nc = 3\n')
    assert differences_outside_gaps(tmp_path) == ["the gaps of exercise.py are numbered [2]"]
    exercise.write_text("a = 1\nc = 3\n")
    assert differences_outside_gaps(tmp_path) == [
        "exercise.py, line 2, and solution.py, line 2, differ outside a gap",
        "the gaps of exercise.py are numbered []",
    ]


def changes_in(tmp_path, text):
    path = tmp_path / "wrong.diff"
    path.write_text(text)
    return read_changes(path)


def test_a_diff_lists_changes_to_the_solution(tmp_path):
    first, second = changes_in(tmp_path, "# one [f]\n a\n-b\n+c\n@@\n-d\n\n# two [g]\n+  0\n a\n")
    assert (first.name, first.caught_by, second.name, second.caught_by) == ("one", "f", "two", "g")
    assert first.apply("a\nb\nd\nbb\n") == "a\nc\nbb\n" and second.apply("ba\na\n") == "ba\n  0\na\n"
    assert read_changes(tmp_path / "right.diff") == []


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("one\n-a\n", "'one' is not the first line of a change"),
        ("# one [f]\n", "'# one \\[f\\]' is not the first line of a change"),
        ("# one\n-a\n", "'# one' is not the first line of a change"),  # without the check that must reject it
        ("# one [f]\n-a\n# two [f]\n-b\n", "'# one \\[f\\]': a line begins neither with a space nor with - or \\+"),
    ],
)
def test_a_diff_without_names_or_lines_is_refused(tmp_path, text, trouble):
    with pytest.raises(ValueError, match=trouble):
        changes_in(tmp_path, text)


@pytest.mark.parametrize(("solution", "times"), [("b\n", 0), ("a\nb\na\n", 2)])
def test_a_mistake_that_no_longer_fits_is_reported(tmp_path, solution, times):
    (wrong,) = changes_in(tmp_path, "# x [y]\n-a\n")
    with pytest.raises(ValueError, match=rf"x: 'a\\n' stands {times} times in the solution"):
        wrong.apply(solution)


# --- The students' copy ---


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy") / "course"
    assert check("student-copy", folder).startswith(f"{folder}: ")
    return folder


def test_a_students_copy_has_no_answers(copy):
    for name in ACTIVITIES:
        folder, copied = EXERCISES / name, [path for path in (copy / "exercises" / name).iterdir() if path.is_file()]
        text = "".join(path.read_text() for path in copied)
        exercise, solution = ((folder / file).read_text().splitlines() for file in ("exercise.py", "solution.py"))
        checks = [line for line in (folder / "check.py").read_text().splitlines() if "wanted" in line]
        for line in (*(set(solution) - set(exercise)), *checks):
            assert len(line.strip()) < 30 or line.strip() not in text, (name, line)
    names = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert {"README.md", "compare.py", "pt_impl/train.py", "exercises/quiz.md", "exercises/ddp/check.packed"} <= names
    assert not [name for name in names if re.search(r"answers|solution|\.diff|tests/|instructors|slides", name)]


def test_a_students_copy_checks_works(copy, work):
    wrong = work("        sampler.set_epoch(epoch)\n", "")
    for name, file, passed in (
        ("sampler", wrong, "6 of 8"),
        ("mirrored_strategy", EXERCISES / "mirrored_strategy" / "solution.py", "7 of 7"),  # TensorFlow reads the source
    ):
        command = [sys.executable, "-m", "exercises", "check", name, "--file", file]
        assert f"\n{passed} passed\n" in run(*command, cwd=copy, expect=int(file == wrong)).stdout


@pytest.mark.parametrize("arguments", [("mark", "class"), ("student-copy", "x"), ("check", "--all", "--solutions")])
def test_a_students_copy_has_nothing_for_instructors(copy, arguments):
    done = run(sys.executable, "-m", "exercises", *arguments, cwd=copy, expect=2)
    assert done.stderr.endswith("it has no solutions, and nothing for instructors\n")


def test_links_of_a_students_copy_lead_somewhere(copy):
    for page in copy.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def test_a_students_copy_has_gaps(tmp_path, monkeypatch):
    for file in ("exercise.py", "solution.py"):
        (tmp_path / "ddp").mkdir(exist_ok=True)
        shutil.copy(EXERCISES / "ddp" / "solution.py", tmp_path / "ddp" / file)
    monkeypatch.setattr(student_copy, "FOLDER", tmp_path)
    monkeypatch.setattr(student_copy, "ACTIVITIES", ["ddp"])
    with pytest.raises(UserError, match=r"exercises/ddp/exercise.py: its gaps are filled"):
        student_copy.make_student_copy(tmp_path / "copy")


def test_a_students_copy_is_made_in_a_new_folder(tmp_path):
    with pytest.raises(UserError, match="the folder is in the project itself"):
        student_copy.make_student_copy(EXERCISES / "copy")
    (tmp_path / "mine.txt").touch()
    done = run(sys.executable, "-m", "exercises", "student-copy", tmp_path, expect=2)
    assert done.stderr == f"python -m exercises: error: student-copy {tmp_path}: the folder is not empty\n"
