"""From runs to the results of a comparison, which tables, files, figures and the report show."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from common.record.results import EpochLine, TurnLine
from comparison.lockstep import different_settings
from comparison.measure.cautions import find_cautions
from comparison.measure.columns import columns_of
from comparison.measure.frames import frame_fields, lines_frame, lines_of_runs, lines_of_turns, make_frame, runs_frame
from comparison.measure.rounds import is_round_disturbed, is_round_due
from comparison.measure.row import Row
from comparison.measure.sweep import SweepStudy, make_sweep_study
from comparison.measure.table import Table, speed_ratio
from comparison.plan.jobs import (
    Job,
    Variant,
    comparison_jobs,
    contenders,
    jobs_of_round,
    make_variants,
    planned_rounds,
    rate_search_jobs,
    variant_name,
)
from comparison.plan.options import CompareConfig
from comparison.plan.request import Request
from comparison.ratios import MIN_ROUNDS
from comparison.run.store import Run, read_run, read_runs_again


class Comparison:
    """The results of `compare.py` so far, also as DataFrames. docs/columns.md says what is in each column.

    Attributes:
      folder: the comparison's folder.
      ended: all runs that have ended, including those that search for a learning rate.
      missing: how many runs are still to be made.
      lines: a line for each run, the earliest first, with what rows are computed from, see `lines_of_runs`.
      tables: rows that can be compared with each other; the tables of one variant follow each other.
      warnings: a line each, on what might mislead a reader of the rows.
    """

    def __init__(self, folder: Path, request: Request, ended: Sequence[Run], missing: int) -> None:
        self.folder, self.request, self.ended, self.missing = folder, request, [*ended], missing
        options = request.options
        names = [contender.name for contender in contenders(options)]
        # In the order of the rows: the reference is the row that was asked for first, even if another one ran first.
        runs = sorted(ended, key=lambda run: names.index(run.record.name))
        numbers, apart = _number_tables(ended, runs)
        lines = lines_of_runs(folder, runs, numbers)
        turns = lines_of_turns(lines)
        self.tables = make_tables(folder, options, lines, turns)
        self.lines = lines.sort_values("started", kind="stable", ignore_index=True)
        for table in self.tables:
            table.apart = apart.get(table.number)
        self.warnings = [*request.warnings, *find_cautions(self.tables, self.lines, turns, options)]

    @property
    def all_rows(self) -> list[Row]:
        return [row for table in self.tables for row in table.rows]

    @cached_property
    def study(self) -> SweepStudy | None:
        """The study of a sweep; None if nothing was swept, or no run has succeeded yet."""
        return make_sweep_study(self.tables)

    @property
    def succeeded(self) -> bool:
        """Whether all runs that were asked for have succeeded, and are the same training."""
        apart = any(table.apart for table in self.tables)
        return not self.missing and not apart and all(row.status == "ok" for row in self.all_rows)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line for each run, the earliest first, as in `runs.csv`; `run_dir` is its folder, relative to `folder`."""
        return runs_frame(self.lines)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """A line for each evaluation of each run that has succeeded; `run_dir` names the run."""
        return lines_frame(
            self.lines, self.runs, frame_fields(EpochLine), lambda run: [dict(line) for line in run.epochs]
        )

    @cached_property
    def turns(self) -> pd.DataFrame:
        """A line for each turn of each run that has succeeded, see `common.record.results.TurnLine`; `run_dir` names
        the run. The runs of a round that have the same cycle trained within the same seconds."""
        columns = {**frame_fields(TurnLine), "images_per_second": float}

        def turns(run: Run) -> list[dict[str, Any]]:
            return [dict(turn) | {"images_per_second": turn.images_per_second} for turn in run.turns]

        return lines_frame(self.lines, self.runs, columns, turns)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A line for each training step of each run that has succeeded; `run_dir` names the run."""

        def steps(run: Run) -> list[dict[str, Any]]:
            epoch_of = run.result.plan.epoch_of if run.result else int
            return [{"epoch": epoch_of(step), "step": step, "loss": loss} for step, loss in enumerate(run.losses, 1)]

        return lines_frame(self.lines, self.runs, {"epoch": int, "step": int, "loss": float}, steps)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A line for each row of the tables, as in `results.csv`."""
        columns = columns_of(Row)
        lines = ({column.name: getattr(row, column.name) for column in columns} for row in self.all_rows)
        return make_frame(lines, {column.name: column.type for column in columns})


# --- Which runs there are, and which are missing ---


def find_runs(folder: Path, request: Request, failed: bool = True) -> tuple[list[Run], list[Job]]:
    """The runs that have ended, and the jobs still to be made. Without `failed`, failed runs are to be made again."""
    options, variants = request.options, make_variants(request.options, request.config)

    known: dict[Path, Run | None] = {}
    again: list[Run] = []  # made once more for a further group of the round

    def read(job: Job) -> Run | None:
        if job.path not in known:
            run = read_run(folder, job)
            known[job.path] = None if run is None or (run.result is None and not failed) else run
            again.extend(read_runs_again(folder, job) if known[job.path] else ())
        return known[job.path]

    jobs = [*rate_search_jobs(options, variants), *comparison_jobs(options, variants)]
    missing = [job for job in jobs if read(job) is None]
    further, to_be_taken = further_rounds(options, variants, read)
    return [*(run for job in jobs if (run := read(job))), *further, *again], missing or to_be_taken


