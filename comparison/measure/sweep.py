"""A sweep as a study: a row for each variant and implementation; speed-up and efficiency over devices or nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from comparison.measure.row import Row
from comparison.measure.table import Table, speed_ratio
from comparison.plan.jobs import SCALED_OPTIONS, VariantValues
from comparison.ratios import Ratio


@dataclass(frozen=True)
class SweepRow:
    """One implementation in one variant.

    Attributes:
      x: the value on the axis, as text.
      series: its line in a plot: the implementation, and the values of all other options swept: `PyTorch, weak`.
      ratio: over the smallest number of devices, from pairs of the same round; None if not known, or not asked.
      ideal: what the ratio would be if every device were as fast as the first ones.
    """

    row: Row
    x: str
    series: str
    ratio: Ratio | None = None
    ideal: float | None = None

    @property
    def efficiency(self) -> float | None:
        """The ratio as a share of the ideal."""
        return self.ratio.estimate / self.ideal if self.ratio and self.ideal else None


@dataclass(frozen=True)
class SweepStudy:
    """The rows of a sweep, in the order of the swept values; for each value, in the order of the implementations.

    Attributes:
      option: the option on the axis: devices or num-nodes if one of them was swept, `total devices` if both were, else
        the first option of the sweep.
      is_scaled: whether the number of devices was swept.
      test_count: images in the test set.
    """

    option: str
    is_scaled: bool
    rows: list[SweepRow]
    test_count: int

    @property
    def numeric(self) -> bool:
        """Whether all values on the axis are numbers."""
        return bool(pd.to_numeric(pd.Series([row.x for row in self.rows]), errors="coerce").notna().all())


def make_sweep_study(tables: Sequence[Table]) -> SweepStudy | None:
    """The study of a sweep; None if nothing was swept, or no run has succeeded yet."""
    tables = [table for table in tables if table.variant and table.reference]
    if not tables:
        return None
    option = next(iter(tables[0].variant))
    scaled = [name for name in SCALED_OPTIONS if name in tables[0].variant]
    axis = "total devices" if len(scaled) > 1 else scaled[0] if scaled else option
    rows = []
    for row in (row for table in tables for row in table.finished):
        x = str(_devices(row)) if len(scaled) > 1 else row.variant[axis]
        # Of devices and nodes, both swept, the nodes tell series with the same total apart.
        others = [value for name, value in row.variant.items() if name not in (axis, *scaled[:-1])]
        speed_up = _speed_up(tables, row) if scaled else (None, None)
        rows.append(SweepRow(row, x, ", ".join([row.title, *others]), *speed_up))
    return SweepStudy(axis, bool(scaled), rows, min(row.row.results[0].test_count for row in rows))


def _speed_up(tables: Sequence[Table], row: Row) -> tuple[Ratio | None, float | None]:
    """The speed-up in images per second over the same row with the fewest devices, and the ideal speed-up."""

    def others(values: VariantValues) -> list[tuple[str, str]]:
        return [item for item in values.items() if item[0] not in (*SCALED_OPTIONS, "scaling")]

    every = [other for table in tables for other in table.finished]
    bases = [other for other in every if other.name == row.name and others(other.variant) == others(row.variant)]
    # With both scalings, one device is only listed under strong: it is the same experiment under weak.
    same = [other for other in bases if other.variant["scaling"] == row.variant["scaling"] or _devices(other) == 1]
    base = min(same, key=_devices)
    if _devices(base) > min(map(_devices, every)):
        return None, None  # its own runs with the fewest devices have failed: another base would change the ideal
    ratio = speed_ratio(base, row)
    if ratio is None:
        return None, None
    return Ratio(1.0, 1) if base is row else ratio, _devices(row) / _devices(base)


def _devices(row: Row) -> int:
    """The number of devices on all nodes."""
    return row.results[0].config.all_devices
