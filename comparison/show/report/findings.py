"""The first screen of the report: the findings, how reliable they are, what to do next, and a table to decide by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from comparison.intervals import MIN_CYCLES, MIN_ROUNDS
from comparison.measure.cautions import why_not_measured
from comparison.measure.numbers import least_most, mebibytes, rate, seconds, text
from comparison.measure.summary import Summary
from comparison.measure.table import Row, Table, have_turns, num_pairs, speed_ratio
from comparison.run.load_meter import QUIETER
from comparison.show.report.training_code import lines_of_training
from comparison.show.sentences import PROOF, conclusions, learning_conclusions

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
        Finding("Which starts fastest?", _least(rows, lambda row: row.startup_seconds, seconds, "s")),
        Finding("Which needs the least memory?", _least(rows, lambda row: row.peak_memory_bytes, mebibytes, "MiB")),
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
    known = [row.test_accuracy for row in rows if row.test_accuracy is not None]
    if not known:
        return []
    return [f"Test accuracy: {least_most(min(known), max(known), '{:.2%}'.format, to=' to ')}."]


def _why_no_ratio(table: Table) -> str | None:
    """Why no ratio was measured, and what to do; None if one was. For a single row: why it has no speed."""
    reference, others = _compared(table)
    if any(map(_has_ratio, others)):
        return None
    if not others:
        return None if reference.images_per_second else why_not_measured([reference])
    if why := why_not_measured([reference, *others]):
        return why
    if all(row.status in ("different training", "not proved") for row in others):
        return "no other row is proved to be the same training as the first one"
    if any(have_turns(reference, row) for row in others):
        return f"no two rows had {MIN_CYCLES} undisturbed turns of the same cycle; {QUIETER}"
    if not any(run.images_per_second for row in (reference, *others) for run in row.runs):
        return "the training is too short for a speed; make it longer (--epochs)"
    return "no round has an undisturbed speed of both rows"


def _compared(table: Table) -> tuple[Row, list[Row]]:
    """The first row's row and the others, of those with runs."""
    reference = table.reference
    assert reference is not None
    return reference, [row for row in table.rows if row.runs and row is not reference]


def _has_ratio(row: Row) -> bool:
    """Whether a row has a ratio to the first row or, with too few rounds, the lowest and the highest of the rounds."""
    return row.ratio_max is not None


def _trust(summary: Summary, table: Table, why: str | None) -> str:
    """How many rounds, turns and seeds count; `why`: why no ratio was measured."""
    reference, others = _compared(table)
    rows = [reference, *others]
    runs = [run for row in rows for run in row.runs]
    made, counting = len({run.round_key for run in runs}), _num_rounds(table)
    seeds = len({run.record.seed for run in runs})
    of_seeds = f"{seeds} seeds" if seeds > 1 else "one seed, so accuracy has no spread"
    if why:
        return f"Speed is not measured: {why}. Accuracy: {of_seeds}."
    rounds = f"{counting} round{'s' if counting != 1 else ''}" if counting == made else f"{counting} of {made} rounds"
    if pairs := sorted(filter(None, (num_pairs(reference, row) for row in filter(_has_ratio, others)))):
        turns = sum(len(run.turns) for run in runs)
        left = turns - sum(len(row.turns(run)) for row in rows for run in row.runs)
        counts = least_most(pairs[0], pairs[-1], "{:,}".format, to=" to ")
        said = [f"{rounds} on one machine, with {counts} pairs of turns"]
        said += [f"{left:,} of {turns:,} turns are left out: other programs disturbed them"] if left else []
        few = " With one round they hold for these processes only: --repeats 5 makes more." if counting == 1 else ""
    else:
        said, few = [f"{rounds} of pairs on one machine"], ""
        if disturbed := len({run.round_key for row in rows for run in row.runs if row.leaves_out(run)}):
            said.append(f"{disturbed} left out: other programs disturbed {'it' if disturbed == 1 else 'them'}")
        if counting < MIN_ROUNDS:
            return f"Not very: {'; '.join([*said, of_seeds])}. Ratios need {MIN_ROUNDS} undisturbed rounds."
    count = len(summary.warnings)
    read = f" Read the {count} warning{'s' if count > 1 else ''} below first." if count else ""
    return f"{'; '.join([*said, of_seeds])}. The ranges in brackets are 95 % intervals.{few}{read}"


