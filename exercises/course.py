"""The course: its activities in order, marking of a student's work, and a test of the activities for an instructor."""

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

from exercises.checking import FOLDER, NOT_ENDED, RAISED, Change, Checker, Seen, read_changes

TORCH = ("torch", "torch.distributed")
# An optimizer's first step imports torch._dynamo, which takes as long as all the rest of torch.
OPTIMIZERS = (*TORCH, "torch._dynamo")
# The activities in order, each with the packages that its checks import.
ACTIVITIES = {
    "one_device": OPTIMIZERS,
    "ddp": OPTIMIZERS,
    "mirrored_strategy": ("tensorflow", "keras"),
    "to_lightning": (*OPTIMIZERS, "lightning.pytorch", "torchmetrics"),
    "sampler": TORCH,
    "rank_zero": TORCH,
    "tracking": (*OPTIMIZERS, "lightning.pytorch"),
    "float_formats": OPTIMIZERS,
    "gradient_accumulation": OPTIMIZERS,
    "batch_norm": TORCH,
    "checkpoints": OPTIMIZERS,
    "preempted_job": OPTIMIZERS,
    "model_parallelism": OPTIMIZERS,
    "sharding": (*OPTIMIZERS, "torch.distributed.fsdp", "torch.profiler"),
    "two_nodes": TORCH,
    "scaling": ("scipy.optimize",),
    "input_pipeline": (*OPTIMIZERS, "torch.profiler"),
    "batch_size": TORCH,
}
# The commands that start the classical programs, on one device and on two.
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
# For errors that have nothing to do with what an activity is about.
HINTS = {
    "NameError": "is the name spelled in the same way where it gets its value, and does that happen before?",
    "UnboundLocalError": "on which path through the function does the name get no value?",
    "ModuleNotFoundError": "the exercise needs only the packages that it already imports",
}
MAX_ENDLESS = 2  # checks that may run out of time before the others are skipped


def make_checker(name: str) -> Checker:
    return Checker(FOLDER / name / "check.py", ACTIVITIES[name])


def not_python(work: Path) -> str | None:
    """Why a file is not valid Python, if possible with the line; None if it is."""
    try:
        compile(work.read_bytes(), work, "exec", dont_inherit=True)  # in any encoding that it declares
        return None
    except SyntaxError as error:
        reason = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        reason = str(error) or "it is nested too deeply"  # for the parser's memory
    return f"the file is not valid Python: {reason}"


def nearest(name: str) -> str:
    """The end of a message about an unknown activity: `; sampler? (python -m exercises list)`."""
    near = difflib.get_close_matches(name, ACTIVITIES, n=1)
    return f"{f'; {near[0]}?' if near else ''} (python -m exercises list)"


# --- For a student ---


def mark(name: str, work: Path) -> dict[str, Seen]:
    """Prints which checks of the activity `name` the file `work` passes, with hints; returns what each has seen."""
    print(f"{name}: {_shown(work)}", flush=True)
    checker = make_checker(name)
    if trouble := not_python(work):
        _wrapped("  FAILED  ", trouble)
        return dict.fromkeys(checker.checks, Seen("FAILED", trouble))
    all_seen: dict[str, Seen] = {}
    endless = 0
    errors: dict[str, str] = {}  # error: the check in which it was seen first
    for function, check in checker.checks.items():
        if endless == MAX_ENDLESS:
            print(f"  {MAX_ENDLESS} checks ran out of time; the others are skipped")
            skipped = Seen("not run", f"{MAX_ENDLESS} checks ran out of time")
            all_seen = dict.fromkeys(checker.checks, skipped) | all_seen
            break
        seen = all_seen[function] = checker.run(function, work)
        endless += seen.vague == NOT_ENDED
        _wrapped(f"  {seen.status:<6}  ", check.title)
        if seen.what in errors:
            _wrapped("          seen: ", f"the same error as where {errors[seen.what]}")
        elif seen.status != "passed":
            _wrapped("          seen: ", seen.what)
            if seen.status == "FAILED":
                _wrapped("          hint: ", _hint(seen, check.hint))
        if seen.vague == RAISED:
            errors.setdefault(seen.what, f'"{check.title}"')
        sys.stdout.flush()
    print(f"{sum(seen.status == 'passed' for seen in all_seen.values())} of {len(checker.checks)} passed")
    return all_seen


def _hint(seen: Seen, of_check: str) -> str:
    """The hint for a failed check: that of what was seen, if it has one, else the check's."""
    return seen.hint or (HINTS.get(seen.what.partition(":")[0], of_check) if seen.vague == RAISED else of_check)


def _wrapped(label: str, text: str) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)))


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


# --- For an instructor ---


def prove(name: str) -> bool:
    """Prints whether the activity `name` is complete and correct; True if so.

    The solution and the other right answers must pass every check. The exercise with its gaps must be open in every
    check. Each wrong solution must be rejected by the check that is meant for it. Exercise and solution must differ
    only in the gaps. The commands on the page must print what the page shows, apart from numbers.
    """
    start = time.monotonic()
    folder = FOLDER / name
    checker = make_checker(name)
    troubles = differences_outside_gaps(folder)
    rights: list[Change] = []
    wrongs: list[Change] = []
    try:
        rights, wrongs = (read_changes(folder / name) for name in ("right.diff", "wrong.diff"))
    except ValueError as error:
        troubles.append(str(error))
    if not wrongs:
        troubles.append("there are no wrong solutions (wrong.diff)")
    for function, check in checker.checks.items():
        seen = checker.run(function, folder / "solution.py")
        if seen.status != "passed":
            troubles.append(f"the solution: {check.title}: {seen.what}")
        seen = checker.run(function, folder / "exercise.py")
        if seen.status != "open":
            troubles.append(f"the exercise with its gaps: {check.title}: {seen.status}: {seen.what}")
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
    """Lists the wrong results of checks on a changed solution. ValueError: the change does not fit the solution."""
    with tempfile.TemporaryDirectory(prefix="changed-") as place:
        work = Path(place, "changed.py")
        work.write_text(change.apply((folder / "solution.py").read_text()))
        if change.caught_by:
            rejected = checker.run(change.caught_by, work).status == "FAILED"
            return [] if rejected else [f"{change.name}: is not rejected by {change.caught_by}"]
        seen = {name: checker.run(name, work) for name in checker.checks}
        return [
            f"{change.name}: {name}: {verdict.what}" for name, verdict in seen.items() if verdict.status != "passed"
        ]


def differences_outside_gaps(folder: Path) -> list[str]:
    """Lists where exercise.py and solution.py differ outside the gaps, and gaps that are not numbered 1, 2, ..."""
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
    """Lists the commands on the page that print something else than the page shows, apart from numbers."""
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
    """The commands of a page (`$ ...`) that are shown with their output, each with this output."""
    return re.findall(r"^```\n\$ (.+)\n((?:.*\n)*?)```$", page.read_text(), re.MULTILINE)


def without_numbers(text: str) -> list[str]:
    """Lines without numbers and alignment, which differ from machine to machine."""
    lines = (re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", line) for line in text.strip().splitlines())
    return [" ".join(line.split()) for line in lines]


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of a page in the project's folder, on the CPU, with this Python's programs first in the PATH."""
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": str(WIDTH)}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # the pages show output that is the same on every machine
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
