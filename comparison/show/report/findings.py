"""The first screen of the report: the findings, how reliable they are, what to do next, and a table to decide by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from comparison.intervals import MIN_CYCLES, MIN_ROUNDS
from comparison.measure.noise import why_not_measured
from comparison.measure.numbers import mebibytes, rate, seconds, text
from comparison.measure.row import Row
from comparison.measure.summary import Summary
from comparison.measure.table import Entry, Table, have_turns, num_pairs, speed_ratio
from comparison.run.load_meter import QUIETER
from comparison.show.columns import plus_minus, same_training
from comparison.show.conclusions import PROOF, conclusions, learning_conclusions
from comparison.show.report.training_code import lines_of_training

DIR = "DIR is the folder of this page"  # not its path: the folder may be moved
Number = Callable[[Row], float | None]


@dataclass(frozen=True)
class Finding:
    """A question that a reader has, and the answers, a sentence each."""

    question: str
    answers: list[str]


@dataclass(frozen=True)
class Cell:
    """A cell of the table to decide by.

    Attributes:
      shown: the text; empty if the value is not known.
      value: for sorting; None if it is not known.
      share: compared with the best value: 1 for the best, less for the others; None if there is nothing to compare.
    """

    shown: str
    value: float | None
    share: float | None


@dataclass(frozen=True)
class Decision:
    """The table to decide by: headings with their meanings, and a line for each row."""

    headings: list[tuple[str, str]]
    lines: list[tuple[str, list[Cell], bool]]


# --- In words ---


def findings(summary: Summary, table: Table) -> list[Finding]:
    """The questions and answers for a table; an empty list if no run has succeeded."""
    rows = [row for row in table.rows if row.num_runs]
    if not rows:
        return []
    said = conclusions(table)
    proof = [said.pop()] if said and said[-1].startswith(PROOF) else []
    why = _why_no_ratio(table)
    nothing = f"Not measured: {why}." if why else "Nothing to compare: only one row has a speed."
    found = [
        Finding("Which is fastest?", said or [nothing]),
        Finding("Which starts fastest?", _least(rows, _startup, seconds, "s")),
        Finding("Which needs the least memory?", _least(rows, _memory, _mebibytes, "MiB")),
        Finding("Was it the same training?", [*proof, *_accuracies(rows)]),
        Finding("Does it learn?", learning_conclusions(table)),
        Finding("How reliable is this?", [_trust(summary, table, why)]),
        Finding("What next?", [_next_step(summary, table, why)]),
    ]
    return [one for one in found if one.answers]


def _least(rows: Sequence[Row], number: Number, shown: Callable[[float], str], unit: str) -> list[str]:
    """`PyTorch, 2.0 s (Lightning 5.1, TensorFlow 3.3)`."""
    known = [(value, row.title) for row in rows if (value := number(row)) is not None]
    if len(known) < 2:
        return []
    (least, first), *others = sorted(known)
    return [f"{first}, {shown(least)} {unit} ({', '.join(f'{name} {shown(value)}' for value, name in others)})."]


def _accuracies(rows: Sequence[Row]) -> list[str]:
    known = [row.accuracy.test_accuracy for row in rows if row.accuracy.test_accuracy is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    return [f"Test accuracy: {' to '.join(dict.fromkeys((f'{low:.2%}', f'{high:.2%}')))}."]


def _why_no_ratio(table: Table) -> str | None:
    """Why no ratio was measured, and what to do; None if one was. For a single row: why it has no speed."""
    reference, others = _compared(table)
    if any(map(_has_ratio, others)):
        return None
    if not others:
        return why_not_measured([reference]) if reference.row and not _speed(reference.row) else None
    if why := why_not_measured([reference, *others]):
        return why
    if all(entry.row and entry.row.status in ("different training", "not proved") for entry in others):
        return "no other row is proved to be the same training as the first one"
    if any(have_turns(reference, entry) for entry in others):
        return f"no two rows had {MIN_CYCLES} undisturbed turns of the same cycle; {QUIETER}"
    if not any(run.images_per_second for entry in (reference, *others) for run in entry.runs):
        return "the training is too short for a speed; make it longer (--epochs)"
    return "no round has an undisturbed speed of both rows"


def _compared(table: Table) -> tuple[Entry, list[Entry]]:
    """The first row's entry and the others, of those with runs."""
    reference = table.reference
    assert reference is not None
    return reference, [entry for entry in table.entries if entry.runs and entry is not reference]