def _num_rounds(table: Table) -> int:
    """The number of rounds that the ratios are from; that of the speeds if there is only one row."""
    reference, others = _compared(table)
    return max(row.num_rounds for row in others or [reference])


def _next_step(summary: Summary, table: Table, why: str | None) -> str:
    repeats, model = summary.request.options.repeats, summary.request.config.model
    again = f"python compare.py --resume DIR --repeats {max(5, repeats + 2)}"
    if why:
        if why.endswith(QUIETER):
            return f"On a quieter machine, {again} makes more rounds; {DIR}."
        return "Remove that cause, and begin a new comparison."
    reference, others = _compared(table)
    enough = 2 if any(have_turns(reference, row) for row in others) else MIN_ROUNDS
    if others and _num_rounds(table) < enough:
        return f"{again} makes more rounds; {DIR}."
    if any(row.verdict == "no difference shown" for row in table.rows):
        more = f"python compare.py --resume DIR --repeats {max(20, 2 * repeats)}"
        return f"Where the difference is not significant, more rounds may tell: {more}; {DIR}."
    return f"Measure your own case: another network than {model}, batch size or machine may change the ranking."


# --- In a table ---


@dataclass(frozen=True)
class Choice:
    """A column of the table to decide by: its heading and what it means, a row's number, and that as text."""

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


CHOICES = [
    Choice("images/s", "training images per second, the median over rounds", lambda row: row.images_per_second, rate),
    Choice(
        "time to target, s",
        "seconds of training and evaluation to --target-accuracy",
        lambda row: row.target_seconds if row.images_per_second else None,
        seconds,
    ),
    Choice("start-up, s", "from the command to the end of the first step", lambda row: row.startup_seconds, seconds),
    Choice("memory, MiB", "the peak of all its processes", lambda row: row.peak_memory_bytes, mebibytes),
    Choice("GPU memory, MiB", "the peak on all GPUs", lambda row: row.device_peak_memory_bytes, mebibytes),
    Choice(
        "joules/image",
        "energy of the machine for each training image",
        lambda row: row.joules_per_image,
        "{:.2g}".format,
    ),
    Choice(
        "lines of code",
        "of train.py and parts.py, and of tuning.py where it is tuned",
        lambda row: lines_of_training(row.implementation, row.mode),
        "{:.0f}".format,
    ),
]


def decision(table: Table) -> Decision:
    """The table to decide by: numbers, each compared with the best one of its column."""
    rows = [row for row in table.rows if row.num_runs]
    choices = [one for one in CHOICES if any(one.value(row) is not None for row in rows)]
    shares = _shares(table)
    lines = []
    for row in rows:
        share = shares.get(row.name)
        cells = [choice.cell(row, rows) for choice in choices]
        if choices[0] is CHOICES[0]:  # a high speed is best, and only if the difference is significant
            cells[0] = replace(cells[0], share=share)
        if shares:
            cells.insert(1, Cell(text(share, "{:.0%}"), share, share))
        accuracy = row.test_accuracy
        cells.insert(0, Cell(f"{text(accuracy, '{:.2%}')} {row.plus_minus}".strip(), accuracy, None))
        cells.append(Cell(row.same_as_first or ("first row" if row.is_reference else "not checked"), None, None))
        lines.append((row.title, cells, row.status == "ok"))
    headings = [(choice.heading, choice.about) for choice in choices]
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
    measured = [row for row in table.rows if row.ratio is not None]
    if not measured:
        return {}
    fastest = max(measured, key=lambda row: row.ratio or 0.0)
    ratios = {row.name: speed_ratio(fastest, row)[0] for row in measured if row is not fastest}
    slower = {name: ratio.estimate for name, ratio in ratios.items() if ratio and ratio.verdict == "slower"}
    shares = {name: share for name, share in slower.items() if share is not None}
    return {fastest.name: 1.0, **shares} if shares else {}
