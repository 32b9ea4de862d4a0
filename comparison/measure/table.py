"""A table: runs that can be compared with each other, by implementation and mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.record.results import RunResult, TurnLine
from common.spec.options import Mode
from comparison.intervals import MIN_CYCLES, Ratio, paired_ratio, ratio_of_turns, typical_speed
from comparison.measure.row import Row
from comparison.plan.jobs import Values, row_name, row_title
from comparison.prove.learning import Fit, SmallSet
from comparison.run.store import RoundKey, Run


@dataclass
class Entry:
    """The runs of one implementation in one mode in a table, and their row.

    Attributes:
      disturbed: rounds of the table that other programs have disturbed.
      keep_disturbed: whether these rounds still count.
      small_set, fit: the results of `--check-learning`; None if learning was not checked.
    """

    implementation: str
    mode: Mode
    variant: Values
    runs: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    disturbed: frozenset[RoundKey] = frozenset()
    keep_disturbed: bool = False
    small_set: SmallSet | None = None
    fit: Fit | None = None
    row: Row | None = None

    @property
    def name(self) -> str:
        return row_name(self.implementation, self.mode)

    @property
    def title(self) -> str:
        return row_title(self.implementation, self.mode)

    @property
    def results(self) -> list[RunResult]:
        return [run.result for run in self.runs if run.result]

    @property
    def undisturbed(self) -> list[Run]:
        """The runs of undisturbed rounds; with `keep_disturbed` all runs."""
        return [run for run in self.runs if not self.leaves_out(run)]

    def leaves_out(self, run: Run) -> bool:
        """Whether a run of the table does not count, because its round was disturbed."""
        return not self.keep_disturbed and (run.record.seed, run.record.round) in self.disturbed

    def turns(self, run: Run) -> list[TurnLine]:
        """The turns of a run that count: none of a round that does not count."""
        if self.leaves_out(run):
            return []
        return run.turns if self.keep_disturbed else run.quiet_turns

    @property
    def stalled(self) -> float | None:
        """Share of the time of all turns that count which slow ones take longer than usual ones; None without turns."""
        usual = seconds = 0.0
        for turns in map(self.turns, self.measured_runs):
            if turns:
                usual += sum(turn.images for turn in turns) / typical_speed([turn.images_per_second for turn in turns])
                seconds += sum(turn.seconds for turn in turns)
        return max(0.0, 1 - usual / seconds) if seconds else None

    @property
    def measured(self) -> list[RunResult]:
        """The results of undisturbed runs whose times are those of a whole training."""
        return [run.result for run in self.measured_runs if run.result]

    @property
    def measured_runs(self) -> list[Run]:
        return [run for run in self.undisturbed if run.is_measured]

    @property
    def typical_run(self) -> Run:
        """The run with the median duration of training and evaluation, which rows and figures show."""
        runs = self.measured_runs or self.runs
        return sorted(runs, key=lambda run: run.loop_seconds)[(len(runs) - 1) // 2]


@dataclass
class Table:
    """Entries that can be compared with each other; the first one with runs is the reference.

    Attributes:
      number: from 1, counted over the whole comparison.
      apart: why its runs are not in the first table of the variant; None for the first table itself.
    """

    number: int
    variant: Values
    entries: list[Entry] = field(default_factory=list)
    apart: str | None = None

    @property
    def reference(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.runs), None)

    @property
    def first_result(self) -> RunResult | None:
        return self.reference.runs[0].result if self.reference else None

    @property
    def rows(self) -> list[Row]:
        return [entry.row for entry in self.entries if entry.row]

    @property
    def same_seed_runs(self) -> dict[str, Run]:
        """Name of a row -> its first run with the seed of the first row's first run; rows without one are left out."""
        return same_seed_runs([entry for entry in self.entries if entry.runs])

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def same_seed(self, run: Run) -> Run | None:
        """The first run of the table with the same seed; None if there is none."""
        runs = (one for entry in self.entries for one in entry.runs if one.record.seed == run.record.seed)
        return next(runs, None)