def _has_ratio(entry: Entry) -> bool:
    """Whether a row has a ratio to the first row or, with too few rounds, the lowest and the highest of the rounds."""
    return entry.row is not None and entry.row.speed.ratio_max is not None


def _trust(summary: Summary, table: Table, why: str | None) -> str:
    """How many rounds, turns and seeds count; `why`: why no ratio was measured."""
    reference, others = _compared(table)
    entries = [reference, *others]
    runs = [run for entry in entries for run in entry.runs]
    made, counting = len({run.round_key for run in runs}), _num_rounds(table)
    seeds = len({run.record.seed for run in runs})
    of_seeds = f"{seeds} seeds" if seeds > 1 else "one seed, so accuracy has no spread"
    if why:
        return f"Speed is not measured: {why}. Accuracy: {of_seeds}."
    rounds = f"{counting} round{'s' if counting != 1 else ''}" if counting == made else f"{counting} of {made} rounds"
    if pairs := sorted(filter(None, (num_pairs(reference, entry) for entry in filter(_has_ratio, others)))):
        turns = sum(len(run.turns) for run in runs)
        left = turns - sum(len(entry.turns(run)) for entry in entries for run in entry.runs)
        least_most = " to ".join(dict.fromkeys((f"{pairs[0]:,}", f"{pairs[-1]:,}")))
        said = [f"{rounds} on one machine, with {least_most} pairs of turns"]
        said += [f"{left:,} of {turns:,} turns are left out: other programs disturbed them"] if left else []
        few = " With one round they hold for these processes only: --repeats 5 makes more." if counting == 1 else ""
    else:
        said, few = [f"{rounds} of pairs on one machine"], ""
        if disturbed := len({run.round_key for entry in entries for run in entry.runs if entry.leaves_out(run)}):
            said.append(f"{disturbed} left out: other programs disturbed {'it' if disturbed == 1 else 'them'}")
        if counting < MIN_ROUNDS:
            return f"Not very: {'; '.join([*said, of_seeds])}. Ratios need {MIN_ROUNDS} undisturbed rounds."
    count = len(summary.warnings)
    read = f" Read the {count} warning{'s' if count > 1 else ''} below first." if count else ""
    return f"{'; '.join([*said, of_seeds])}. The ranges in brackets are 95 % intervals.{few}{read}"


def _num_rounds(table: Table) -> int:
    """The number of rounds that the ratios are from; that of the speeds if there is only one row."""
    reference, others = _compared(table)
    return max(entry.row.speed.num_rounds for entry in others or [reference] if entry.row)


def _next_step(summary: Summary, table: Table, why: str | None) -> str:
    repeats, model = summary.request.options.repeats, summary.request.config.model
    again = f"python compare.py --resume DIR --repeats {max(5, repeats + 2)}"
    if why:
        if why.endswith(QUIETER):
            return f"On a quieter machine, {again} makes more rounds; {DIR}."
        return "Remove that cause, and begin a new comparison."
    reference, others = _compared(table)
    enough = 2 if any(have_turns(reference, entry) for entry in others) else MIN_ROUNDS
    if others and _num_rounds(table) < enough:
        return f"{again} makes more rounds; {DIR}."
    if any(row.speed.verdict == "no difference shown" for row in table.rows):
        more = f"python compare.py --resume DIR --repeats {max(20, 2 * repeats)}"
        return f"Where the difference is not significant, more rounds may tell: {more}; {DIR}."
    return f"Measure your own case: another network than {model}, batch size or machine may change the ranking."


# --- In a table ---


