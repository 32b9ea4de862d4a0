"""The charts of a sweep: one for each quantity that has values, over the swept values."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import pandas as pd

from comparison import numbers
from comparison.measure.sweep import Study, StudyRow
from comparison.show.report.charts import HEIGHT, INK, Chart
from comparison.show.report.curve_figures import accuracy_scale
from comparison.show.report.looks import SHAPES, Looks, switch, told_by_pointer

REACHED = "Means over the runs, where all of them reached it."
Value = Callable[[StudyRow], float | None]
Spread = Callable[[StudyRow], tuple[float | None, float | None]]


@dataclass(frozen=True)
class SweepChart:
    """The quantity that a chart shows: name of its files, title of its axis, number format, meaning of its marks."""

    name: str
    label: str
    form: str
    value: Value
    spread: Spread | None = None
    about: str = ""


def study_charts(study: Study) -> Iterator[Chart]:
    """A chart for each quantity that has values, over the swept values, with a line for each series."""
    quantities = [
        SweepChart(
            "speed-up",
            "Speed-up in images per second",
            numbers.RATIO,
            _speed_up,
            _speed_up_spread,
            "Times as fast as with the fewest devices. Dotted: the ideal, twice as fast with twice as many."
            " Bands: 95 % intervals.",
        ),
        SweepChart("efficiency", "Efficiency", ".1%", _efficiency, None, "The speed-up as a share of the ideal one."),
        SweepChart(
            "images-per-second",
            "Images per second",
            numbers.COUNT,
            lambda one: one.row.images_per_second,
            lambda one: one.row.spread or (None, None),
            "Medians over rounds. Bands: the middle half of them, or from the least to the most of fewer than four.",
        ),
        SweepChart(
            "target-epochs",
            "Epochs to the target accuracy",
            ".1f",
            lambda one: one.row.target_epochs,
            None,
            REACHED,
        ),
        SweepChart(
            "target-steps",
            "Steps to the target accuracy",
            numbers.COUNT,
            lambda one: one.row.target_steps,
            None,
            REACHED,
        ),
        SweepChart(
            "target-seconds",
            "Seconds to the target accuracy",
            numbers.SECONDS,
            lambda one: one.row.target_seconds,
            lambda one: (one.row.target_seconds_q1, one.row.target_seconds_q3),
            "Of training and evaluation, without start-up. Bands: the middle half of the runs.",
        ),
        SweepChart(
            "final-accuracy",
            "Final test accuracy, %",
            numbers.PERCENT,
            lambda one: _percent(one.row.test_accuracy),
            lambda one: (_percent(one.row.test_accuracy_low), _percent(one.row.test_accuracy_high)),
            "Means over seeds. Bands: 95 % intervals.",
        ),
        SweepChart("final-loss", "Final test loss", numbers.LOSS, lambda one: one.row.test_loss),
    ]
    for quantity in quantities:
        if any(quantity.value(one) is not None for one in study.rows):
            yield _study_chart(study, quantity)


def _study_chart(study: Study, quantity: SweepChart) -> Chart:
    found: list[dict[str, Any]] = []
    words, looks = [], _looks(study)
    for number, series in enumerate(looks.titles):
        members = [one for one in study.rows if one.series == series or _also_in(one, series, study)]
        known = [(one, value) for one in members if (value := quantity.value(one)) is not None]
        for one, value in known:
            low, high = quantity.spread(one) if quantity.spread else (None, None)
            x = float(one.x) if study.numeric else one.x
            found.append({"row": series, "key": f"row{number}", "x": x, "value": value, "low": low, "high": high})
        if known:
            words.append(f"{series} " + ", ".join(f"{value:{quantity.form}} at {one.x}" for one, value in known))
    table = pd.DataFrame(found)
    axis = _axis(study)
    y = alt.Y("value:Q", title=quantity.label).scale(zero=False)
    if quantity.name == "final-accuracy":
        y = y.scale(accuracy_scale(table["value"].tolist(), study.test_count))
    layers: list[alt.Chart] = []
    if quantity.name in ("speed-up", "efficiency"):
        y = y.scale(zero=True)
        layers.append(_ideal(study, axis, shares=quantity.name == "efficiency"))
    chosen = switch()
    lines = alt.Chart(table).encode(axis, y, *looks.line())
    layers.append(lines.mark_line().add_params(chosen).transform_filter(chosen))
    points = alt.Chart(table).transform_filter(chosen).mark_point(filled=True, size=60, opacity=1)
    layers.append(points.encode(axis, y, looks.colour(legend=True), looks.shape(legend=True)))
    if table["low"].notna().any():
        bands = alt.Chart(table).transform_filter(chosen).mark_rule(strokeWidth=6, opacity=0.3)
        layers.append(bands.encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), looks.colour(legend=True)))
    titles = {f"row{number}": series for number, series in enumerate(looks.titles)}
    layers.append(told_by_pointer(table[["x", "key", "value"]], axis, titles, quantity.form, study.option))
    title = f"{quantity.label} by {study.option}"
    return Chart(
        f"sweep-{quantity.name}",
        title,
        quantity.about,
        f"{title}: {'; '.join(words)}",
        layers,
        HEIGHT - 30 + looks.legend_height,
    )


def _axis(study: Study) -> alt.X:
    """The x axis, with a mark for each value; logarithmic if the largest value is much larger than the smallest."""
    labels = list(dict.fromkeys(one.x for one in study.rows))
    if not study.numeric:
        return alt.X("x:N", title=study.option, sort=labels).axis(labelAngle=0, grid=True)
    places = [float(label) for label in labels]
    axis = alt.X("x:Q", title=study.option).axis(values=places, format="~g", grid=True)
    wide = min(places) > 0 and max(places) / min(places) >= 4
    return axis.scale(type="log", base=2, nice=False) if wide else axis.scale(zero=False, nice=False)


def _ideal(study: Study, x: alt.X, shares: bool) -> alt.Chart:
    """A dotted line for the ideal speed-up, proportional to the devices; `shares`: for the ideal efficiency, 1."""
    ideal = {float(one.x): one.ideal for one in study.rows if one.ideal}
    table = pd.DataFrame({"x": [*ideal], "value": [1.0 if shares else value for value in ideal.values()]})
    line: alt.Chart = alt.Chart(table).mark_line(color=INK, strokeDash=[2, 3], strokeWidth=1.5)
    return line.encode(x, alt.Y("value:Q"), tooltip=[alt.Tooltip("value:Q", title="ideal", format=numbers.RATIO)])


def _looks(study: Study) -> Looks:
    """The look of each series: it has the colour of its row and its own shape; lines of weak scaling are dashed."""
    of_series = {one.series: one.row for one in study.rows}
    rows = {one.row.name: one.row.title for one in study.rows}
    of_row = Looks.make([*rows], [*rows.values()]).of
    alone = len(of_series) == len(rows)
    found = {}
    for number, (series, row) in enumerate(of_series.items()):
        look = replace(of_row[row.title], width=2.0, shape=SHAPES[number % len(SHAPES)])
        dashes = [6, 3] if "weak" in series else look.dashes if alone else [1, 0]
        found[series] = replace(look, dashes=dashes)
    return Looks(found, points=True)


def _also_in(one: StudyRow, series: str, study: Study) -> bool:
    """Whether a row is also the first one of weak scaling: with one device, strong and weak are the same experiment."""
    strong = re.sub(r"\bweak$", "strong", series)
    has_first = any(other.series == series and other.x == "1" for other in study.rows)
    return study.kind == "devices" and one.x == "1" and one.series == strong != series and not has_first


def _speed_up(one: StudyRow) -> float | None:
    """The speed-up. With too few rounds for a ratio: the geometric mean of the lowest and the highest one."""
    ratio = one.speed_up
    return (ratio.estimate or math.sqrt(ratio.least * ratio.most)) if ratio else None


def _efficiency(one: StudyRow) -> float | None:
    speed_up = _speed_up(one)
    return speed_up / one.ideal if speed_up and one.ideal else None


def _speed_up_spread(one: StudyRow) -> tuple[float | None, float | None]:
    ratio = one.speed_up
    if ratio is None:
        return None, None
    return (ratio.least, ratio.most) if ratio.estimate is None else (ratio.low, ratio.high)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
