"""Groups raw runs into tables: the runs of a table can be compared with each other."""

from collections.abc import Sequence
from pathlib import Path

from comparison.lockstep import different_settings
from comparison.measure.rounds import disturbed_rounds
from comparison.measure.row_values import make_row
from comparison.measure.table import Entry, Table
from comparison.plan.jobs import Values
from comparison.prove.learning import read_fit, read_small_set
from comparison.run.store import Run


def make_tables(
    folder: Path,
    runs: Sequence[Run],
    names: Sequence[str],
    target_accuracy: float | None,
    verify: bool = True,
    keep_disturbed: bool = False,
) -> list[Table]:
    """The tables of the runs in a comparison's folder; the tables of one variant follow each other.

    Args:
      names: the names of the rows, in their order in a table.
      verify: whether rows must be proved to be the same training.
      keep_disturbed: whether rounds that other programs have disturbed count like all others.
    """
    tables: list[Table] = []
    variants: list[Values] = []
    for run in runs:
        if run.record.variant not in variants and not run.record.tuning:
            variants.append(run.record.variant)
    for variant in variants:
        chosen = [run for run in runs if run.record.variant == variant and not run.record.tuning]
        # In the order of the rows: the reference is the row that was asked for first, even if another one ran first.
        chosen.sort(key=lambda run: names.index(run.record.name))
        found = _group(chosen, variant, len(tables) + 1)
        for table in found:
            disturbed = disturbed_rounds([run for entry in table.entries for run in entry.runs])
            for entry in table.entries:
                entry.disturbed, entry.keep_disturbed = disturbed, keep_disturbed
                entry.small_set = read_small_set(folder, variant, entry.name)
                entry.fit = read_fit(folder, variant, entry.name, entry.runs)
            for entry in table.entries:
                entry.row = make_row(folder, table, entry, target_accuracy, verify)
        tables += found
    return tables


def _group(runs: Sequence[Run], variant: Values, number: int) -> list[Table]:
    """The tables of one variant. A failed run is in the table of its row's other runs, else in the first table."""
    tables: list[Table] = []
    for run in runs:
        if run.result is None:
            continue
        table = next((one for one in tables if not _apart(one, run)), None)
        if table is None:
            apart = _apart(tables[0], run) if tables else []
            table = Table(number + len(tables), variant, apart="; ".join(apart) or None)
            tables.append(table)
        entry = table.entry(run.record.name)
        if entry is None:
            entry = Entry(run.record.implementation, run.record.mode, variant)
            table.entries.append(entry)
        entry.runs.append(run)
    if not tables:
        tables.append(Table(number, variant))
    order = list(dict.fromkeys(run.record.name for run in runs))
    for run in runs:
        if run.result is not None:
            continue
        entry = next((one for table in tables if (one := table.entry(run.record.name))), None)
        if entry is None:
            entry = Entry(run.record.implementation, run.record.mode, variant)
            tables[0].entries.append(entry)
        entry.failed.append(run)
    tables[0].entries.sort(key=lambda entry: order.index(entry.name))
    return tables


def _apart(table: Table, run: Run) -> list[str]:
    """The reasons why a run can't be in a table; empty if it can."""
    first, result = table.first_result, run.result
    assert first is not None and result is not None
    partner = table.same_seed(run)
    if partner and partner.result:
        found = different_settings(partner.result, result)
    else:  # another seed: what depends on the seed may differ
        found = different_settings(first, result, same_seed=False)
    entry = table.entry(run.record.name)
    # Only within the same row: frameworks may name the same device differently.
    names = [entry.runs[0].result.device_name, result.device_name] if entry and entry.runs[0].result else []
    if len(set(names)) > 1:
        found.append(f"device: {names[0]} and {names[1]}")
    return found + first.machine.differences(result.machine)
