"""The charts of a table to decide by: speeds, and where the time goes."""

from collections.abc import Iterator, Sequence

import altair as alt
import pandas as pd

from common.record.timeline import SHOWN_PHASES
from comparison.measure.row import ABOUT_PHASES, Row
from comparison.show.report.charts import INK, PAPER, Chart
from comparison.show.report.looks import Looks, legend_height, looks_of_rows

PHASE_COLOURS = ("#56B4E9", "#009E73", "#F0E442", "#D55E00", "#0072B2", "#CC79A7", "#999999")
LINE = 36  # height in pixels of a row in a bar chart
AXIS = 50  # height in pixels of the axis below the rows


def throughput(rows: Sequence[Row]) -> Iterator[Chart]:
    """Each row has a bar up to its median; with several runs, a line for the spread, and a dot for each run."""
    shown = [row for row in rows if row.images_per_second]
    if not shown:
        return
    medians = pd.DataFrame(
        {
            "row": row.title,
            "value": row.images_per_second,
            "low": row.images_per_second_low,
            "high": row.images_per_second_high,
        }
        for row in shown
    )
    dots = pd.concat([_dots(row) for row in shown])
    about = "A bar ends at the median of the rounds. A dot is a round"
    about += ", a ring a disturbed one, which does not count" if shown[0].in_table.num_disturbed else ""
    about += "; the line is the middle half of the rounds or, if there are few, lowest to highest."
    if len(dots) == len(shown):
        about, dots = "Training images per second, in each row's only run.", pd.DataFrame()
    yield Chart(
        "throughput",
        "Throughput",
        about,
        _bars(medians, dots, looks_of_rows(rows)),
        AXIS + LINE * len(shown),
    )


def _dots(row: Row) -> pd.DataFrame:
    """A dot for each run with a speed."""
    runs = row.runs[row.runs["speed"].notna()]
    counts = runs["left_out"].map({True: "no: disturbed", False: "yes"})
    return pd.DataFrame({"row": row.title, "value": runs["speed"], "counts": counts})


def _bars(middles: pd.DataFrame, dots: pd.DataFrame, looks: Looks) -> list[alt.Chart]:
    """Bars; if there are dots, each bar also has a line from `low` to `high`, with the dots on top."""
    place = Looks({title: looks.of[title] for title in middles["row"]}).place
    value = alt.X("value:Q", title="Images per second", scale=alt.Scale(zero=True)).axis(tickCount=5)
    bars = alt.Chart(middles).encode(place)
    layers = [bars.mark_bar(size=22, opacity=0.75).encode(value, looks.colour())]
    if len(dots):
        layers.append(bars.mark_rule(color=INK, strokeWidth=2).encode(alt.X("low:Q"), alt.X2("high:Q")))
        filled = alt.Fill("counts:N", scale=alt.Scale(domain=["yes", "no: disturbed"], range=[INK, PAPER]), legend=None)
        points = alt.Chart(dots).mark_point(size=18, yOffset=7, stroke=INK, strokeWidth=1, opacity=1)
        layers.append(points.encode(place, value, filled))
    return layers


def breakdown(rows: Sequence[Row]) -> Iterator[Chart]:
    """The seconds of each phase, in each row's run with the median duration."""
    data = [
        {"row": row.title, "phase": phase, "seconds": row.phases[phase], "order": order}
        for row in rows
        for order, phase in enumerate(SHOWN_PHASES)
    ]
    scale = alt.Scale(domain=[*SHOWN_PHASES], range=[*PHASE_COLOURS])
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
        )
    )
    yield Chart(
        "breakdown",
        "Where the time goes",
        f"The run with the median duration. {'; '.join(f'{phase}: {about}' for phase, about in ABOUT_PHASES.items())}.",
        [bars],
        AXIS + LINE * len(rows) + legend_height(SHOWN_PHASES),
    )
