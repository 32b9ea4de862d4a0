"""The chart of the turns: the ratio of speeds in each cycle and, below it, the speed of each row in each turn."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd

from comparison.measure.frames import ROUND
from comparison.measure.row import Row
from comparison.measure.table import num_pairs, paired_turns
from comparison.numbers import COUNT, RATIO, SHARE, between
from comparison.show.report.charts import INK, Chart, switch, tooltips
from comparison.show.report.looks import Looks, looks_of_rows

MAX_TURNS = 400  # of a row in the chart; more marks would lie on top of each other, and make the page large
PANEL_HEIGHT = 160  # pixels
GAP = 0.03  # between two rounds, as a share of the seconds of a round
EDGE = 0.01  # share of the turns that count beyond each end of an axis; these and slower ones are drawn at its ends
LEAST_FACTOR = 1.1  # between the ends of an axis, so that differences of a percent look small
COUNTS, LEFT_OUT = "yes", "no: disturbed"
CROSS = "M-1,-1L1,1M1,-1L-1,1"  # the shape of the mark of a turn that is left out


def turns(rows: Sequence[Row]) -> Iterator[Chart]:
    """The chart of a table whose runs have turns; the ratios only if a row has one."""
    every_turn = pd.concat([row.turns[row.turns["whole"]].assign(row=row.title) for row in rows])
    if every_turn.empty:
        return
    rounds = _rounds(every_turn)
    every = math.ceil(every_turn.groupby("row").size().max() / MAX_TURNS)
    speeds = _marks_of(every_turn, rounds, every, "images_per_second")
    compared = [row for row in rows[1:] if row.ratio_low is not None and num_pairs(rows[0], row)]
    looks, chosen = replace(looks_of_rows(rows), points=True), switch()
    axis = alt.X("x:Q", title="Seconds, without the time between rounds")
    axis = axis.scale(domain=[0, rounds["end"].iloc[-1]], nice=False).axis(grid=False, tickCount=6)
    marks = _marks(speeds, axis, _log_axis(speeds, "Images per second"), looks).transform_filter(chosen)
    about = " Crosses: left out, since other programs used the machine." if any(speeds["counts"] == LEFT_OUT) else ""
    about += " Dotted: a new round, with new processes." if len(rounds) > 1 else ""
    about += f" Only one turn in {every} is shown." if every > 1 else ""
    about += " Marks at an edge lie beyond it."
    words = [f"{row.title} {_middle(speeds, row.title, COUNT)}" for row in rows]
    described = f"Images per second in the turns of {len(rounds)} rounds, middle half of the turns: {', '.join(words)}"
    if not compared:
        layers = [*_borders(rounds, axis), marks.add_params(chosen)]
        yield Chart("turns", "Speed turn by turn", f"A mark is a turn.{about}", described, layers)
        return
    intervals = pd.DataFrame(
        {"row": row.title, "value": row.ratio, "low": row.ratio_low, "high": row.ratio_high} for row in compared
    )
    pairs = pd.concat([paired_turns(rows[0], row).assign(row=row.title) for row in compared])
    ratios = _marks_of(pairs, rounds, every, "ratio")
    above = axis.copy().title(None).axis(grid=False, labels=False, ticks=False)
    y = _log_axis(ratios, f"Times as fast as {rows[0].title}", [*intervals["low"], *intervals["high"]])
    base = alt.Chart(intervals).transform_filter(chosen)
    layers = [
        *_borders(rounds, above),
        _marks(ratios, above, y, looks).add_params(chosen).transform_filter(chosen),
        base.mark_rect(opacity=0.3).encode(alt.Y("low:Q"), alt.Y2("high:Q"), looks.colour(legend=True)),
        base.mark_rule(strokeWidth=1.5).encode(y, looks.colour(legend=True)),
    ]
    words = [
        f"{row.title} {row.ratio:{RATIO}}, {between(row.ratio_low, row.ratio_high)},"
        f" middle half of the pairs {_middle(ratios, row.title, RATIO)}"
        for row in compared
    ]
    yield Chart(
        "turns",
        "Speed ratio turn by turn",
        "Above: the ratio of each pair of turns, and the overall ratio with its 95 % interval (line and band). Below:"
        f" the speed in each turn; what slows all rows cancels in the ratio.{about}",
        f"Ratio of speeds turn by turn: {'; '.join(words)}. {described}",
        layers,
        PANEL_HEIGHT,
        [*_borders(rounds, axis), marks],
    )


def _rounds(every_turn: pd.DataFrame) -> pd.DataFrame:
    """A line for each round, in the order of time: where it begins and ends on the time axis, in seconds since the
    first turn, with the rounds one right after the other; and `shift`, from the machine's clock to the axis."""
    began = every_turn["ended"] - every_turn["seconds"]
    of_round = every_turn.assign(began=began).groupby(ROUND).agg({"began": "min", "ended": "max"}).sort_values("began")
    lengths = of_round["ended"] - of_round["began"]
    end = (lengths + GAP * lengths.median()).cumsum() - GAP * lengths.median()
    begin = end - lengths
    return pd.DataFrame({"begin": begin, "end": end, "shift": begin - of_round["began"]})