def decision(table: Table) -> Decision:
    """The table to decide by: numbers, each compared with the best one of its column."""
    rows = [row for row in table.rows if row.num_runs]
    kinds = [
        Kind("images/s", "training images per second, the median over rounds", _speed, rate),
        Kind("time to target, s", "seconds of training and evaluation to --target-accuracy", _target, seconds),
        Kind("start-up, s", "from the command to the end of the first step", _startup, seconds),
        Kind("memory, MiB", "the peak of all its processes", _memory, _mebibytes),
        Kind("GPU memory, MiB", "the peak on all GPUs", _gpu_memory, _mebibytes),
        Kind("joules/image", "energy of the machine for each training image", _joules, "{:.2g}".format),
        Kind(
            "lines of code",
            "of train.py and parts.py, and of tuning.py where it is tuned",
            _code_lines,
            "{:.0f}".format,
        ),
    ]
    kinds = [kind for kind in kinds if any(kind.value(row) is not None for row in rows)]
    shares = _shares(table)
    lines = []
    for row in rows:
        share = shares.get(row.name)
        cells = [kind.cell(row, rows) for kind in kinds]
        cells = [
            replace(cell, share=share) if kind.value is _speed else cell
            for kind, cell in zip(kinds, cells, strict=True)
        ]
        if shares:
            cells.insert(1, Cell(text(share, "{:.0%}"), share, share))
        accuracy = row.accuracy.test_accuracy
        cells.insert(0, Cell(f"{text(accuracy, '{:.2%}')} {plus_minus(row)}".strip(), accuracy, None))
        is_first = table.reference is not None and row is table.reference.row
        cells.append(Cell(same_training(row) or ("first row" if is_first else "not checked"), None, None))
        lines.append((row.title, cells, row.status == "ok"))
    headings = [(kind.heading, kind.about) for kind in kinds]
    if shares:
        headings.insert(1, ("of the fastest", "the ratio to the fastest row's speed, where it differs significantly"))
    headings.insert(0, ("test accuracy", "mean over seeds, with half of its 95 % interval"))
    headings.append(("same training", "as the first row's, proved by the first steps in 64 bits"))
    return Decision(headings, lines)


def _shares(table: Table) -> dict[str, float]:
    """Name of a row -> its speed as a share of the fastest row's, 1 for that row itself.

    A row is left out if its ratio to the fastest row has no interval, or if the difference is not significant; if that
    is so for all, the fastest is not known and there are no shares.
    """
    measured = [entry for entry in table.entries if entry.row and entry.row.speed.ratio is not None]
    if not measured:
        return {}
    fastest = max(measured, key=lambda entry: entry.row.speed.ratio or 0.0 if entry.row else 0.0)
    ratios = {entry.name: speed_ratio(fastest, entry)[0] for entry in measured if entry is not fastest}
    slower = {name: ratio.estimate for name, ratio in ratios.items() if ratio and ratio.verdict == "slower"}
    shares = {name: share for name, share in slower.items() if share is not None}
    return {fastest.name: 1.0, **shares} if shares else {}


@dataclass(frozen=True)
class Kind:
    """A column."""

    heading: str
    about: str
    value: Number
    shown: Callable[[float], str]

    def cell(self, row: Row, rows: Sequence[Row]) -> Cell:
        value, known = self.value(row), [one for other in rows if (one := self.value(other)) is not None]
        if value is None:
            return Cell("", None, None)
        share = min(known) / value if value and len(known) > 1 else None  # the lowest is best; speeds: see `_shares`
        return Cell(self.shown(value), value, share)


def _speed(row: Row) -> float | None:
    return row.speed.images_per_second


def _target(row: Row) -> float | None:
    return row.target.target_seconds if row.speed.images_per_second else None


def _startup(row: Row) -> float | None:
    return row.times.startup_seconds


def _memory(row: Row) -> float | None:
    return row.resources.peak_memory_bytes


def _mebibytes(value: float) -> str:
    return mebibytes(int(value))


def _gpu_memory(row: Row) -> float | None:
    return row.resources.device_peak_memory_bytes


def _joules(row: Row) -> float | None:
    return row.resources.joules_per_image


def _code_lines(row: Row) -> float | None:
    return lines_of_training(row.implementation, row.mode)
