"""A sweep as a study: a row for each variant and implementation; speed-up and efficiency over devices or nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from comparison.measure.columns import shown
from comparison.measure.comparison import Comparison
from comparison.measure.row import SWEEP_SPEED, Row
from comparison.measure.table import Table, speed_ratio
from comparison.numbers import RATIO, SHARE, least_most, span
from comparison.plan.jobs import SCALED, Values
from comparison.ratios import Ratio

Axis = Literal["devices", "batch-size", "other"]


@dataclass(frozen=True)
class SweepRow:
    """One implementation in one variant.

    Attributes:
      x: the value on the axis, as text.
      series: its line in a plot: the implementation, and the values of all other options swept: `PyTorch, weak`.
      speed_up: over the smallest number of devices, from pairs of the same round; None if not known, or not asked.
      ideal: what the speed-up would be if every device were as fast as the first ones.
    """

    row: Row
    x: str
    series: str
    speed_up: Ratio | None = None
    ideal: float | None = None

    @shown("\nspeed-up", SWEEP_SPEED)
    def shown_speed_up(self) -> str:
        if self.speed_up is None:
            return ""
        if self.speed_up.estimate is None:
            return least_most(self.speed_up.least, self.speed_up.most, to="-")
        return format(self.speed_up.estimate, RATIO)

    @shown("95 %\ninterval ", SWEEP_SPEED)  # with a space: the table has the interval of the ratio, too
    def speed_up_interval(self) -> str:
        return span(self.speed_up.low, self.speed_up.high) if self.speed_up else ""

    @shown("\nefficiency", SWEEP_SPEED)
    def efficiency(self) -> str:
        return least_most(self.efficiencies[0], self.efficiencies[-1], SHARE, to="-") if self.efficiencies else ""

    @property
    def efficiencies(self) -> tuple[float, ...]:
        """The speed-up as a share of the ideal; with too few rounds, the lowest and the highest; empty if not known."""
        if self.speed_up is None or self.ideal is None:
            return ()
        estimate, ideal = self.speed_up.estimate, self.ideal
        return (self.speed_up.least / ideal, self.speed_up.most / ideal) if estimate is None else (estimate / ideal,)


@dataclass(frozen=True)
class Study:
    """The rows of a sweep, in the order of the swept values; for each value, in the order of the implementations.

    Attributes:
      option: the option on the axis: devices or num-nodes if one of them was swept, `total devices` if both were, else
        the first option of the sweep.
      test_count: images in the test set.
    """

    option: str
    kind: Axis
    rows: list[SweepRow]
    test_count: int

    @property
    def numeric(self) -> bool:
        """Whether all values on the axis are numbers."""
        return all(_is_number(row.x) for row in self.rows)


def make_sweep_study(comparison: Comparison) -> Study | None:
    """The study of a sweep; None if nothing was swept, or no run has succeeded yet."""
    tables = [table for table in comparison.tables if table.variant and table.reference]
    if not tables:
        return None
    option = next(iter(tables[0].variant))
    scaled = [name for name in SCALED if name in tables[0].variant]
    kind: Axis = "devices" if scaled else "batch-size" if option == "batch-size" else "other"
    axis = "total devices" if len(scaled) > 1 else scaled[0] if scaled else option
    rows = []
    for table in tables:
        for row in table.finished:
            x = str(_num_devices(row)) if len(scaled) > 1 else table.variant[axis]
            # Of devices and nodes, both swept, the nodes tell series with the same total apart.
            others = [value for name, value in table.variant.items() if name not in (axis, *scaled[:-1])]
            series = ", ".join([row.title, *others])
            speed_up = _speed_up(tables, row) if kind == "devices" else (None, None)
            rows.append(SweepRow(row, x, series, *speed_up))
    return Study(axis, kind, rows, min(result.test_count for table in tables if (result := table.first_result)))


def _num_devices(row: Row) -> int:
    """The number of devices on all nodes of a row with runs."""
    return row.results[0].config.all_devices


def _speed_up(tables: Sequence[Table], row: Row) -> tuple[Ratio | None, float | None]:
    """The speed-up in images per second over the same row with the fewest devices, and the ideal speed-up."""

    def others(values: Values) -> list[tuple[str, str]]:
        return [item for item in values.items() if item[0] not in (*SCALED, "scaling")]

    every = [other for table in tables for other in table.finished]
    bases = [other for other in every if other.name == row.name and others(other.variant) == others(row.variant)]
    # With both scalings, one device is only listed under strong: it is the same experiment under weak.
    same = [other for other in bases if other.variant["scaling"] == row.variant["scaling"] or _num_devices(other) == 1]
    base = min(same, key=_num_devices)
    if _num_devices(base) > min(map(_num_devices, every)):
        return None, None  # its own runs with the fewest devices have failed: another base would change the ideal
    ratio, _ = speed_ratio(base, row)
    if ratio is None:
        return None, None
    return Ratio(1.0, 1.0, 1.0) if base is row else ratio, _num_devices(row) / _num_devices(base)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
