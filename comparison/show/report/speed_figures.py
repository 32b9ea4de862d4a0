"""The charts of a table to decide by: throughput, speed ratio, time to the target accuracy, where the time goes."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import pandas as pd

from common.record.timeline import SHOWN_PHASES
from comparison.measure.table import ABOUT_PHASES, Row
from comparison.numbers import ACCURACY, COUNT, RATIO, SECONDS, SHARE, between
from comparison.run.store import Run
from comparison.show.report.charts import INK, PAPER, Chart
from comparison.show.report.looks import Looks, legend_height

PHASE_COLOURS = ("#56B4E9", "#009E73", "#F0E442", "#D55E00", "#0072B2", "#CC79A7", "#999999")
RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50, 100)
LEAST_SPAN = 1.6  # of a logarithmic axis: highest over lowest value; with less it would have only one or two ticks
LINE = 36  # height in pixels of a row in a bar chart
AXIS = 50  # height in pixels of the axis below the rows


def looks_of_rows(rows: Sequence[Row]) -> Looks:
    return Looks.make([row.name for row in rows], [row.title for row in rows])


def throughput(rows: Sequence[Row]) -> Iterator[Chart]:
    """Each row has a bar up to its median, a line for the spread, and a dot for each run (a ring if disturbed)."""
    shown = [row for row in rows if row.images_per_second]
    if not shown:
        return
    medians, dots, words = [], [], []
    for row in shown:
        assert row.spread and row.images_per_second
        low, high = row.spread
        medians.append({"row": row.title, "value": row.images_per_second, "low": low, "high": high})
        dots += [_dot(row, run, run.images_per_second) for run in row.runs if run.images_per_second]
        words.append(f"{row.title} {row.images_per_second:{COUNT}}")
    about = "A bar ends at the median of the rounds. A dot is a round"
    about += ", a ring a disturbed one, which does not count" if shown[0].in_table.disturbed else ""
    about += "; the line is the middle half of the rounds or, if there are few, lowest to highest."
    if len(dots) == len(shown):
        about, dots = "Training images per second, in each row's only run.", []
    yield Chart(
        "throughput",
        "Throughput",
        about,
        f"Images per second, a bar for each implementation: {', '.join(words)}",
        _bars(medians, dots, looks_of_rows(rows), "Images per second", COUNT),
        AXIS + LINE * len(shown),
    )


def time_to_target_figure(rows: Sequence[Row]) -> Iterator[Chart]:
    """Like `throughput`, for the seconds until the target accuracy is reached; of rows whose runs all reached it."""
    shown = [row for row in rows if row.target_seconds is not None]
    if not shown:
        return
    target = format(shown[0].in_table.target_accuracy, ACCURACY)
    means, dots, words = [], [], []
    for row in shown:
        ends = {"low": row.target_seconds_q1, "high": row.target_seconds_q3}
        means.append({"row": row.title, "value": row.target_seconds, **ends})
        dots += [_dot(row, run, reach.seconds) for run, reach in row.reached_by or ()]
        words.append(f"{row.title} {row.target_seconds:{SECONDS}}")
    about = f"Training and evaluation until the test accuracy first reached {target}, without start-up."
    about += " A bar ends at the mean, a dot is a run." if len(dots) > len(shown) else ""
    yield Chart(
        "time-to-target",
        "Time to the target accuracy",
        about,
        f"Seconds until a test accuracy of {target}, a bar for each implementation: {', '.join(words)}",
        _bars(means, dots if len(dots) > len(shown) else [], looks_of_rows(rows), "Seconds", SECONDS),
        AXIS + LINE * len(shown),
    )


def _dot(row: Row, run: Run, value: float | None) -> dict[str, Any]:
    load = run.result.training_other_load if run.result else None
    return {
        "row": row.title,
        "value": value,
        "round": run.record.round,
        "seed": run.record.seed,
        "load": "unknown" if load is None else f"{load:{SHARE}} of all cores",
        "counts": "no: disturbed" if row.leaves_out(run) else "yes",
    }


def _bars(
    middles: Sequence[dict[str, Any]], dots: Sequence[dict[str, Any]], looks: Looks, label: str, form: str
) -> list[alt.Chart]:
    """Bars; if there are dots, each bar also has a line from `low` to `high`, with the dots on top."""
    place = Looks({row["row"]: looks.of[row["row"]] for row in middles}).place
    value = alt.X("value:Q", title=label, scale=alt.Scale(zero=True)).axis(tickCount=5)
    tooltip = [alt.Tooltip("row:N", title="framework"), alt.Tooltip("value:Q", title=label, format=form)]
    bars = alt.Chart(pd.DataFrame(middles)).encode(place)
    layers = [bars.mark_bar(size=22, opacity=0.75).encode(value, looks.colour(), tooltip=tooltip)]
    if dots:
        layers.append(bars.mark_rule(color=INK, strokeWidth=2).encode(alt.X("low:Q"), alt.X2("high:Q")))
        tooltip += [alt.Tooltip("round:Q"), alt.Tooltip("seed:Q"), alt.Tooltip("load:N", title="other programs' load")]
        tooltip.append(alt.Tooltip("counts:N", title="counts"))
        filled = alt.Fill("counts:N", scale=alt.Scale(domain=["yes", "no: disturbed"], range=[INK, PAPER]), legend=None)
        points = alt.Chart(pd.DataFrame(dots)).mark_point(size=18, yOffset=7, stroke=INK, strokeWidth=1, opacity=1)
        layers.append(points.encode(place, value, filled, tooltip=tooltip))
    return layers


def ratios(rows: Sequence[Row]) -> Iterator[Chart]:
    """How many times as fast as the first row each row is, for rows that have an interval."""
    shown = [row for row in rows if row.ratio_low]
    if not shown:
        return
    data, words = [], []
    for row in shown:
        data.append(
            {"row": row.title, "ratio": row.ratio, "low": row.ratio_low, "high": row.ratio_high}
            | {"verdict": row.verdict, "rounds": row.num_rounds}
        )
        words.append(f"{row.title} {row.ratio:{RATIO}}, {between(row.ratio_low, row.ratio_high)}, {row.verdict}")
    looks = looks_of_rows(rows)
    table = pd.DataFrame(data)
    low, high = min(1.0, table["low"].min()), max(1.0, table["high"].max())
    value = alt.X("low:Q", title=f"Times as fast as {rows[0].title}").scale(zero=False, nice=True)
    if high / low > LEAST_SPAN:  # on a logarithmic axis, twice as fast is as far from 1 as half as fast
        low, high = low / 1.05, high * 1.05
        value = value.scale(type="log", domain=[low, high], nice=False)
        value = value.axis(values=[tick for tick in RATIO_TICKS if low <= tick <= high], format="~g")
    tooltip = [alt.Tooltip("row:N", title="framework")]
    tooltip += [alt.Tooltip(f"{name}:Q", format=RATIO) for name in ("ratio", "low", "high")]
    tooltip += [alt.Tooltip("verdict:N"), alt.Tooltip("rounds:Q")]
    place = Looks({row.title: looks.of[row.title] for row in shown}).place
    base = alt.Chart(table).encode(place, looks.colour())
    same = alt.Chart(pd.DataFrame({"low": [1.0]})).mark_rule(color=INK, strokeDash=[4, 3]).encode(value)
    yield Chart(
        "ratio",
        "Speed ratio",
        "A point is the ratio of images per second, from pairs of turns or, without turns, of whole runs that followed"
        " each other. The line is its 95 % interval: where it does not contain 1, one of the two is faster.",
        f"Ratio of speeds with 95 % intervals: {'; '.join(words)}",
        [
            same,
            base.mark_rule(strokeWidth=3).encode(value, alt.X2("high:Q"), tooltip=tooltip),
            base.mark_point(size=80, filled=True, opacity=1).encode(alt.X("ratio:Q"), looks.shape(), tooltip=tooltip),
        ],
        AXIS + LINE * len(shown),
    )


def breakdown(rows: Sequence[Row]) -> Iterator[Chart]:
    """The seconds of each phase, in each row's run with the median duration."""
    data, words = [], []
    for row in rows:
        seconds = row.phases
        data += [
            {"row": row.title, "phase": phase, "seconds": seconds[phase], "order": order}
            for order, phase in enumerate(SHOWN_PHASES)
        ]
        words.append(f"{row.title} " + ", ".join(f"{phase} {seconds[phase]:{SECONDS}}" for phase in SHOWN_PHASES))
    scale = alt.Scale(domain=[*SHOWN_PHASES], range=[*PHASE_COLOURS])
    tooltip = [
        alt.Tooltip("row:N", title="framework"),
        alt.Tooltip("phase:N"),
        alt.Tooltip("seconds:Q", format=SECONDS),
    ]
    bars = (
        alt.Chart(pd.DataFrame(data))
        .mark_bar(size=22)
        .encode(
            looks_of_rows(rows).place,
            alt.X("seconds:Q", title="Seconds, from the start of the process to its end"),
            alt.Color(
                "phase:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=3, symbolType="square")
            ),
            alt.Order("order:Q"),
            tooltip=tooltip,
        )
    )
    yield Chart(
        "breakdown",
        "Where the time goes",
        f"The run with the median duration. {'; '.join(f'{phase}: {about}' for phase, about in ABOUT_PHASES.items())}.",
        f"Seconds in each phase: {'; '.join(words)}",
        [bars],
        AXIS + LINE * len(rows) + legend_height(SHOWN_PHASES),
    )