def further_rounds(
    options: CompareConfig, variants: Sequence[Variant], read: Callable[[Job], Run | None]
) -> tuple[list[Run], list[Job]]:
    """Of the rounds after those of `comparison_jobs`: the runs that have ended, and the jobs to be made next.

    There are such rounds instead of disturbed ones, at the end, when the disturbance may be over, and with
    --ratio-within until the intervals are narrow enough. Rounds that have been made are returned even if the options
    no longer ask for them.

    Args:
      read: returns the run of a job, or None if it has not ended.
    """
    runs: list[Run] = []
    missing: list[Job] = []
    first = planned_rounds(options)
    in_turns = options.turns == "auto" and len(contenders(options)) > 1
    has_ratio = in_turns or options.repeats * len(options.seeds) >= MIN_ROUNDS
    for variant in variants:
        for seed in options.seeds:
            disturbed: list[bool] = []
            of_seed: list[Run] = []
            while True:
                due = is_round_due(disturbed, options.repeats, _is_narrow(options, of_seed))
                jobs = jobs_of_round(options, variant, seed, len(disturbed) + 1)
                of_round = [run for job in jobs if (run := read(job))]
                of_seed += of_round
                disturbed.append(has_ratio and any(map(is_round_disturbed, of_round)))
                if len(disturbed) > first:
                    runs += of_round
                    missing += [job for job in jobs if due and read(job) is None]
                if len(of_round) < len(jobs):
                    break
    return runs, missing


def _is_narrow(options: CompareConfig, runs: Sequence[Run]) -> bool:
    """Whether the intervals of all ratios to the first row are as narrow as --ratio-within asks."""
    share = options.ratio_within
    if share is None or not runs:
        return False
    names = [contender.name for contender in contenders(options)]
    in_order = sorted(runs, key=lambda run: names.index(run.record.name))
    lines = lines_of_runs(Path("/"), in_order, [1] * len(runs))
    (table,) = make_tables(Path("/"), options, lines, lines_of_turns(lines))
    first, *others = table.rows
    ratios = [speed_ratio(first, other) for other in others if len(other.runs)]
    return len(first.runs) > 0 and all(ratio is not None and ratio.is_within(share) for ratio in ratios)


# --- Tables: their rows can be compared with each other ---


def make_tables(folder: Path, options: CompareConfig, runs: pd.DataFrame, turns: pd.DataFrame) -> list[Table]:
    """The tables of the runs that are shown in one, with their rows in the order of the runs."""
    turns_of = dict(iter(turns.groupby(["table", "name"])))
    tables: dict[int, Table] = {}
    for key, lines in runs[runs["table"] > 0].groupby(["table", "name"], sort=False):
        record, number = lines["run"].iloc[0].record, int(lines["table"].iloc[0])
        table = tables.setdefault(number, Table(number, record.variant, folder, options))
        failed = lines["failure"].notna()
        its_turns = turns_of.get(key, turns.iloc[:0])
        table.rows.append(Row(table, record.contender, lines[~failed], lines[failed], its_turns))
    return [tables[number] for number in sorted(tables)]


def _number_tables(ended: Sequence[Run], runs: Sequence[Run]) -> tuple[list[int], dict[int, str]]:
    """For each of `runs`, the number of its table, or 0; and number -> why a table is not the first of its variant.

    A failed run is in the table of its row's other runs, else in the first table of its variant.

    Args:
      ended: the same runs; the first ones of each variant say which variant is first.
    """
    numbers: dict[int, int] = {}  # by the id of a run
    apart: dict[int, str] = {}
    first = 1  # the number of the variant's first table
    for name in dict.fromkeys(variant_name(run.record.variant) for run in ended if not run.record.rate_search):
        of_variant = [run for run in runs if variant_name(run.record.variant) == name and not run.record.rate_search]
        tables: list[dict[tuple[str, int], Run]] = []  # by name and seed, the first run
        for run in (run for run in of_variant if run.result):
            place = next((place for place, table in enumerate(tables) if not _apart(table, run)), len(tables))
            if place == len(tables):
                if tables:
                    apart[first + place] = "; ".join(_apart(tables[0], run))
                tables.append({})
            tables[place].setdefault((run.record.name, run.record.seed), run)
            numbers[id(run)] = first + place
        for run in of_variant:
            places = (place for place, table in enumerate(tables) if any(key[0] == run.record.name for key in table))
            numbers.setdefault(id(run), first + next(places, 0))
        first += max(1, len(tables))
    return [numbers.get(id(run), 0) for run in runs], apart


def _apart(table: dict[tuple[str, int], Run], run: Run) -> list[str]:
    """The reasons why a run can't be in a table; empty if it can. The table is name and seed -> the first run."""
    first, result = next(iter(table.values())).result, run.result
    assert first is not None and result is not None
    partner = next((other.result for (_, seed), other in table.items() if seed == run.record.seed), None)
    # With another seed, what depends on the seed may differ.
    differences = different_settings(partner or first, result, same_seed=partner is not None)
    # Only within the same row: frameworks may name the same device differently.
    names = [other.result.device_name for (name, _), other in table.items() if name == run.record.name and other.result]
    if names and names[0] != result.device_name:
        differences.append(f"device: {names[0]} and {result.device_name}")
    return differences + first.machine.differences(result.machine)
