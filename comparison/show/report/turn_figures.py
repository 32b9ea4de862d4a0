"""The chart of the turns: the ratio of speeds in each cycle."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd

from comparison.measure.frames import ROUND
from comparison.measure.row import Row
from comparison.measure.table import num_pairs, paired_turns
from comparison.show.report.charts import INK, Chart
from comparison.show.report.looks import Looks, looks_of_rows

MAX_TURNS = 400  # of a row in the chart; more marks would lie on top of each other, and make the page large
GAP = 0.03  # between two rounds, as a share of the seconds of a round
EDGE = 0.01  # share of the turns that count beyond each end of an axis; these and slower ones are drawn at its ends
LEAST_FACTOR = 1.1  # between the ends of an axis, so that differences of a percent look small
COUNTS, LEFT_OUT = "yes", "no: disturbed"
CROSS = "M-1,-1L1,1M1,-1L-1,1"  # the shape of the mark of a turn that is left out


def turns(rows: Sequence[Row]) -> Iterator[Chart]:
    """The chart of a table in which a row has a ratio from turns."""
    compared = [row for row in rows[1:] if row.ratio_low is not None and num_pairs(rows[0], row)]
    if not compared:
        return
    pairs = pd.concat([paired_turns(rows[0], row).assign(row=row.title) for row in compared])
    rounds = _rounds(pairs)
    every = math.ceil(pairs.groupby("row").size().max() / MAX_TURNS)
    marks = _marks_of(pairs, rounds, every)
    intervals = pd.DataFrame(
        {"row": row.title, "value": row.ratio, "low": row.ratio_low, "high": row.ratio_high} for row in compared
    )
    looks = replace(looks_of_rows(rows), points=True)
    x = alt.X("x:Q", title="Seconds, without the time between rounds")
    x = x.scale(domain=[0, rounds["end"].iloc[-1]], nice=False).axis(grid=False, tickCount=6)
    y = _log_axis(marks, f"Times as fast as {rows[0].title}", [*intervals["low"], *intervals["high"]])
    base = alt.Chart(intervals)
    layers = [
        *_borders(rounds, x),
        _marks(marks, x, y, looks),
        base.mark_rect(opacity=0.3).encode(alt.Y("low:Q"), alt.Y2("high:Q"), looks.colour(legend=True)),
        base.mark_rule(strokeWidth=1.5).encode(y, looks.colour(legend=True)),
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
    of_round = turns.assign(began=began).groupby(ROUND).agg({"began": "min", "ended": "max"}).sort_values("began")
    lengths = of_round["ended"] - of_round["began"]
    end = (lengths + GAP * lengths.median()).cumsum() - GAP * lengths.median()
    begin = end - lengths
    return pd.DataFrame({"begin": begin, "end": end, "shift": begin - of_round["began"]})


def _borders(rounds: pd.DataFrame, axis: alt.X) -> list[alt.Chart]:
    """A line between two rounds; no layer if there is only one."""
    between_rounds = (rounds["end"].iloc[:-1].to_numpy() + rounds["begin"].iloc[1:].to_numpy()) / 2
    lines = alt.Chart(pd.DataFrame({"x": between_rounds})).mark_rule(color=INK, strokeDash=[1, 3])
    return [lines.encode(axis)] if len(rounds) > 1 else []


def _marks_of(turns: pd.DataFrame, rounds: pd.DataFrame, every: int) -> pd.DataFrame:
    """A mark for each turn, or only for those of one in `every` cycles."""
    turns = turns[turns["cycle"] % every == 0]
    shifts = rounds["shift"].reindex(pd.MultiIndex.from_frame(turns[ROUND]))
    return pd.DataFrame(
        {
            "row": turns["row"],
            "x": (turns["ended"] + shifts.to_numpy()).round(2),
            "value": turns["ratio"].map("{:.4g}".format).astype(float),
            "counts": np.where(turns["counts"], COUNTS, LEFT_OUT),
        }
    )


def _marks(table: pd.DataFrame, x: alt.X, y: alt.Y, looks: Looks) -> alt.Chart:
    shape = alt.Shape("counts:N", scale=alt.Scale(domain=[COUNTS, LEFT_OUT], range=["circle", CROSS]), legend=None)
    marks: alt.Chart = alt.Chart(table).mark_point(size=12, strokeWidth=1.2, opacity=0.85)
    return marks.encode(x, y, shape, looks.colour(legend=True))


def _log_axis(table: pd.DataFrame, title: str, within: Sequence[float]) -> alt.Y:
    """A logarithmic axis for the turns that count, or for all if none counts; `within`: other values that it shows."""
    counting = table[table["counts"] == COUNTS]
    values = (table if counting.empty else counting)["value"]
    inner_low, inner_high = np.quantile(values, [EDGE, 1 - EDGE]).tolist()
    low, high = min([inner_low, *within]), max([inner_high, *within])
    wider = max(1.02, math.sqrt(LEAST_FACTOR * low / high))
    low, high = low / wider, high * wider
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale).axis(tickCount=6, format="~g")
