"""The charts of a table to decide by: speeds, their ratios turn by turn, and where the time goes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd

from common.record.timeline import SHOWN_PHASES
from comparison.measure.frames import ROUND_COLUMNS
from comparison.measure.row import ABOUT_PHASES, Row
from comparison.measure.table import num_pairs, paired_turns
from comparison.show.report.charts import INK, PAPER, Chart, looks_of_rows

PHASE_COLOURS = ("#56B4E9", "#009E73", "#F0E442", "#D55E00", "#0072B2", "#CC79A7", "#999999")
BAR_HEIGHT = 36  # height in pixels of a row in a bar chart
COUNTS, LEFT_OUT = "yes", "no: disturbed"  # whether a round or a turn counts


# --- Bars ---


def speed_bars(rows: Sequence[Row]) -> Iterator[Chart]:
    """Each row has a bar up to its median, with a line for the spread, and a dot for each run."""
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
    runs = pd.concat([row.runs.assign(row=row.title) for row in shown]).rename(columns={"speed": "value"})
    runs["counts"] = np.where(runs["left_out"], LEFT_OUT, COUNTS)
    dots = alt.Chart(runs[["row", "value", "counts"]].dropna())
    looks = looks_of_rows(rows)
    place = replace(looks, of={row.title: looks.of[row.title] for row in shown}).place
    value = alt.X("value:Q", title="Images per second", scale=alt.Scale(zero=True)).axis(tickCount=5)
    filled = alt.Fill("counts:N", scale=alt.Scale(domain=[COUNTS, LEFT_OUT], range=[INK, PAPER]), legend=None)
    bars = alt.Chart(medians).encode(place)
    layers = [
        bars.mark_bar(size=22, opacity=0.75).encode(value, looks.colour()),
        bars.mark_rule(color=INK, strokeWidth=2).encode(alt.X("low:Q"), alt.X2("high:Q")),
        dots.mark_point(size=18, yOffset=7, stroke=INK, strokeWidth=1, opacity=1).encode(place, value, filled),
    ]
    about = "A bar ends at the median of the rounds. A dot is a round"
    about += ", a ring a disturbed one, which does not count" if shown[0].in_table.num_disturbed else ""
    about += "; the line is the middle half of the rounds or, if there are few, lowest to highest."
    yield Chart("throughput", "Throughput", about, layers, BAR_HEIGHT * len(shown))


def seconds_by_phase(rows: Sequence[Row]) -> Iterator[Chart]:
    """The seconds of each phase, in each row's run with the median duration."""
    data = [
        {"row": row.title, "phase": phase, "seconds": row.phases[phase], "order": order}
        for row in rows
        for order, phase in enumerate(SHOWN_PHASES)
    ]
    scale = alt.Scale(domain=[*SHOWN_PHASES], range=[*PHASE_COLOURS])
    legend = alt.Legend(title=None, orient="top", columns=3, symbolType="square")
    seconds = alt.X("seconds:Q", title="Seconds, from the start of the process to its end")
    bars = alt.Chart(pd.DataFrame(data)).mark_bar(size=22)
    colour = alt.Color("phase:N", scale=scale, legend=legend)
    about = f"The run with the median duration. {'; '.join(map(': '.join, ABOUT_PHASES.items()))}."
    layers = [bars.encode(looks_of_rows(rows).place, seconds, colour, alt.Order("order:Q"))]
    yield Chart("breakdown", "Where the time goes", about, layers, BAR_HEIGHT * len(rows))


# --- The ratio of speeds in each cycle of turns ---

MAX_TURNS = 400  # of a row in the chart; more marks would lie on top of each other, and make the page large
ROUND_GAP = 0.03  # between two rounds, as a share of the seconds of a round
EDGE_SHARE = 0.01  # of the turns that count, beyond each end of an axis; these and slower ones are drawn at its ends
LEAST_FACTOR = 1.1  # between the ends of an axis, so that differences of a percent look small
CROSS_SHAPE = "M-1,-1L1,1M1,-1L-1,1"  # the shape of the mark of a turn that is left out


