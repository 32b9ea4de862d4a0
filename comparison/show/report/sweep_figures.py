"""The charts of a sweep: one for each quantity that has values, over the swept values."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from comparison.measure.sweep import Study, SweepRow
from comparison.show.report.charts import HEIGHT, INK, Chart
from comparison.show.report.curve_figures import accuracy_scale
from comparison.show.report.looks import SHAPES, Looks, looks_of_rows

Band = tuple[float | None, float | None, float | None]  # a value, and the lower and the upper end of its band


class Quantity(NamedTuple):
    """What a chart shows.

    Attributes:
      name: of its files.
      label: the title of its axis.
      values: the value of a row and the ends of its band; None if not known, or if the chart has no bands.
      about: what the marks mean.
    """

    name: str
    label: str
    values: Callable[[SweepRow], Band]
    about: str


QUANTITIES = [
    Quantity(
        "speed-up",
        "Speed-up in images per second",
        lambda row: (row.ratio.estimate, row.ratio.low, row.ratio.high) if row.ratio else (None, None, None),
        "Speed relative to that with the fewest devices. Dotted: the ideal, twice as fast with twice as many."
        " Bands: 95 % intervals.",
    ),
    Quantity(
        "images-per-second",
        "Images per second",
        lambda row: (row.row.images_per_second, row.row.images_per_second_low, row.row.images_per_second_high),
        "Medians over rounds. Bands: the middle half of the rounds or, with fewer than four, lowest to highest.",
    ),
    Quantity(
        "target-steps",
        "Steps to the target accuracy",
        lambda row: (row.row.target_steps, None, None),
        "Means over the runs, where all of them reached the target.",
    ),
    Quantity(
        "target-seconds",
        "Seconds to the target accuracy",
        lambda row: (row.row.target_seconds, None, None),
        "Training and evaluation, without start-up: means over the runs, where all of them reached the target.",
    ),
    Quantity(
        "final-accuracy",
        "Final test accuracy, %",
        lambda row: (row.row.test_accuracy, row.row.test_accuracy_low, row.row.test_accuracy_high),
        "Means over seeds. Bands: 95 % intervals.",
    ),
]


def study_charts(study: Study) -> Iterator[Chart]:
    """A chart for each quantity that has values, over the swept values, with a line for each series."""
    for quantity in QUANTITIES:
        if any(quantity.values(row)[0] is not None for row in study.rows):
            yield _study_chart(study, quantity)


def _study_chart(study: Study, quantity: Quantity) -> Chart:
    looks, percent = _looks(study), 100 if quantity.name == "final-accuracy" else 1
    data: list[dict[str, Any]] = []
    for series in looks.titles:
        members = [row for row in study.rows if row.series == series or _also_in(row, series, study)]
        for row in members:
            value, low, high = (None if value is None else percent * value for value in quantity.values(row))
            if value is not None:
                x = float(row.x) if study.numeric else row.x
                data.append({"row": series, "x": x, "value": value, "low": low, "high": high})
    table = pd.DataFrame(data)
    axis = _axis(study)
    y = alt.Y("value:Q", title=quantity.label).scale(zero=False)
    if quantity.name == "final-accuracy":
        y = y.scale(accuracy_scale(table["value"].tolist(), study.test_count))
    layers: list[alt.Chart] = []
    if quantity.name == "speed-up":
        y = y.scale(zero=True)
        layers.append(_ideal(study, axis))
    layers.append(alt.Chart(table).mark_line().encode(axis, y, *looks.line()))
    points = alt.Chart(table).mark_point(filled=True, size=60, opacity=1)
    layers.append(points.encode(axis, y, looks.colour(legend=True), looks.shape(legend=True)))
    if table["low"].notna().any():
        bands = alt.Chart(table).mark_rule(strokeWidth=6, opacity=0.3)
        layers.append(bands.encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), looks.colour(legend=True)))
    title = f"{quantity.label} by {study.option}"
    return Chart(f"sweep-{quantity.name}", title, quantity.about, layers, HEIGHT - 30 + looks.legend_height)


def _axis(study: Study) -> alt.X:
    """The x axis, with a mark for each value; logarithmic if the largest value is much larger than the smallest."""
    labels = list(dict.fromkeys(row.x for row in study.rows))
    if not study.numeric:
        return alt.X("x:N", title=study.option, sort=labels).axis(labelAngle=0, grid=True)
    places = [float(label) for label in labels]
    axis = alt.X("x:Q", title=study.option).axis(values=places, format="~g", grid=True)
    wide = min(places) > 0 and max(places) / min(places) >= 4
    return axis.scale(type="log", base=2, nice=False) if wide else axis.scale(zero=False, nice=False)


def _ideal(study: Study, x: alt.X) -> alt.Chart:
    """A dotted line for the ideal speed-up, proportional to the devices."""
    ideal = {float(row.x): row.ideal for row in study.rows if row.ideal}
    table = pd.DataFrame({"x": [*ideal], "value": [*ideal.values()]})
    line: alt.Chart = alt.Chart(table).mark_line(color=INK, strokeDash=[2, 3], strokeWidth=1.5)
    return line.encode(x, alt.Y("value:Q"))


def _looks(study: Study) -> Looks:
    """The look of each series: it has the colour of its row and its own shape; lines of weak scaling are dashed."""
    of_series = {row.series: row.row for row in study.rows}
    rows = {row.row.name: row.row for row in study.rows}
    of_row = looks_of_rows([*rows.values()]).of
    alone = len(of_series) == len(rows)
    looks = {}
    for number, (series, row) in enumerate(of_series.items()):
        look = replace(of_row[row.title], width=2.0, shape=SHAPES[number % len(SHAPES)])
        dashes = [6, 3] if "weak" in series else look.dashes if alone else [1, 0]
        looks[series] = replace(look, dashes=dashes)
    return Looks(looks, points=True)


def _also_in(row: SweepRow, series: str, study: Study) -> bool:
    """Whether a row is also the first one of weak scaling: with one device, strong and weak are the same experiment."""
    strong = re.sub(r"\bweak$", "strong", series)
    if study.kind != "devices" or row.x != "1" or row.series != strong or strong == series:
        return False
    return not any(other.series == series and other.x == "1" for other in study.rows)
