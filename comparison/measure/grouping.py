"""Groups raw runs into tables: the runs of a table can be compared with each other."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from comparison.lockstep import different_settings
from comparison.measure.rounds import disturbed_rounds
from comparison.measure.table import Row, Table
from comparison.plan.jobs import contenders
from comparison.plan.request import Request
from comparison.run.store import Run


def make_tables(folder: Path, request: Request, runs: Sequence[Run]) -> list[Table]:
    """The tables of the runs in a comparison's folder; the tables of one variant follow each other."""
    options = request.options
    names = [contender.name for contender in contenders(options)]
    tables: list[Table] = []
    in_tables = [run for run in runs if not run.record.tuning]
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
        table = next((one for one in tables if not _apart(one, run)), None)
        if table is None:
            apart = _apart(tables[0], run) if tables else []
            table = empty(number + len(tables), apart="; ".join(apart) or None)
            tables.append(table)
        _row(table, run).runs.append(run)
    tables = tables or [empty(number)]
    for run in runs:
        if run.result is None:
            table = next((one for one in tables if one.row(run.record.name)), tables[0])
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
        found = different_settings(partner.result, result)
    else:  # another seed: what depends on the seed may differ
        found = different_settings(first, result, same_seed=False)
    row = table.row(run.record.name)
    # Only within the same row: frameworks may name the same device differently.
    names = [row.runs[0].result.device_name, result.device_name] if row and row.runs[0].result else []
    if len(set(names)) > 1:
        found.append(f"device: {names[0]} and {names[1]}")
    return found + first.machine.differences(result.machine)
