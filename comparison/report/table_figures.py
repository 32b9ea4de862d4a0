"""The charts of a table, in the order of the page: those that decide, then those that prove."""

from collections.abc import Iterator

from comparison.report.charts import Chart
from comparison.report.confusion import confusions
from comparison.report.curve_figures import curves, lockstep
from comparison.report.speed_figures import breakdown, ratios, throughput, time_to_target
from comparison.table import Table


def table_charts(table: Table, target_accuracy: float | None = None) -> Iterator[Chart]:
    """All that can be drawn from the runs of a table; nothing of what it has no numbers for."""
    entries = [entry for entry in table.entries if entry.runs]
    if not entries:
        return
    yield from throughput(entries)
    yield from ratios(entries)
    yield from time_to_target(entries, target_accuracy)
    yield from breakdown(entries)
    yield from curves(entries)
    yield from lockstep(entries)
    yield from confusions(entries)