def turns(rows: Sequence[Row]) -> Iterator[Chart]:
    """The chart of a table in which a row has a ratio from turns."""
    compared = [row for row in rows[1:] if row.ratio_low is not None and num_pairs(rows[0], row)]
    if not compared:
        return
    pairs = pd.concat([paired_turns(rows[0], row).assign(row=row.title) for row in compared])
    rounds = _rounds(pairs)
    every = math.ceil(pairs.groupby("row").size().max() / MAX_TURNS)
    marks = _marks(pairs[pairs["cycle"] % every == 0], rounds)
    intervals = pd.DataFrame(
        {"row": row.title, "value": row.ratio, "low": row.ratio_low, "high": row.ratio_high} for row in compared
    )
    looks = replace(looks_of_rows(rows), points=True)
    x = alt.X("x:Q", title="Seconds, without the time between rounds")
    x = x.scale(domain=[0, rounds["end"].iloc[-1]], nice=False).axis(grid=False, tickCount=6)
    y = _log_axis(marks, f"Times as fast as {rows[0].title}", [*intervals["low"], *intervals["high"]])
    shape = alt.Shape(
        "counts:N", scale=alt.Scale(domain=[COUNTS, LEFT_OUT], range=["circle", CROSS_SHAPE]), legend=None
    )
    colour = looks.colour(legend=True)
    between_rounds = (rounds["end"].shift() + rounds["begin"]).dropna() / 2
    borders = alt.Chart(pd.DataFrame({"x": between_rounds.to_numpy()})).mark_rule(color=INK, strokeDash=[1, 3])
    base = alt.Chart(intervals)
    layers = [
        *([borders.encode(x)] if len(between_rounds) else []),
        alt.Chart(marks).mark_point(size=12, strokeWidth=1.2, opacity=0.85).encode(x, y, shape, colour),
        base.mark_rect(opacity=0.3).encode(alt.Y("low:Q"), alt.Y2("high:Q"), colour),
        base.mark_rule(strokeWidth=1.5).encode(y, colour),
    ]
    about = "The ratio of each pair of turns, and the overall ratio with its 95 % interval (line and band)."
    about += " Crosses: left out, since other programs used the machine." if any(marks["counts"] == LEFT_OUT) else ""
    about += " Dotted: a new round, with new processes." if len(rounds) > 1 else ""
    about += f" Only one turn in {every} is shown." if every > 1 else ""
    about += " Marks at an edge lie beyond it."
    yield Chart("turns", "Speed ratio turn by turn", about, layers)


def _rounds(turns: pd.DataFrame) -> pd.DataFrame:
    """A line for each round, in the order of time: where it begins and ends on the time axis, in seconds since the
    first turn, with the rounds one right after the other; and `shift`, from the machine's clock to the axis."""
    began = turns["ended"] - turns["seconds"]
    of_round = (
        turns.assign(began=began).groupby(ROUND_COLUMNS).agg({"began": "min", "ended": "max"}).sort_values("began")
    )
    lengths = of_round["ended"] - of_round["began"]
    end = (lengths + ROUND_GAP * lengths.median()).cumsum() - ROUND_GAP * lengths.median()
    begin = end - lengths
    return pd.DataFrame({"begin": begin, "end": end, "shift": begin - of_round["began"]})


def _marks(turns: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """A mark for each turn."""
    x = turns["ended"] + turns.join(rounds["shift"], on=ROUND_COLUMNS)["shift"]
    counts = np.where(turns["counts"], COUNTS, LEFT_OUT)
    return pd.DataFrame({"row": turns["row"], "x": x, "value": turns["ratio"], "counts": counts})


def _log_axis(table: pd.DataFrame, title: str, within: Sequence[float]) -> alt.Y:
    """A logarithmic axis for the turns that count, or for all if none counts; `within`: other values that it shows."""
    counting = table[table["counts"] == COUNTS]
    values = (table if counting.empty else counting)["value"]
    inner_low, inner_high = np.quantile(values, [EDGE_SHARE, 1 - EDGE_SHARE]).tolist()
    low, high = min([inner_low, *within]), max([inner_high, *within])
    wider = max(1.02, math.sqrt(LEAST_FACTOR * low / high))
    low, high = low / wider, high * wider
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale).axis(tickCount=6, format="~g")
