"""The course: its activities in order, how a student's work is marked, and how an instructor sees that all runs."""

import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from exercises.checking import FOLDER, NOT_ENDED, RAISED, Change, Checker, Right, Seen, Wrong, load

TORCH = ("torch", "torch.distributed")
# An optimizer's first step imports torch._dynamo, which takes as long as all the rest of torch.
OPTIMIZERS = (*TORCH, "torch._dynamo")
# In order; with what each one's checks import.
ACTIVITIES = {
    "one_device": OPTIMIZERS,
    "ddp": OPTIMIZERS,
    "mirrored_strategy": ("tensorflow", "keras"),
    "to_lightning": (*OPTIMIZERS, "lightning.pytorch", "torchmetrics"),
    "sampler": TORCH,
    "rank_zero": TORCH,
    "float_formats": OPTIMIZERS,
    "gradient_accumulation": OPTIMIZERS,
    "batch_norm": TORCH,
    "checkpoints": OPTIMIZERS,
    "model_parallelism": OPTIMIZERS,
    "scaling": ("scipy.optimize",),
    "batch_size": TORCH,
}
# The classical programs, on one device and on two, as their pages start them.
PROGRAMS = (
    "python -m exercises.PT_CNN_MultiGPU --epochs 2",
    "torchrun --standalone --nproc-per-node 2 -m exercises.PT_CNN_MultiGPU --epochs 2",
    "python -m exercises.PTL_multiGPU --epochs 2",
    "python -m exercises.PTL_multiGPU --epochs 2 --devices 2",
    "env EPOCHS=2 python -m exercises.TF_CNN_MultiGPU",
    "env EPOCHS=2 NUM_DEVICES=2 python -m exercises.TF_CNN_MultiGPU",
)
GAP = re.compile(r'\s*raise NotImplementedError\("gap (\d+)"\)\n?')
WIDTH = 80
HINTS = {
    "KeyError": "print the keys that are there, where they are written and where they are read",
    "AttributeError": "print the type of the object: is it what you expect?",
    "NameError": "is it written so where it is made, and made before?",
    "TypeError": "how many arguments, of which types, does it take? help(...) says so",
    "ModuleNotFoundError": "the exercise needs no other packages than those that it imports",
}
MAX_ENDLESS = 2  # checks that use up their time, and a student's


def make_checker(name: str) -> Checker:
    return Checker(FOLDER / name / "check.py", ACTIVITIES[name])


def not_python(work: Path) -> str | None:
    """Why a file can't be a work: what is wrong in which line; None if it is Python."""
    try:
        compile(work.read_text(encoding="utf-8"), work, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        return f"the file is not valid Python: {line}"
    return None


def nearest(name: str) -> str:
    """What to say after the name of an activity that there is not: `; sampler? (python -m exercises list)`."""
    near = difflib.get_close_matches(name, ACTIVITIES, n=1)
    return f"{f'; {near[0]}?' if near else ''} (python -m exercises list)"


# --- For a student ---


def mark(name: str, work: Path) -> bool:
    """Prints which checks of the activity `name` the file `work` passes, with hints; True if it passes all."""
    print(f"{name}: {_shown(work)}", flush=True)
    if trouble := not_python(work):
        _wrapped("  FAILED  ", trouble)
        return False
    checker = make_checker(name)
    passed = endless = 0
    errors: dict[str, str] = {}  # and in which check each was seen first
    for function, one in checker.checks.items():
        if endless == MAX_ENDLESS:
            print(f"  {MAX_ENDLESS} checks ran out of time; the others are skipped")
            break
        seen = checker.run(function, work)
        passed += seen.status == "passed"
        endless += seen.vague == NOT_ENDED
        _wrapped(f"  {seen.status:<6}  ", one.title)
        if seen.what in errors:
            _wrapped("          seen: ", f"the same error as where {errors[seen.what]}")
        elif seen.status != "passed":
            _wrapped("          seen: ", seen.what)
            if seen.status == "FAILED":
                _wrapped("          hint: ", _hint(seen, one.hint))
        if seen.vague == RAISED:
            errors.setdefault(seen.what, f'"{one.title}"')
        sys.stdout.flush()
    print(f"{passed} of {len(checker.checks)} passed")
    return passed == len(checker.checks)


def _hint(seen: Seen, of_check: str) -> str:
    """For the cause: an error has one of its own, whichever check has met it."""
    return HINTS.get(seen.what.partition(":")[0], of_check) if seen.vague == RAISED else of_check


def _wrapped(label: str, text: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)))


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


# --- For an instructor ---


