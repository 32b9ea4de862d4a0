"""A table: runs that can be compared with each other, by implementation and mode."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.record.results import RunResult
from common.spec.options import Mode
from comparison.intervals import Ratio, paired_ratio
from comparison.jobs import Values, row_name, row_title
from comparison.learning import Fit, SmallSet
from comparison.rounds import RoundKey
from comparison.row import Row
from comparison.store import Run


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

    @property
    def measured(self) -> list[RunResult]:
        """The results of runs whose times are those of a whole training; only of undisturbed runs, if there are any."""
        return [run.result for run in self.measured_runs if run.result]

    @property
    def measured_runs(self) -> list[Run]:
        measured = [run for run in self.runs if run.is_measured]
        quiet = [run for run in self.undisturbed if run.is_measured]
        return quiet or measured

    @property
    def typical_run(self) -> Run:
        """The run with the median duration, which rows and figures show."""
        runs = self.measured_runs or self.runs
        return sorted(runs, key=lambda run: run.record.process_seconds)[(len(runs) - 1) // 2]


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

    If all rounds were disturbed, there is no estimate, but only the lowest and the highest ratio of a round. None if no
    round has both.
    """
    if undisturbed := _pairs(reference.undisturbed, entry.undisturbed):
        return paired_ratio(*zip(*undisturbed, strict=True)), len(undisturbed)
    if disturbed := _pairs(reference.runs, entry.runs):
        ratio = paired_ratio(*zip(*disturbed, strict=True))
        return Ratio(ratio.least, ratio.most), len(disturbed)
    return None, 0


def _pairs(reference: Sequence[Run], runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Images per second of a run and of the reference's run, for each round that has both, in the order of rounds."""
    speeds = {run.round_key: run.images_per_second for run in reference}
    return [
        (run.images_per_second, speed)
        for run in sorted(runs, key=lambda run: (run.record.round, run.record.started))
        if run.images_per_second and (speed := speeds.get(run.round_key))
    ]
