"""`Table`: runs that can be compared. `Row`: those of one implementation in one mode, and its columns."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from common.platform.errors import UserError
from common.record.results import RunResult, TurnLine
from common.record.timeline import SHOWN_PHASES, Phase
from common.resolve import describe_settings
from common.spec.options import Mode
from comparison.lockstep import FIRST_STEPS, OF_EVALUATION, loss_differences
from comparison.measure.accuracies import accuracies_differ_clearly, runs_by_seed
from comparison.measure.columns import Column, column, count, number, shown
from comparison.measure.lines_of_code import lines_of_training
from comparison.numbers import (
    ACCURACY,
    COUNT,
    LOSS,
    RATIO,
    SHARE,
    difference,
    least_most,
    mebibytes,
    rate,
    seconds,
    short_rate,
    span,
)
from comparison.plan.jobs import Contender, Values
from comparison.prove.audits import Audit, Audits, is_audited, read_audits
from comparison.prove.learning import Fit, Learned, SmallSet, read_fit, read_small_set
from comparison.prove.proof import (
    CLOSER_DIR,
    FIRST_BATCH_DIR,
    SKIPPED_DIR,
    Proof,
    judge,
    jump_between,
    proof_path,
    why_proof_does_not_fit,
)
from comparison.ratios import (
    MIN_CYCLES,
    MIN_FOR_QUARTILES,
    Interval,
    Ratio,
    Verdict,
    mean_interval,
    paired_ratio,
    pairs_of_turns,
    quartiles,
    ratio_of_turns,
    typical_speed,
)
from comparison.run.store import Reach, RoundKey, Run

Status = Literal[
    "ok", "failed", "some failed", "different training", "different evaluation", "not proved", "does not learn"
]
MOST_OFF_THE_CLOCK = 0.25  # of the time of a row's epochs: above it there is a warning
DIFFERENT: tuple[Status, ...] = ("different training", "different evaluation")
# The tables of text that a column may be in. Those of a table's rows, in their order; DETAILED are not on the terminal:
ROW_TABLES = MAIN, TARGET, LEARNING, DETAILS, TIMES, DEVICE = "main", "target", "learning", "details", "times", "device"
DETAILED = (DETAILS, TIMES, DEVICE)
# Those of all rows of a sweep, in their order:
SWEEP_TABLES = SWEEP_SPEED, SWEEP_ACCURACY, SWEEP_LEARNING = "sweep speed", "sweep accuracy", "sweep learning"
DECISION = "decision"  # the report's table to choose by
ABOUT_PHASES: dict[Phase, str] = {
    "imports": "Python and the framework's libraries",
    "data": "reading the data set",
    "build": "network, processes, compiling, and the first step",
    "training": "all steps after the first",
    "evaluation": "evaluating on the test set",
    "between": "neither training nor evaluation: fetching an epoch's last losses, recreating loaders; not in any speed",
    "rest": "predictions, files, ending the processes",
}


@dataclass(eq=False)
class Table:
    """Rows that can be compared with each other; the first one with runs is the reference.

    Attributes:
      number: from 1, counted over the whole comparison.
      variant: the values of a sweep's options.
      folder: the comparison's folder.
      target_accuracy: a share; None for no target.
      verify: whether rows must be proved to be the same training.
      keep_disturbed: whether rounds that other programs have disturbed count like all others.
      apart: why its runs are not in the first table of the variant; None for the first table itself.
      disturbed: rounds that other programs have disturbed.
    """

    number: int
    variant: Values
    folder: Path = field(default_factory=Path)
    target_accuracy: float | None = None
    verify: bool = True
    keep_disturbed: bool = False
    apart: str | None = None
    disturbed: frozenset[RoundKey] = frozenset()
    rows: list["Row"] = field(default_factory=list, repr=False)

    @property
    def reference(self) -> "Row | None":
        return next((row for row in self.rows if row.runs), None)

    @property
    def first_result(self) -> RunResult | None:
        return self.reference.runs[0].result if self.reference else None

    def row(self, name: str) -> "Row | None":
        return next((row for row in self.rows if row.name == name), None)

    @cached_property
    def shares_of_fastest(self) -> dict[str, float]:
        """Name of a row -> its speed as a share of the fastest row's, 1 for that row itself.

        A row is left out if its ratio to the fastest row has no interval, or if the difference is not significant; if
        that is so for all, the fastest is not known and there are no shares.
        """
        measured = [row for row in self.rows if row.ratio is not None]
        if not measured:
            return {}
        fastest = max(measured, key=lambda row: row.ratio or 0.0)
        ratios = {row.name: speed_ratio(fastest, row)[0] for row in measured if row is not fastest}
        slower = {name: ratio.estimate for name, ratio in ratios.items() if ratio and ratio.verdict == "slower"}
        shares = {name: share for name, share in slower.items() if share is not None}
        return {fastest.name: 1.0, **shares} if shares else {}

    def same_seed(self, run: Run) -> Run | None:
        """The first run of the table with the same seed; None if there is none."""
        runs = (candidate for row in self.rows for candidate in row.runs if candidate.record.seed == run.record.seed)
        return next(runs, None)


def same_seed_runs(rows: Sequence["Row"]) -> dict[str, Run]:
    """Title of a row -> its first run with the seed of the first row's first run; rows without one are left out."""
    rows = [row for row in rows if row.runs]
    seed = rows[0].runs[0].record.seed if rows else 0
    found = {row.title: next((run for run in row.runs if run.record.seed == seed), None) for row in rows}
    return {title: run for title, run in found.items() if run}