def prove(name: str) -> bool:
    """Prints whether the activity `name` is whole; True if so.

    That is: the solution passes every check, and so do other right answers; every check finds the exercise open as long
    as it is not filled in; every wrong solution is rejected by the check that is there for it; exercise and solution
    differ in the gaps alone; and the solution prints what the page says.
    """
    start = time.monotonic()
    folder = FOLDER / name
    checker = make_checker(name)
    wrongs: list[Wrong] = load(folder / "wrong.py").WRONG
    rights: list[Right] = load(folder / "right.py").RIGHT if (folder / "right.py").exists() else []
    troubles = differences_outside_gaps(folder)
    for function, one in checker.checks.items():
        seen = checker.run(function, folder / "solution.py")
        if seen.status != "passed":
            troubles.append(f"the solution: {one.title}: {seen.what}")
        seen = checker.run(function, folder / "exercise.py")
        if seen.status != "open":
            troubles.append(f"the exercise with its gaps: {one.title}: {seen.status}: {seen.what}")
    for change in [*rights, *wrongs]:
        try:
            troubles += run_changed(checker, folder, change)
        except ValueError as error:
            troubles.append(str(error))
    troubles += unexpected_output(folder)
    counts = f"{len(checker.checks)} checks, {len(rights) + 1} right and {len(wrongs)} wrong solutions"
    print(f"{'FAILED' if troubles else 'passed'}  {name}: {counts}, {time.monotonic() - start:.0f} s", flush=True)
    for trouble in troubles:
        _wrapped("          ", trouble)
    return not troubles


def run_changed(checker: Checker, folder: Path, change: Change) -> list[str]:
    """Where checks are mistaken about a changed solution. ValueError: the solution has become another."""
    with tempfile.TemporaryDirectory(prefix="changed-") as place:
        work = Path(place, "changed.py")
        work.write_text(change.apply((folder / "solution.py").read_text()))
        if isinstance(change, Wrong):
            rejected = checker.run(change.caught_by, work).status == "FAILED"
            return [] if rejected else [f"{change.name}: is not rejected by {change.caught_by}"]
        seen = {name: checker.run(name, work) for name in checker.checks}
        return [f"{change.name}: {name}: {one.what}" for name, one in seen.items() if one.status != "passed"]


def differences_outside_gaps(folder: Path) -> list[str]:
    """Where exercise.py and solution.py differ by more than gaps, which are numbered from 1 on."""
    exercise, solution = ((folder / name).read_text().splitlines() for name in ("exercise.py", "solution.py"))
    troubles = []
    changes = difflib.SequenceMatcher(None, exercise, solution, autojunk=False).get_opcodes()
    for kind, start, stop, other, _ in changes:
        found = [GAP.fullmatch(line) for line in exercise[start:stop]]
        if kind != "equal" and not (found and all(found)):
            troubles.append(f"exercise.py, line {start + 1}, and solution.py, line {other + 1}, differ outside a gap")
    gaps = [int(gap[1]) for line in exercise if (gap := GAP.fullmatch(line))]
    if gaps != list(range(1, len(gaps) + 1)) or not gaps:
        troubles.append(f"the gaps of exercise.py are numbered {gaps}")
    return troubles


def unexpected_output(folder: Path) -> list[str]:
    """Where the outputs on the page are not what its commands print, numbers apart."""
    troubles = []
    blocks = commands_with_output(folder / "README.md")
    if not blocks:
        troubles.append("the page shows no command with its output")
    for command, wanted in blocks:
        done = run(command)
        if done.returncode:
            troubles.append(f"{command}: exit status {done.returncode}: {done.stderr[-300:]}")
        elif without_numbers(done.stdout) != without_numbers(wanted):
            troubles.append(f"{command}: prints something else than the page says: {done.stdout!r}")
    return troubles


def commands_with_output(page: Path) -> list[tuple[str, str]]:
    """The commands of a page (`$ ...`) that stand with what they print, and that."""
    return re.findall(r"^```\n\$ (.+)\n((?:.*\n)*?)```$", page.read_text(), re.MULTILINE)


def without_numbers(text: str) -> list[str]:
    """Lines to be compared: numbers differ from machine to machine; so do the blanks that line them up."""
    lines = (re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line) for line in text.strip().splitlines())
    return [" ".join(line.split()) for line in lines]


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of a page from the project's folder, with this Python's programs first, on the CPU."""
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": str(WIDTH)}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # the pages show what is the same on every machine
    return subprocess.run(
        shlex.split(command), cwd=FOLDER.parent, env=environment, capture_output=True, text=True, check=False
    )


def prove_program(command: str) -> bool:
    """Prints whether a classical program runs and prints its results; True if so."""
    done = run(command)
    lines = done.stdout.strip().splitlines() or [""]
    whole = done.returncode == 0 and re.fullmatch(r"test accuracy .*%, .* images/s .*, .* s of training", lines[-1])
    print(f"{'passed' if whole else 'FAILED'}  {command}", flush=True)
    _wrapped("          ", lines[-1] if whole else done.stderr[-500:])
    return bool(whole)
