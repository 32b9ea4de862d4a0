"""The charts of a table, in the order of the page: first those to decide by, then those of the training."""

from collections.abc import Iterator

from comparison.report.charts import Chart
from comparison.report.confusion import confusions
from comparison.report.curve_figures import curves, lockstep
from comparison.report.learning_figures import learning_curves
from comparison.report.speed_figures import breakdown, ratios, throughput, time_to_target
from comparison.report.turn_figures import turns
from comparison.table import Table


def table_charts(table: Table, target_accuracy: float | None = None) -> Iterator[Chart]:
    """All charts for which the runs of a table have numbers."""
    entries = [entry for entry in table.entries if entry.runs]
    if not entries:
        return
    yield from throughput(entries)
    yield from ratios(entries)
    yield from turns(entries)
    yield from time_to_target(entries, target_accuracy)
    yield from breakdown(entries)
    yield from curves(entries)
    yield from learning_curves(entries)
    yield from lockstep(entries)
    yield from confusions(entries)
