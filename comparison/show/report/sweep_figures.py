"""The charts of a sweep: one for each quantity that has values, over the swept values."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import altair as alt
import pandas as pd

from comparison.measure.sweep import SweepRow, SweepStudy
from comparison.show.report.charts import INK, MARK_SHAPES, Chart, RowLooks, looks_of_rows
from comparison.show.report.curve_figures import accuracy_scale

Band = tuple[float | None, float | None, float | None]  # a value, and the lower and the upper end of its band
SPEED_UP, ACCURACY = "speed-up", "final-accuracy"


def study_charts(study: SweepStudy) -> Iterator[Chart]:
    """A chart for each quantity that has values, over the swept values, with a line for each series."""
    yield from _chart(
        study,
        SPEED_UP,
        "Speed-up in images per second",
        "Speed relative to that with the fewest devices. Dotted: the ideal, twice as fast with twice as many."
        " Bands: 95 % intervals.",
        lambda row: (row.ratio.estimate, row.ratio.low, row.ratio.high) if row.ratio else (None, None, None),
    )
    yield from _chart(
        study,
        "images-per-second",
        "Images per second",
        "Medians over rounds. Bands: the middle half of the rounds or, with fewer than four, lowest to highest.",
        lambda row: (row.row.images_per_second, row.row.images_per_second_low, row.row.images_per_second_high),
    )
    yield from _chart(
        study,
        "target-steps",
        "Steps to the target accuracy",
        "Means over the runs, where all of them reached the target.",
        lambda row: (row.row.target_steps, None, None),
    )
    yield from _chart(
        study,
        "target-seconds",
        "Seconds to the target accuracy",
        "Training and evaluation, without start-up: means over the runs, where all of them reached the target.",
        lambda row: (row.row.target_seconds, None, None),
    )
    yield from _chart(
        study,
        ACCURACY,
        "Final test accuracy, %",
        "Means over seeds. Bands: 95 % intervals.",
        lambda row: (row.row.test_accuracy, row.row.test_accuracy_low, row.row.test_accuracy_high),
    )


def _chart(study: SweepStudy, name: str, label: str, about: str, values: Callable[[SweepRow], Band]) -> Iterator[Chart]:
    """The chart of a quantity, unless no row has a value of it.

    Args:
      label: the title of its axis.
      about: what the marks mean.
      values: the value of a row and the ends of its band; None if not known, or if the chart has no bands.
    """
    looks = _looks(study)
    data = [(series, row.x, *values(row)) for series in looks.titles for row in _members(study, series)]
    table = pd.DataFrame(data, columns=["row", "x", "value", "low", "high"]).dropna(subset="value")
    if table.empty:
        return
    if study.numeric:
        table["x"] = table["x"].astype(float)
    axis = _axis(study)
    y = alt.Y("value:Q", title=label).scale(zero=False)
    layers: list[alt.Chart] = []
    if name == ACCURACY:
        table[["value", "low", "high"]] *= 100
        y = y.scale(accuracy_scale(table["value"].tolist(), study.test_count))
    if name == SPEED_UP:
        y = y.scale(zero=True)
        ideal = pd.DataFrame({"x": float(row.x), "value": row.ideal} for row in study.rows if row.ideal)
        dotted = alt.Chart(ideal.drop_duplicates("x")).mark_line(color=INK, strokeDash=[2, 3], strokeWidth=1.5)
        layers.append(dotted.encode(axis, alt.Y("value:Q")))
    layers.append(alt.Chart(table).mark_line().encode(axis, y, *looks.line()))
    points = alt.Chart(table).mark_point(filled=True, size=60, opacity=1)
    layers.append(points.encode(axis, y, looks.colour(legend=True), looks.shape(legend=True)))
    if table["low"].notna().any():
        bands = alt.Chart(table).mark_rule(strokeWidth=6, opacity=0.3)
        layers.append(bands.encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), looks.colour(legend=True)))
    yield Chart(f"sweep-{name}", f"{label} by {study.option}", about, layers)


def _members(study: SweepStudy, series: str) -> list[SweepRow]:
    members = [row for row in study.rows if row.series == series]
    if series.endswith("weak") and all(row.x != "1" for row in members):
        # With one device, weak scaling is the same experiment as strong scaling, which alone lists it.
        strong = f"{series.removesuffix('weak')}strong"
        members += [row for row in study.rows if (row.series, row.x) == (strong, "1")]
    return members


def _axis(study: SweepStudy) -> alt.X:
    """The x axis, with a mark for each value; logarithmic if the largest value is much larger than the smallest."""
    labels = list(dict.fromkeys(row.x for row in study.rows))
    if not study.numeric:
        return alt.X("x:N", title=study.option, sort=labels).axis(labelAngle=0, grid=True)
    places = [float(label) for label in labels]
    axis = alt.X("x:Q", title=study.option).axis(values=places, format="~g", grid=True)
    wide = min(places) > 0 and max(places) / min(places) >= 4
    return axis.scale(type="log", base=2, nice=False) if wide else axis.scale(zero=False, nice=False)


def _looks(study: SweepStudy) -> RowLooks:
    """The look of each series: it has the colour of its row and its own shape; lines of weak scaling are dashed."""
    of_series = {row.series: row.row for row in study.rows}
    rows = {row.row.name: row.row for row in study.rows}
    of_row = looks_of_rows([*rows.values()]).of
    alone = len(of_series) == len(rows)
    looks = {}
    for number, (series, row) in enumerate(of_series.items()):
        look = of_row[row.title]
        dashes = [6, 3] if "weak" in series else look.dashes if alone else [1, 0]
        looks[series] = replace(look, width=2.0, shape=MARK_SHAPES[number % len(MARK_SHAPES)], dashes=dashes)
    return RowLooks(looks, points=True)