def _phase_column(phase: Phase) -> Column[float | None]:
    def of_row(row: "Row") -> float | None:
        return row.phases.get(phase)

    of_row.__doc__ = f"{ABOUT_PHASES[phase][0].upper()}{ABOUT_PHASES[phase][1:]}."
    return column(f"{phase}\ns", TIMES, form=seconds)(of_row)


@dataclass(eq=False)
class Row:
    """The runs of one implementation in one mode in a table.

    Its columns are the methods with `@column`, and, for text that is only shown, `@shown`. Their values are computed at
    the first use: by then all runs must be in the table. A share is from 0 to 1; None is what is not known.

    Attributes:
      contender: the implementation and the mode.
      runs, failed: those that have succeeded, and those that have failed.
    """

    in_table: Table
    contender: Contender
    runs: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def title(self) -> str:
        """`PyTorch`; `PyTorch plain` in a table with several modes."""
        alone = {row.mode for row in self.in_table.rows} == {"plain"}
        return self.contender.title if alone or self.mode != "plain" else f"{self.contender.title} {self.mode}"

    @property
    def label(self) -> str:
        """`PyTorch`; `PyTorch: failed`."""
        return self.title if self.is_comparable else f"{self.title}: {self.status}"

    @property
    def is_comparable(self) -> bool:
        return self.status in ("ok", "some failed")

    @property
    def is_reference(self) -> bool:
        return self is self.in_table.reference

    # --- The runs that count ---

    @property
    def results(self) -> list[RunResult]:
        return [run.result for run in self.runs if run.result]

    def leaves_out(self, run: Run) -> bool:
        """Whether a run of the table does not count, because its round was disturbed."""
        return not self.in_table.keep_disturbed and (run.record.seed, run.record.round) in self.in_table.disturbed

    def turns(self, run: Run) -> list[TurnLine]:
        """The turns of a run that count: none of a round that does not count."""
        if self.leaves_out(run):
            return []
        return run.turns if self.in_table.keep_disturbed else run.quiet_turns

    @property
    def measured_runs(self) -> list[Run]:
        """Those of undisturbed rounds whose times are those of a whole training."""
        return [run for run in self.runs if run.is_measured and not self.leaves_out(run)]

    @property
    def measured(self) -> list[RunResult]:
        return [run.result for run in self.measured_runs if run.result]

    @property
    def typical_run(self) -> Run:
        """The run with the median duration of training and evaluation, which rows and figures show."""
        runs = self.measured_runs or self.runs
        return sorted(runs, key=lambda run: run.loop_seconds)[(len(runs) - 1) // 2]

    # --- What the columns are computed from ---

    @cached_property
    def small_set(self) -> SmallSet | None:
        return read_small_set(self.in_table.folder, self.in_table.variant, self.name)

    @cached_property
    def fit(self) -> Fit | None:
        return read_fit(self.in_table.folder, self.in_table.variant, self.name, self.runs)

    @cached_property
    def _proof(self) -> Proof:
        """That it is the first row's training; not known for the first row itself, and with `--verify never`."""
        table, first = self.in_table, self.in_table.reference
        if not table.verify or not self.runs or first is None or self.is_reference:
            return Proof(None)
        return judge(table.folder, table.variant, first.name, self.name, first.runs + self.runs)

    @cached_property
    def _audits(self) -> list[tuple[Run, Audits]]:
        """Those runs that were audited, with their audits; none with `--verify never`."""
        read = []
        for run in self.runs if self.in_table.verify else ():
            with suppress(UserError):  # a damaged file proves nothing, which a warning says
                if audits := read_audits(run.run_dir):
                    read.append((run, audits))
        return read

    @cached_property
    def _wrong_audits(self) -> list[tuple[str, Audit]]:
        """The audits of its runs, in 64 bits and timed, that have found a difference, with the runs' names."""
        table = self.in_table
        again = table.folder / proof_path(table.variant, self.name)
        wrong: list[tuple[str, Audit]] = []
        for where, folder in (
            ("64-bit run", FIRST_BATCH_DIR),
            ("repeated run", CLOSER_DIR),
            ("repeated run", SKIPPED_DIR),
        ):
            with suppress(UserError):
                if table.verify and (audits_again := read_audits(again / folder)):
                    wrong += [(where, audit) for audit in audits_again.different]
        for run, audits in self._audits:
            wrong += [(f"seed {run.record.seed}, round {run.record.round}", audit) for audit in audits.different]
        return wrong

    @cached_property
    def audit_failure(self) -> str | None:
        """What the audits of its runs have found wrong, for people; None if nothing.

        Replicas with different weights are wrong, too, with or without audits.
        """
        wrong = self._wrong_audits
        if not wrong:
            results = ((run.record, run.result) for run in self.runs if run.result and run.result.replicas_differ)
            return next((f"seed {of.seed}, round {of.round}, {result.replicas_differ}" for of, result in results), None)
        where, audit = wrong[0]
        more = f" (and {len(wrong) - 1} more audits)" if wrong[1:] else ""
        return f"{where}, {audit.what}: {audit.note}{more}"

    @cached_property
    def unexplained_jump(self) -> int | None:
        """The step at which its losses suddenly part from the first row's; None if not, or if that was looked into."""
        table, first = self.in_table, self.in_table.reference
        if first is None or self._proof.same is False:
            return None
        if is_audited(table.folder / proof_path(table.variant, self.name) / CLOSER_DIR):
            return None
        firsts = {run.record.seed: run for run in reversed(first.runs)}
        jumps = (jump_between(firsts[run.record.seed], run) for run in self.runs if run.record.seed in firsts)
        return next((step for step in jumps if step), None)

    @property
    def why_not_audited(self) -> str:
        """Why no step of its runs was audited."""
        notes = (audit.note for _, audits in self._audits for audit in audits.steps if audit.note)
        return next(notes, "there was no audit, or it failed")

    @cached_property
    def _status_and_notes(self) -> tuple[Status, list[str]]:
        """The status, and notes for people, which explain it."""
        reference, proof = self.in_table.reference, self._proof
        if not self.runs or reference is None:
            return "failed", [self._failures()]
        notes: list[str] = []
        status: Status = "ok"
        if self.in_table.apart and self.is_reference:
            notes.append(f"not in the same table as the runs above: {self.in_table.apart}")
        if self.failed:
            status = "some failed"
            notes.append(self._failures())
        if note := self._does_not_learn():
            status = "does not learn"
            notes.append(note)
        if self.audit_failure:
            only_evaluation = self._wrong_audits and all(audit.of_evaluation for _, audit in self._wrong_audits)
            status = "different evaluation" if only_evaluation and proof.same is not False else "different training"
            notes.append(f"it does not train as the formulas say, so no ratio is given: {self.audit_failure}")
            if proof.same is False and proof.note and not reference.audit_failure:
                notes.append(f"it trains differently from {reference.title}: {proof.note}")
        elif reference.audit_failure:
            status = "not proved"
            notes.append(f"no ratio is given, since {reference.title} trains differently; this row may be right")
        elif proof.same is False:
            status = "different evaluation" if (proof.note or "").startswith(OF_EVALUATION) else "different training"
            notes.append(f"it trains differently from {reference.title}, so no ratio is given: {proof.note}")
        elif proof.note:
            status = "not proved"
            notes.append(f"no ratio is given, since it may train differently from {reference.title}: {proof.note}")
        elif (
            self.in_table.verify
            and self.is_reference
            and (note := why_proof_does_not_fit(self.in_table.folder, self.in_table.variant, self.runs))
        ):
            status = "not proved"
            notes.append(note)
        own, first = warmup_steps(self.runs[0]), warmup_steps(reference.runs[0])
        if own != first and not rows_have_turns(reference, self):
            notes.append(f"no ratio is given: its clock starts after step {own}, and {reference.title}'s after {first}")
        if self._is_off_the_clock:
            share, of_first = (f"{row.share_off_the_clock:{SHARE}}" for row in (self, reference))
            where = "is in neither training nor evaluation"
            notes.append(
                f"no ratio is given: {share} of the time of its epochs {where}, {of_first} of {reference.title}'s"
            )
        if skipped := _largest(result.skipped_steps for result in self.results):
            notes.append(f"loss scaling skipped {skipped} of {self.results[0].num_steps} steps")
        if gone_on := sum(result.resumed_from is not None for result in self.results):
            notes.append(f"{gone_on} of {len(self.results)} runs continued from a checkpoint; their times are left out")
        notes += dict.fromkeys(result.processor_note for result in self.results if result.processor_note)
        return status, notes

    def _failures(self) -> str:
        first, number = self.failed[0].record.failure, len(self.failed)
        if self.runs:
            return f"{number} of {number + len(self.runs)} runs failed, the first one: {first}"
        return f"all {number} runs failed, the first one: {first}" if number > 1 else str(first)

    def _does_not_learn(self) -> str | None:
        """Why a row has the status "does not learn", for people; None if it does not have it."""
        own = self.small_set
        if own is None or own.steps is not None:
            return None
        able = [other.title for other in self.in_table.rows if other.small_set and other.small_set.steps is not None]
        look = f"{' and '.join(able)} did: look for a mistake in {self.title}"
        return f"it {own.found}; {look if able else 'no row did: look at the options first, such as the learning rate'}"

    @cached_property
    def _by_seed(self) -> list[list[RunResult]]:
        """The results of each seed."""
        return [[run.result for run in of_seed if run.result] for of_seed in runs_by_seed(self.runs).values()]

    @cached_property
    def _accuracy(self) -> Interval | None:
        means = [statistics.fmean(result.test_accuracy for result in of_seed) for of_seed in self._by_seed]
        return mean_interval(means) if means else None

    @cached_property
    def other_accuracy(self) -> str | None:
        """For people: that its accuracy differs from the first row's by more than chance explains; None otherwise."""
        reference = self.in_table.reference
        if reference is None or self.is_reference or not accuracies_differ_clearly(self.runs, reference.runs):
            return None
        shown = ", ".join(f"{row.title} {row.test_accuracy:{ACCURACY}}" for row in (self, reference))
        return f"accuracies differ by more than chance explains: {shown}"

    @cached_property
    def speeds(self) -> list[float]:
        """Images per second of the measured runs."""
        return [run.images_per_second for run in self.measured_runs if run.images_per_second]

    @cached_property
    def _speed_quartiles(self) -> tuple[float, float, float] | None:
        return quartiles(self.speeds) if len(self.speeds) >= MIN_FOR_QUARTILES else None

    @cached_property
    def _has_no_ratio(self) -> bool:
        """For a row that may train differently or off the clock; for all rows if the reference trains differently."""
        return self.status in (*DIFFERENT, "not proved") or self._is_off_the_clock

    @cached_property
    def share_off_the_clock(self) -> float:
        """Of the time of the typical run's epochs: the share that is neither training nor evaluation, in no speed."""
        between, *counted = (self.phases.get(phase, 0.0) for phase in ("between", "training", "evaluation"))
        return between / (between + sum(counted)) if between else 0.0

    @cached_property
    def _is_off_the_clock(self) -> bool:
        """Whether so much more of its time is in no speed than of the first row's that the speeds can't be compared."""
        first = self.in_table.reference
        return first is not None and abs(self.share_off_the_clock - first.share_off_the_clock) > MOST_OFF_THE_CLOCK

    @cached_property
    def _ratio(self) -> tuple[Ratio | None, int]:
        """The ratio to the first row, and the number of rounds that it is from; no ratio for the first row itself."""
        reference = self.in_table.reference
        if self._has_no_ratio or reference is None:
            return None, 0
        return (None, len(self.speeds)) if self.is_reference else speed_ratio(reference, self)

    @cached_property
    def phases(self) -> dict[Phase, float]:
        """The seconds of the typical run by phase."""
        return self.typical_run.phase_seconds if self.runs else {}

    @cached_property
    def reached_by(self) -> list[tuple[Run, Reach]] | None:
        """The runs that reached the target accuracy, and when they first did; None without a target."""
        accuracy = self.in_table.target_accuracy
        if accuracy is None or not self.runs:
            return None
        return [(run, reach) for run in self.runs if (reach := run.reach(accuracy))]

    def _of_all_reached(self, statistic: Callable[[list[float]], float], number: str) -> float | None:
        """None unless all runs reached the target: a mean over only those that did would look too good."""
        if not self.reached_by or len(self.reached_by) < len(self.runs):
            return None
        return statistic([getattr(reach, number) for _, reach in self.reached_by])

    @cached_property
    def _loss_differences(self) -> tuple[float | None, float | None]:
        """The largest difference in loss from the first row's runs of the same seed: in the first steps, and in all."""
        reference = self.in_table.reference
        by_seed: dict[int, Run] = {}
        for run in reference.runs if reference else ():
            by_seed.setdefault(run.record.seed, run)
        first, every = [], []
        for run in self.runs if not self.is_reference else ():
            if (other := by_seed.get(run.record.seed)) is None:
                continue
            differences = loss_differences(other.losses, run.losses)
            if len(differences):
                first.append(float(differences[:FIRST_STEPS].max()))
                every.append(float(differences.max()))
        return _largest(first), _largest(every)

    # --- Columns: which row it is ---

    @column()
    def table(self) -> int:
        """Number of the table, from 1; 0 if no run has succeeded."""
        return self.in_table.number if self.runs else 0

    @column()
    def variant(self) -> Values:
        """Of a sweep: `batch-size=32,devices=2`; empty if nothing is swept."""
        return self.in_table.variant

    @column()
    def implementation(self) -> str:
        """`tf`, `keras`, `pt`, `ptl`, `jax`, `keras_torch` or `keras_jax`."""
        return self.contender.implementation

    @column()
    def mode(self) -> Mode:
        """`tutorial`, `plain` or `tuned`."""
        return self.contender.mode

    @column()
    def status(self) -> Status:
        """`ok`, `failed`, `some failed`, `different training`, `different evaluation`, `not proved` or `does not
        learn`."""
        return self._status_and_notes[0]

    num_runs = count("Number of runs that have succeeded.", lambda row: len(row.runs))
    num_failed = count("Number of runs that have failed.", lambda row: len(row.failed))

    @column()
    def devices(self) -> int | None:
        """Number of replicas."""
        return self.results[0].devices if self.runs else None

    @column()
    def settings(self) -> str | None:
        """Precision, and whether compiled, as set by `--mode` or the options."""
        return describe_settings(self.results[0].config) if self.runs else None

    @column("learning\nrate", SWEEP_ACCURACY, form="g")
    def learning_rate(self) -> float | None:
        """The highest learning rate."""
        return self.results[0].config.learning_rate if self.runs else None

    # --- Columns: accuracy ---

    num_seeds = count("Number of seeds that accuracy and loss are averaged over.", lambda row: len(row._by_seed))

    @column("test\naccuracy", MAIN, SWEEP_ACCURACY, DECISION, form=ACCURACY)
    def test_accuracy(self) -> float | None:
        """Share of test images classified correctly: mean over seeds."""
        return self._accuracy and self._accuracy.estimate

    test_accuracy_low = number("Lower end of its 95 % interval.", lambda row: row._accuracy and row._accuracy.low)
    test_accuracy_high = number("Upper end of its 95 % interval.", lambda row: row._accuracy and row._accuracy.high)

    @shown("95 %\npoints", MAIN, SWEEP_ACCURACY, DECISION, form="±{:.2f}".format)
    def plus_minus(self) -> float | None:
        """Half the width of the accuracy's 95 % interval, in percentage points."""
        if self.test_accuracy_low is None or self.test_accuracy_high is None:
            return None
        return 50 * (self.test_accuracy_high - self.test_accuracy_low)

    @column("test\nloss", DETAILS, SWEEP_ACCURACY, form=LOSS)
    def test_loss(self) -> float | None:
        """Mean over seeds."""
        losses = [statistics.fmean(result.test_loss for result in of_seed) for of_seed in self._by_seed]
        return statistics.fmean(losses) if losses else None

    # --- Columns: speed ---

    @column("\nimages/s", MAIN, SWEEP_SPEED, DECISION, form=rate, best="fastest")
    def images_per_second(self) -> float | None:
        """Training images per second in usual turns: the median over the runs of undisturbed rounds."""
        return statistics.median(self.speeds) if self.speeds else None

    images_per_second_min = number("Lowest value of the same runs.", lambda row: min(row.speeds, default=None))
    images_per_second_q1 = number(
        "Lower quartile of the same runs; missing if there are fewer than four.",
        lambda row: row._speed_quartiles and row._speed_quartiles[0],
    )
    images_per_second_q3 = number("Upper quartile.", lambda row: row._speed_quartiles and row._speed_quartiles[2])
    images_per_second_max = number("Highest value of the same runs.", lambda row: max(row.speeds, default=None))

    @property
    def spread(self) -> tuple[float, float] | None:
        """The range of images per second: the quartiles or, with fewer than four runs, the lowest and the highest."""
        if self._speed_quartiles:
            return self._speed_quartiles[0], self._speed_quartiles[2]
        return (min(self.speeds), max(self.speeds)) if self.speeds else None

    @shown("of the\nfastest", DECISION, form=SHARE, best="fastest")
    def share_of_fastest(self) -> float | None:
        """The ratio to the fastest row's speed, where the difference is significant."""
        return self.in_table.shares_of_fastest.get(self.name)

    @shown("images/s\nspread", MAIN, SWEEP_SPEED)
    def shown_spread(self) -> str:
        low, high = self.spread or (None, None)
        return span(low, high, short_rate) if low != high else ""

    num_rounds = count("Number of rounds that the ratio is from.", lambda row: row._ratio[1])
    num_disturbed = count("Number of disturbed rounds.", lambda row: len(row.in_table.disturbed) if row.runs else 0)
    num_turns = count(
        "Number of turns that count: those in which no other program kept the machine busy.",
        lambda row: sum(len(row.turns(run)) for run in row.measured_runs),
    )

    @column()
    def stalled(self) -> float | None:
        """Share of these turns' time lost because slow turns last longer than usual ones, see
        [comparison.md](comparison.md#stalls)."""
        usual = time = 0.0
        for turns in map(self.turns, self.measured_runs):
            if turns:
                usual += sum(turn.images for turn in turns) / typical_speed([turn.images_per_second for turn in turns])
                time += sum(turn.seconds for turn in turns)
        return max(0.0, 1 - usual / time) if time else None

    ratio_min = number("Lowest ratio of a single round.", lambda row: row._ratio[0] and row._ratio[0].least)
    ratio_max = number("Highest ratio of a single round.", lambda row: row._ratio[0] and row._ratio[0].most)

    @column("\nratio", MAIN, SWEEP_SPEED, form=RATIO)
    def ratio(self) -> float | None:
        """Images per second divided by the first row's; missing if there are no turns and fewer than three rounds."""
        if self.is_reference:
            return 1.0 if self.speeds and not self._has_no_ratio else None
        return self._ratio[0] and self._ratio[0].estimate

    ratio_low = number("Lower end of its 95 % interval.", lambda row: row._ratio[0] and row._ratio[0].low)
    ratio_high = number("Upper end of its 95 % interval.", lambda row: row._ratio[0] and row._ratio[0].high)

    @shown("95 %\ninterval", MAIN, SWEEP_SPEED)
    def ratio_interval(self) -> str:
        return span(self.ratio_low, self.ratio_high)

    @shown("ratio in\nfew rounds", MAIN, SWEEP_SPEED)
    def few_rounds(self) -> str:
        if self.ratio is not None or self.ratio_min is None or self.ratio_max is None:
            return ""
        return least_most(self.ratio_min, self.ratio_max, to="-")

    @column("\nverdict", DETAILS)
    def verdict(self) -> Verdict | None:
        """`faster`, `slower` or `no difference shown`."""
        return self._ratio[0] and self._ratio[0].verdict

    # --- Columns: seconds ---

    @column("start-up\ns", DECISION, form=seconds, best="lowest")
    def startup_seconds(self) -> float | None:
        """From the command to the end of the first step: median over runs."""
        return _median(measurement.startup_seconds for measurement in self.measured)

    train_seconds = number(
        "Of training: median over runs.",
        lambda row: _median(sum(measurement.epoch_train_seconds) for measurement in row.measured),
    )
    eval_seconds = number(
        "Of evaluation: median over runs.",
        lambda row: _median(sum(measurement.eval_seconds) for measurement in row.measured),
    )

    @column("wall\ns", TIMES, form=seconds)
    def wall_seconds(self) -> float | None:
        """Of the run with the median duration, from before its process was started until it had ended; the next columns
        are phases of this run, which add up to it, see [comparison.md](comparison.md#where-the-time-goes)."""
        return sum(self.phases.values()) if self.runs else None

    (
        imports_seconds,
        data_seconds,
        build_seconds,
        training_seconds,
        evaluation_seconds,
        between_seconds,
        rest_seconds,
    ) = map(_phase_column, SHOWN_PHASES)

    # --- Columns: resources ---

    @column("memory\nMiB", TIMES, DECISION, form=mebibytes, best="lowest")
    def peak_memory_bytes(self) -> int | None:
        """The peak of all processes of a run together: the largest of all runs."""
        return _largest(result.peak_memory_bytes for result in self.results)

    @column("GPU memory\nMiB", DEVICE, DECISION, form=mebibytes, best="lowest")
    def device_peak_memory_bytes(self) -> int | None:
        """The peak on all GPUs of a run together: the largest of all runs."""
        return _largest(result.device_peak_memory_bytes for result in self.results)

    @column("CPU\nuse", TIMES, form=SHARE)
    def cpu_utilisation(self) -> float | None:
        """Share of the cores' time: median over runs."""
        return _median(result.cpu_utilisation for result in self.results)

    @column("GPU\nuse", DEVICE, form=SHARE)
    def gpu_utilisation(self) -> float | None:
        """Share of the GPUs' time: median over runs."""
        return _median(result.gpu_utilisation for result in self.results)

    @column("joules\nper image", DEVICE, DECISION, form=".2g", best="lowest")
    def joules_per_image(self) -> float | None:
        """Energy of the machine for each training image: median over runs."""
        return _median(measurement.joules_per_image for measurement in self.measured)

    # --- Columns: the target ---

    @column()
    def target_reached(self) -> int | None:
        """Number of runs that reached `--target-accuracy`."""
        return None if self.reached_by is None else len(self.reached_by)

    @shown("target\nreached", TARGET, SWEEP_ACCURACY)
    def reached(self) -> str:
        if self.target_reached is None:
            return ""
        if self.num_runs == 1:
            return "yes" if self.target_reached else "no"
        return f"{self.target_reached} of {self.num_runs}"

    @column("target\nepochs", TARGET, SWEEP_ACCURACY, form=".1f")
    def target_epochs(self) -> float | None:
        """Until the target was reached: mean, if all runs reached it."""
        return self._of_all_reached(statistics.fmean, "epochs")

    @column("target\nsteps", TARGET, SWEEP_ACCURACY, form=COUNT)
    def target_steps(self) -> float | None:
        """Until the target was reached: mean, if all runs reached it."""
        return self._of_all_reached(statistics.fmean, "steps")

    @column("target\ns", TARGET, SWEEP_ACCURACY, form=seconds)
    def target_seconds(self) -> float | None:
        """Of training and evaluation until the target, without start-up: mean, if all runs reached it."""
        return self._of_all_reached(statistics.fmean, "seconds")

    target_seconds_q1 = number(
        "Lower quartile of these seconds.",
        lambda row: row._of_all_reached(lambda found: quartiles(found)[0], "seconds"),
    )
    target_seconds_q3 = number(
        "Upper quartile.", lambda row: row._of_all_reached(lambda found: quartiles(found)[2], "seconds")
    )

    @shown("target s,\nmiddle half", TARGET)
    def target_spread(self) -> str:
        return span(self.target_seconds_q1, self.target_seconds_q3, seconds) if self.num_runs > 1 else ""

    @shown("start-up\ns", TARGET, form=seconds)
    def startup_before_target(self) -> float | None:
        return self.startup_seconds if self.target_reached is not None else None

    @shown("time to\ntarget s", DECISION, form=seconds, best="lowest")
    def measured_target_seconds(self) -> float | None:
        """Training and evaluation until --target-accuracy was reached, without start-up: mean over runs."""
        return self.target_seconds if self.images_per_second else None

    # --- Columns: the code ---

    @shown("lines\nof code", DECISION, best="lowest")
    def lines_of_code(self) -> int | None:
        """Of train.py and parts.py, and of tuning.py in mode tuned; not counted in mode tutorial."""
        return lines_of_training(self.implementation, self.mode)

    # --- Columns: lockstep ---

    @column()
    def same_training(self) -> bool | None:
        """Whether the 64-bit runs prove that it trains as the first row does, and no audit says otherwise; missing
        for the first row."""
        return False if self.audit_failure and not self.is_reference else self._proof.same

    @shown("same\ntraining", MAIN, SWEEP_ACCURACY)
    def same_as_first(self) -> str:
        if self.status in DIFFERENT:
            return "no"
        return "not proved" if self.status == "not proved" else "yes" if self.same_training else ""

    @shown("same\ntraining", DECISION)
    def same_or_first(self) -> str:
        """Whether the first steps in 64-bit precision prove it the same as the first row's."""
        return self.same_as_first or ("first row" if self.is_reference else "not checked")

    @column("largest difference\nin 64 bits", DETAILS, form=difference)
    def proof_difference(self) -> float | None:
        """Largest difference in the loss of a step in the 64-bit runs."""
        return self._proof.difference

    @column()
    def audited_steps(self) -> int:
        """Number of steps of its timed runs that were proved to match the formulas (docs/lockstep.md)."""
        return sum(audit.same is True for _, audits in self._audits for audit in audits.steps)

    @column(f"rounding\n1-{FIRST_STEPS}", DETAILS, form=difference)
    def loss_difference_first_steps(self) -> float | None:
        """Largest difference in the loss of one of the first ten steps, between runs of this row and the first row with
        the same seed: caused by rounding in the runs' own precision."""
        return self._loss_differences[0]

    @column("rounding\nall", DETAILS, form=difference)
    def loss_difference_all_steps(self) -> float | None:
        """The same, over all steps."""
        return self._loss_differences[1]

    # --- Columns: learning ---

    @column()
    def small_set_count(self) -> int | None:
        """With `--check-learning`: number of training images to memorise."""
        return self.small_set.count if self.runs and self.small_set else None

    @column()
    def small_set_steps(self) -> int | None:
        """Number of steps that this took; missing if the row did not memorise them ([learning.md](learning.md))."""
        return self.small_set.steps if self.runs and self.small_set else None

    @shown("images\nmemorised", LEARNING, SWEEP_LEARNING)
    def by_heart(self) -> str:
        count, steps = self.small_set_count, self.small_set_steps
        if count is None:
            return ""
        return f"{count} in {steps} steps" if steps is not None else f"not {count}"

    @column("training\nloss", LEARNING, SWEEP_LEARNING, form=LOSS)
    def train_loss(self) -> float | None:
        """With `--check-learning`: of the trained network with the first seed, evaluated on training images."""
        return self.fit and self.fit.train[-1].test_loss

    @shown("test\nloss", LEARNING, form=LOSS)
    def test_loss_beside(self) -> float | None:
        return self.test_loss if self.learning else None

    @column("training\naccuracy", LEARNING, SWEEP_LEARNING, form=ACCURACY)
    def train_accuracy(self) -> float | None:
        """Of the same network on the same images."""
        return self.fit and self.fit.train[-1].test_accuracy

    @column("\nlearning", LEARNING, SWEEP_LEARNING)
    def learning(self) -> Learned | None:
        """With `--check-learning`: `fits`, `underfits`, `overfits` or `learns nothing`."""
        return self.fit and self.fit.verdict

    @column()
    def learning_note(self) -> str | None:
        """The numbers behind the verdict, and what to try next."""
        return self.fit and self.fit.words

    # --- Columns: the rest ---

    @column()
    def note(self) -> str | None:
        """A line that explains the status."""
        return "; ".join(self._status_and_notes[1]) or None

    @column()
    def run_dirs(self) -> list[str]:
        """Folders of its runs, separated by spaces."""
        return [run.shown_dir(self.in_table.folder) for run in self.runs + self.failed]


def _median(values: Iterable[float | None]) -> float | None:
    """The median; None if any value is not known: a median of the others would be over other runs."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return statistics.median(known) if known and len(known) == len(numbers) else None


Number = TypeVar("Number", int, float)


def _largest(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


# --- Ratios of speeds ---


def speed_ratio(reference: Row, row: Row) -> tuple[Ratio | None, int]:
    """How many times as fast a row is as the reference, and the number of rounds that this is from.

    None if no round has both, or if other programs have disturbed all rounds.
    """
    pairs = paired_runs(reference, row)
    if rows_have_turns(reference, row):
        rounds = _rounds_of_turns(reference, row)
        return (ratio_of_turns(rounds), len(rounds)) if rounds else (None, 0)
    same_variant = row.in_table.variant == reference.in_table.variant
    speeds = [
        (run.images_per_second, other.images_per_second)
        for run, other in pairs
        if run.images_per_second
        and other.images_per_second
        and not (row.leaves_out(run) or reference.leaves_out(other))
        and not (same_variant and warmup_steps(run) != warmup_steps(other))
    ]
    return (paired_ratio(*zip(*speeds, strict=True)), len(speeds)) if speeds else (None, 0)


def rows_have_turns(reference: Row, row: Row) -> bool:
    """Whether the ratio of two rows is from pairs of turns, and not of whole runs."""
    # Programs of different variants were not alive together: the turns of their runs are no pairs.
    return row.in_table.variant == reference.in_table.variant and any(
        len(_cycles(run.turns) & _cycles(other.turns)) >= MIN_CYCLES for run, other in paired_runs(reference, row)
    )


def num_pairs(reference: Row, row: Row) -> int:
    """The number of pairs of turns that the ratio of two rows is from; 0 without turns."""
    if not rows_have_turns(reference, row):
        return 0
    return sum(map(len, _rounds_of_turns(reference, row)))


def paired_runs(reference: Row, row: Row) -> list[tuple[Run, Run]]:
    """The measured runs of a row, each with the reference's run of the same round, in the order of the rounds.

    A disturbed round is made again for its own variant only. So rows of different variants pair their undisturbed
    rounds in order: the first with the first, and so on.
    """

    def by_round(of_row: Row) -> dict[tuple[int, ...], Run]:
        runs = sorted((run for run in of_row.runs if run.is_measured), key=lambda run: run.round_key)
        if reference.in_table.variant == row.in_table.variant:
            return {(*run.round_key,): run for run in runs}
        counts = Counter[int]()
        undisturbed: dict[tuple[int, ...], Run] = {}
        for run in runs:
            if not of_row.leaves_out(run):
                undisturbed[run.record.seed, counts[run.record.seed]] = run
                counts[run.record.seed] += 1
        return undisturbed

    others = by_round(reference)
    pairs = [(run, others[key]) for key, run in by_round(row).items() if key in others]
    return sorted(pairs, key=lambda pair: (pair[0].record.round, pair[0].record.started))


def warmup_steps(run: Run) -> int | None:
    """The number of steps before the clock starts. Without turns, runs in which it differs are not compared."""
    return run.result.warmup_steps if run.result else None


def _rounds_of_turns(reference: Row, row: Row) -> list[list[tuple[tuple[int, int], float]]]:
    """The pairs of turns that count, for `ratio_of_turns`; without the rounds that have too few."""
    pairs = paired_runs(reference, row)
    rounds = [
        pairs_of_turns(row.turns(run), reference.turns(other), *_steps_per_epoch(run, other)) for run, other in pairs
    ]
    return [of_round for of_round in rounds if len(of_round) >= MIN_CYCLES]


def _steps_per_epoch(*runs: Run) -> list[int]:
    return [run.result.plan.steps_per_epoch for run in runs if run.result]


def _cycles(turns: Sequence[TurnLine]) -> set[int]:
    return {turn.cycle for turn in turns}