def _borders(rounds: pd.DataFrame, axis: alt.X) -> list[alt.Chart]:
    """A line between two rounds; no layer if there is only one."""
    between_rounds = (rounds["end"].iloc[:-1].to_numpy() + rounds["begin"].iloc[1:].to_numpy()) / 2
    lines = alt.Chart(pd.DataFrame({"x": between_rounds})).mark_rule(color=INK, strokeDash=[1, 3])
    return [lines.encode(axis)] if len(rounds) > 1 else []


def _marks_of(turns: pd.DataFrame, rounds: pd.DataFrame, every: int, value: str) -> pd.DataFrame:
    """A mark for each turn, or only for those of one in `every` cycles, with the value of this column."""
    turns = turns[turns["cycle"] % every == 0]
    shifts = rounds["shift"].reindex(pd.MultiIndex.from_frame(turns[ROUND]))
    return pd.DataFrame(
        {
            "row": turns["row"],
            "x": (turns["ended"] + shifts.to_numpy()).round(2),
            "value": turns[value].map("{:.4g}".format).astype(float),
            "round": turns["round"].astype(int),
            "turn": turns["cycle"].astype(int),
            "load": turns["other_load"].map(lambda load: "unknown" if pd.isna(load) else format(load, SHARE)),
            "counts": np.where(turns["counts"], COUNTS, LEFT_OUT),
        }
    )


def _marks(table: pd.DataFrame, x: alt.X, y: alt.Y, looks: Looks) -> alt.Chart:
    shape = alt.Shape("counts:N", scale=alt.Scale(domain=[COUNTS, LEFT_OUT], range=["circle", CROSS]), legend=None)
    tooltip = tooltips(("row:N", "framework"), ("value:Q", y["title"], ",.4~g"), ("round:Q",), ("turn:Q",))
    tooltip += tooltips(("load:N", "other programs' load"), ("counts:N", "counts"))
    marks: alt.Chart = alt.Chart(table).mark_point(size=12, strokeWidth=1.2, opacity=0.85)
    return marks.encode(x, y, shape, looks.colour(legend=True), tooltip=tooltip)


def _log_axis(table: pd.DataFrame, title: str, within: Sequence[float] = ()) -> alt.Y:
    """A logarithmic axis for the turns that count, or for all if none counts; `within`: other values that it shows."""
    counting = table[table["counts"] == COUNTS]
    values = (table if counting.empty else counting)["value"]
    inner_low, inner_high = np.quantile(values, [EDGE, 1 - EDGE]).tolist()
    low, high = min([inner_low, *within]), max([inner_high, *within])
    wider = max(1.02, math.sqrt(LEAST_FACTOR * low / high))
    low, high = low / wider, high * wider
    scale = alt.Scale(type="log", domain=[low, high], nice=False, clamp=True)
    return alt.Y("value:Q", title=title, scale=scale).axis(tickCount=6, format="~s" if low > 100 else "~g")


def _middle(table: pd.DataFrame, title: str, form: str) -> str:
    """`980 to 1,020`: the middle half of a row's turns that count; `none` if none counts."""
    values = table[(table["row"] == title) & (table["counts"] == COUNTS)]["value"]
    if not len(values):
        return "none"
    low, high = np.quantile(values, [0.25, 0.75]).tolist()
    return between(low, high, form)
