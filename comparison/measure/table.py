"""`Table`: runs that can be compared. `RunsOfRow`: those of one implementation in one mode. Ratios of their speeds."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.record.results import RunResult
from common.record.timeline import Phase
from comparison.measure.frames import ROUND_COLUMNS
from comparison.plan.jobs import Contender, VariantValues
from comparison.plan.options import CompareConfig
from comparison.ratios import MIN_CYCLES, Ratio, paired_ratio, ratio_of_turns
from comparison.run.store import Run

MOST_OFF_THE_CLOCK = 0.25  # of the time of a row's epochs: above it there is a warning


@dataclass(eq=False)
class Table:
    """Rows that can be compared with each other; the first one with runs is the reference.

    Attributes:
      number: from 1, counted over the whole comparison.
      variant: the values of a sweep's options.
      folder, options: of the comparison.
      apart: why its runs are not in the first table of the variant; None for the first table itself.
    """

    number: int
    variant: VariantValues
    folder: Path
    options: CompareConfig
    apart: str | None = None
    rows: list[Any] = field(default_factory=list, repr=False)

    @cached_property
    def reference(self) -> Any:
        return next(iter(self.finished), None)

    @property
    def finished(self) -> list[Any]:
        """The rows with a run that has succeeded."""
        return [row for row in self.rows if len(row.runs)]

    @property
    def first_result(self) -> RunResult | None:
        return self.reference.first if self.reference else None

    @property
    def verify(self) -> bool:
        """Whether rows must be proved to be the same training."""
        return self.options.verify != "never"

    @cached_property
    def num_disturbed(self) -> int:
        """The number of rounds that other programs have disturbed."""
        runs = pd.concat([row.runs for row in self.rows])
        return len(runs.loc[runs["disturbed"], ["seed", "round"]].drop_duplicates())


@dataclass(eq=False)
class RunsOfRow:
    """The runs of one implementation in one mode in a table.

    Attributes:
      runs, failed: the lines of those that have succeeded, and of those that have failed, see `lines_of_runs`.
      turns: the lines of its turns, see `lines_of_turns`.
    """

    in_table: Table
    contender: Contender
    runs: pd.DataFrame
    failed: pd.DataFrame
    turns: pd.DataFrame

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def title(self) -> str:
        """`PyTorch`; `PyTorch plain` in a table with several modes."""
        modes = {row.contender.mode for row in self.in_table.rows}
        return (
            f"{self.contender.title} plain"
            if self.contender.mode == "plain" and modes != {"plain"}
            else self.contender.title
        )

    @property
    def is_reference(self) -> bool:
        return self is self.in_table.reference

    @cached_property
    def results(self) -> list[RunResult]:
        return [run.result for run in self.runs["run"]]

    @property
    def first(self) -> RunResult | None:
        """The result of its first run; None if all have failed."""
        return self.results[0] if self.results else None

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The runs whose times count: of a whole training, in a round that is not left out."""
        return self.runs[self.runs["whole"] & ~self.runs["left_out"]]

    @cached_property
    def started_alone(self) -> pd.DataFrame:
        """Those of them that trained without turns: for turns, several programs start side by side."""
        return self.measured[~self.measured["in_turns"]]

    @cached_property
    def typical_run(self) -> Run:
        """The run with the median duration of training and evaluation."""
        runs = self.measured if len(self.measured) else self.runs
        ordered: list[Run] = sorted(runs["run"], key=lambda run: run.loop_seconds)
        return ordered[(len(ordered) - 1) // 2]

    @cached_property
    def counting_turns(self) -> pd.DataFrame:
        return self.turns[self.turns["counts"] & self.turns["whole"]]

    @cached_property
    def phases(self) -> dict[Phase, float]:
        """The seconds of the typical run by phase."""
        return self.typical_run.phase_seconds if len(self.runs) else {}

    @cached_property
    def share_off_the_clock(self) -> float:
        """Of the time of the typical run's epochs: the share that is neither training nor evaluation, in no speed."""
        between, *counted = (self.phases.get(phase, 0.0) for phase in ("between", "training", "evaluation"))
        return between / (between + sum(counted)) if between else 0.0

    @cached_property
    def is_off_the_clock(self) -> bool:
        """Whether so much more of its time is in no speed than of the first row's that the speeds can't be compared."""
        first = self.in_table.reference
        return first is not None and abs(self.share_off_the_clock - first.share_off_the_clock) > MOST_OFF_THE_CLOCK

    @cached_property
    def same_seed(self) -> list[tuple[Run, Run]]:
        """Its runs, each with the first row's first run with the same seed; runs without one are left out."""
        reference = self.in_table.reference
        firsts = {run.record.seed: run for run in reversed([*reference.runs["run"]])} if reference else {}
        return [(run, firsts[run.record.seed]) for run in self.runs["run"] if run.record.seed in firsts]


# --- Ratios of speeds. Tables, charts and sentences ask for the same ones, so the latest are kept ---


@lru_cache
def speed_ratio(reference: RunsOfRow, row: RunsOfRow) -> Ratio | None:
    """How many times as fast a row is as the reference.

    None if no round has both, or if other programs have disturbed all rounds.
    """
    if have_turns(turns := paired_turns(reference, row)):
        starts = ["epochs_begun", "epochs_begun_of_reference"]
        rounds = [
            list(zip(pairs[starts].itertuples(index=False), np.log(pairs["ratio"]), strict=True))
            for _, pairs in turns[turns["counts"]].groupby(ROUND_COLUMNS)
        ]
        return ratio_of_turns(rounds) if rounds else None
    pairs = paired_speeds(reference, row)
    return paired_ratio(pairs["speed"].tolist(), pairs["speed_of_reference"].tolist()) if len(pairs) else None


@lru_cache
def paired_turns(reference: RunsOfRow, row: RunsOfRow) -> pd.DataFrame:
    """A line for each turn of a row with the reference's turn of the same round and cycle, and the `ratio` of speeds.

    `counts` says whether both turns count, and at least MIN_CYCLES pairs of their round do.
    """
    # Programs of different variants were not alive together: the turns of their runs are no pairs.
    if row.in_table.variant != reference.in_table.variant or not len(row.turns) or not len(reference.turns):
        return row.turns.iloc[:0]
    turns, others = (of_row.turns[of_row.turns["whole"]] for of_row in (row, reference))
    of_other = others[[*ROUND_COLUMNS, "cycle", "images_per_second", "epochs_begun", "counts"]]
    pairs = turns.merge(of_other, on=[*ROUND_COLUMNS, "cycle"], suffixes=("", "_of_reference"))
    pairs["ratio"] = pairs["images_per_second"] / pairs["images_per_second_of_reference"]
    pairs["counts"] &= pairs["counts_of_reference"]
    pairs["counts"] &= pairs.groupby(ROUND_COLUMNS)["counts"].transform("sum") >= MIN_CYCLES
    return pairs


def have_turns(turns: pd.DataFrame) -> bool:
    """Whether the ratio of two rows is from these pairs of turns, and not from pairs of whole runs."""
    return len(turns) > 0 and bool(turns.groupby(ROUND_COLUMNS).size().max() >= MIN_CYCLES)


def paired_speeds(reference: RunsOfRow, row: RunsOfRow) -> pd.DataFrame:
    """`speed` of a row's measured runs with `speed_of_reference` of the same round, in the order of the rounds.

    A disturbed round is made again for its own variant only. So rows of different variants pair their undisturbed
    rounds in order: the first with the first, and so on. In one variant, runs with different numbers of steps before
    the clock starts are no pair.
    """
    in_order = row.in_table.variant != reference.in_table.variant
    keys = ["seed", "number"] if in_order else [*ROUND_COLUMNS, "warmup_steps"]

    def timed(of_row: RunsOfRow) -> pd.DataFrame:
        runs = of_row.measured.dropna(subset="speed").sort_values(ROUND_COLUMNS)
        return runs.assign(number=runs.groupby("seed").cumcount())

    pairs = timed(row).merge(timed(reference), on=keys, suffixes=("", "_of_reference"))
    return pairs.sort_values(["round", "started"])[["speed", "speed_of_reference"]]


def num_pairs(reference: RunsOfRow, row: RunsOfRow) -> int:
    """The number of pairs of turns that the ratio of two rows is from; 0 without turns."""
    return int(paired_turns(reference, row)["counts"].sum())
