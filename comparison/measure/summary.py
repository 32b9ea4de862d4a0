"""From runs to the results of a comparison, which tables, files, figures and the report show."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from comparison.lockstep import different_settings
from comparison.measure.cautions import find_cautions
from comparison.measure.rounds import disturbed_rounds, further_rounds
from comparison.measure.table import Row, Table
from comparison.plan.jobs import Job, comparison_jobs, contenders, make_variants, rate_search_jobs
from comparison.plan.request import Request
from comparison.run.store import Run, read_run, read_runs_again


@dataclass(frozen=True)
class Summary:
    """All that tables, figures and reports show.

    Attributes:
      folder: the comparison's folder.
      runs: all runs that have ended, including those that search for a learning rate.
      missing: how many runs are still to be made.
    """

    folder: Path
    request: Request
    tables: Sequence[Table]
    runs: Sequence[Run]
    missing: int
    warnings: list[str]

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables for row in table.rows]

    @property
    def succeeded(self) -> bool:
        """Whether all runs that were asked for have succeeded, and are the same training."""
        apart = any(table.apart for table in self.tables)
        return not self.missing and not apart and all(row.status == "ok" for row in self.rows)

    @property
    def numbered_runs(self) -> list[tuple[int, Run]]:
        """All runs, the earliest first, each with the number of its table; 0 if it is in no table."""
        numbers = {id(run): table.number for table in self.tables for row in table.rows for run in row.runs}
        runs = sorted(self.runs, key=lambda run: run.record.started)
        return [(numbers.get(id(run), 0), run) for run in runs]


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


def summarise(folder: Path, request: Request, runs: Sequence[Run], missing: int) -> Summary:
    """Tables and warnings, from the runs that have ended so far."""
    tables = make_tables(folder, request, runs)
    options = request.options
    warnings = find_cautions(tables, runs, options.verify != "never", options.repeats)
    return Summary(folder, request, tables, list(runs), missing, [*request.warnings, *warnings])


# --- Tables: their rows can be compared with each other ---


def make_tables(folder: Path, request: Request, runs: Sequence[Run]) -> list[Table]:
    """The tables of the runs in a comparison's folder; the tables of one variant follow each other."""
    options = request.options
    names = [contender.name for contender in contenders(options)]
    tables: list[Table] = []
    in_tables = [run for run in runs if not run.record.rate_search]
    for variant in {str(run.record.variant): run.record.variant for run in in_tables}.values():
        chosen = [run for run in in_tables if run.record.variant == variant]
        # In the order of the rows: the reference is the row that was asked for first, even if another one ran first.
        chosen.sort(key=lambda run: names.index(run.record.name))
        empty = partial(
            Table,
            variant=variant,
            folder=folder,
            target_accuracy=options.target_accuracy,
            verify=options.verify != "never",
            keep_disturbed=options.disturbed == "keep",
        )
        tables += _group(chosen, empty, len(tables) + 1)
    for table in tables:
        table.disturbed = disturbed_rounds([run for row in table.rows for run in row.runs])
    return tables


def _group(runs: Sequence[Run], empty: "partial[Table]", number: int) -> list[Table]:
    """The tables of one variant. A failed run is in the table of its row's other runs, else in the first table."""
    tables: list[Table] = []
    for run in runs:
        if run.result is None:
            continue
        table = next((candidate for candidate in tables if not _apart(candidate, run)), None)
        if table is None:
            apart = _apart(tables[0], run) if tables else []
            table = empty(number + len(tables), apart="; ".join(apart) or None)
            tables.append(table)
        _row(table, run).runs.append(run)
    tables = tables or [empty(number)]
    for run in runs:
        if run.result is None:
            table = next((candidate for candidate in tables if candidate.row(run.record.name)), tables[0])
            _row(table, run).failed.append(run)
    order = list(dict.fromkeys(run.record.name for run in runs))
    tables[0].rows.sort(key=lambda row: order.index(row.name))
    return tables


def _row(table: Table, run: Run) -> Row:
    """The row of a run, which is added to the table if it is missing."""
    row = table.row(run.record.name)
    if row is None:
        row = Row(table, run.record.contender)
        table.rows.append(row)
    return row


def _apart(table: Table, run: Run) -> list[str]:
    """The reasons why a run can't be in a table; empty if it can."""
    first, result = table.first_result, run.result
    assert first is not None and result is not None
    partner = table.same_seed(run)
    if partner and partner.result:
        differences = different_settings(partner.result, result)
    else:  # another seed: what depends on the seed may differ
        differences = different_settings(first, result, same_seed=False)
    row = table.row(run.record.name)
    # Only within the same row: frameworks may name the same device differently.
    names = [row.runs[0].result.device_name, result.device_name] if row and row.runs[0].result else []
    if len(set(names)) > 1:
        differences.append(f"device: {names[0]} and {names[1]}")
    return differences + first.machine.differences(result.machine)