def same_seed_runs(entries: Sequence[Entry]) -> dict[str, Run]:
    """See `Table.same_seed_runs`; each of `entries` must have runs."""
    found = {}
    for entry in entries:
        seed = entries[0].runs[0].record.seed
        run = next((run for run in entry.runs if run.record.seed == seed), None)
        if run:
            found[entry.name] = run
    return found


def speed_ratio(reference: Entry, entry: Entry) -> tuple[Ratio | None, int]:
    """How many times as fast an entry is as the reference, and the number of rounds that this is from.

    None if no round has both, or if other programs have disturbed all rounds.
    """
    pairs = paired_runs(reference, entry)
    if have_turns(reference, entry):
        rounds = _rounds_of_turns(reference, entry)
        return (ratio_of_turns(rounds), len(rounds)) if rounds else (None, 0)
    speeds = [
        (run.images_per_second, other.images_per_second)
        for run, other in pairs
        if run.images_per_second
        and other.images_per_second
        and not (entry.leaves_out(run) or reference.leaves_out(other))
    ]
    return (paired_ratio(*zip(*speeds, strict=True)), len(speeds)) if speeds else (None, 0)


def have_turns(reference: Entry, entry: Entry) -> bool:
    """Whether the ratio of two entries is from pairs of turns, and not of whole runs."""
    # Programs of different variants were not alive together: the turns of their runs are no pairs.
    return entry.variant == reference.variant and any(
        len(_cycles(run.turns) & _cycles(other.turns)) >= MIN_CYCLES for run, other in paired_runs(reference, entry)
    )


def num_pairs(reference: Entry, entry: Entry) -> int:
    """The number of pairs of turns that the ratio of two entries is from; 0 without turns."""
    if not have_turns(reference, entry):
        return 0
    return sum(map(len, _rounds_of_turns(reference, entry)))


def paired_runs(reference: Entry, entry: Entry) -> list[tuple[Run, Run]]:
    """The measured runs of an entry, each with the reference's run of the same round, in the order of the rounds."""
    others = {run.round_key: run for run in reference.runs if run.is_measured}
    pairs = [(run, others[run.round_key]) for run in entry.runs if run.is_measured and run.round_key in others]
    return sorted(pairs, key=lambda pair: (pair[0].record.round, pair[0].record.started))


def _rounds_of_turns(reference: Entry, entry: Entry) -> list[list[tuple[tuple[int, int], float]]]:
    """The pairs of turns that count, for `ratio_of_turns`; without the rounds that have too few."""
    pairs = paired_runs(reference, entry)
    rounds = [
        pairs_of_turns(entry.turns(run), reference.turns(other), *_steps_per_epoch(run, other)) for run, other in pairs
    ]
    return [of_round for of_round in rounds if len(of_round) >= MIN_CYCLES]


def _steps_per_epoch(*runs: Run) -> list[int]:
    return [run.result.plan.steps_per_epoch for run in runs if run.result]


def _cycles(turns: Sequence[TurnLine]) -> set[int]:
    return {turn.cycle for turn in turns}


def pairs_of_turns(
    turns: Sequence[TurnLine], reference: Sequence[TurnLine], steps_per_epoch: int, reference_steps_per_epoch: int
) -> list[tuple[tuple[int, int], float]]:
    """For turns of the same cycle: how many epochs begin in each, and the logarithm of the ratio of their speeds."""
    by_cycle = {turn.cycle: turn for turn in reference}
    pairs = []
    for turn in turns:
        if (paired := by_cycle.get(turn.cycle)) is not None:
            starts = turn.epochs_begun(steps_per_epoch), paired.epochs_begun(reference_steps_per_epoch)
            pairs.append((starts, math.log(turn.images_per_second / paired.images_per_second)))
    return pairs
