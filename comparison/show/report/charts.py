"""Charts, which Altair describes and vl-convert draws, and how rows look in all of them."""

import base64
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import vl_convert

from common.platform.files import write_bytes, write_text
from comparison.measure.row import Row

# Okabe and Ito's colours (2008), which people with any common kind of colour blindness can tell apart.
COLOURS = {"tf": "#E69F00", "pt": "#0072B2", "ptl": "#CC79A7", "keras": "#009E73", "jax": "#D55E00"}
MORE_COLOURS = ("#56B4E9", "#8C8C8C")
INK, FAINT, PAPER = "#1f2329", "#d1d6db", "#fefefe"

WIDTH, HEIGHT = 420, 205  # pixels; with this size, the text is hardly smaller on a phone than on a large screen
PNG_SCALE = 2
CHART_STYLE: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "aria": False,  # the page describes the figure as a whole
    "view": {"stroke": None},
    "padding": {"left": 16, "right": 12, "top": 8, "bottom": 5},  # a reader's font may be wider than vl-convert's
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor"), INK),
        **dict.fromkeys(("labelFontSize", "titleFontSize"), 12),
        "gridColor": FAINT,
        "titleFontWeight": "normal",
        "labelLimit": 0,
        "labelSeparation": 3,
    },
    "legend": {"columnPadding": 14, "labelColor": INK, "labelFontSize": 12, "labelLimit": 0, "symbolStrokeColor": INK},
    "text": {"color": INK},
    "rule": {"color": INK},
}


@dataclass(frozen=True)
class Chart:
    """A figure; it is drawn when it is needed.

    Attributes:
      name: name of its files, without the suffix.
      title: for people.
      about: what its marks mean, in words that a newcomer knows.
      layers: the layers, which lie on top of each other, the lowest first.
      height: of the plot, in pixels, without its axis and its legend; the width is that of the whole chart.
    """

    name: str
    title: str
    about: str
    layers: Sequence[alt.Chart]
    height: float = HEIGHT

    @cached_property
    def svg(self) -> str:
        """The content of an SVG file."""
        chart = alt.layer(*self.layers).properties(width=WIDTH, height=self.height, background=PAPER)
        with alt.data_transformers.enable("default", max_rows=None):
            spec = chart.to_dict(validate=False)  # validating takes as long as drawing
        fit = {"autosize": {"type": "fit-x", "contains": "padding"}}
        drawn: str = vl_convert.vegalite_to_svg(spec | {"config": CHART_STYLE} | fit)
        return drawn

    def png(self) -> bytes:
        drawn: bytes = vl_convert.svg_to_png(self.svg, scale=PNG_SCALE)
        return drawn

    @property
    def data_uri(self) -> str:
        """The SVG as an image for a page that needs no other files."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


def draw_charts(charts: Iterable[Chart], folder: Path, suffix: str = "") -> list[Chart]:
    """Writes `NAME.svg` and `NAME.png` of every chart into `folder`; `suffix`: added to each name."""
    named = [replace(chart, name=chart.name + suffix) for chart in charts]
    for chart in named:
        write_text(folder / f"{chart.name}.svg", chart.svg)
        write_bytes(folder / f"{chart.name}.png", chart.png())
    return named


# --- How rows look ---

# The curves of runs in lockstep lie on top of each other: every line has its own width and pattern.
WIDEST, NARROWEST = 5.0, 1.4
LINE_PATTERNS = ([1, 0], [6, 3], [2, 2])
MARK_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


@dataclass(frozen=True)
class RowLook:
    """How a row is drawn: the colour of its marks, the width and the dashes of its line, the shape of its points."""

    colour: str
    width: float
    dashes: list[int]
    shape: str


@dataclass(frozen=True)
class RowLooks:
    """How rows are drawn, by their titles. The data of charts have the title in the field `row`.

    Attributes:
      of: title -> look.
      points: whether the legend shows the rows' points, and not their lines.
    """

    of: dict[str, RowLook]
    points: bool = False

    @property
    def titles(self) -> list[str]:
        return [*self.of]

    @property
    def place(self) -> alt.Y:
        """The y axis of a chart with a line for each row."""
        return alt.Y("row:N", title=None, scale=alt.Scale(domain=self.titles)).axis(grid=False, ticks=False)

    def colour(self, legend: bool = False) -> alt.Color:
        return alt.Color("row:N", scale=self._scale("colour"), legend=self._legend() if legend else None)

    def shape(self, legend: bool = False) -> alt.Shape:
        return alt.Shape("row:N", scale=self._scale("shape"), legend=self._legend() if legend else None)

    def line(self) -> list[Any]:
        """Colour, width and dashes, with a legend."""
        legend = self._legend()
        return [
            self.colour(legend=True),
            alt.StrokeWidth("row:O", scale=self._scale("width"), legend=legend),
            alt.StrokeDash("row:N", scale=self._scale("dashes"), legend=legend),
        ]

    def _scale(self, attribute: str) -> alt.Scale:
        return alt.Scale(domain=self.titles, range=[getattr(look, attribute) for look in self.of.values()])

    def _legend(self) -> alt.Legend:
        line, point = {"symbolSize": 250, "symbolType": "stroke"}, {"symbolSize": 80, "symbolStrokeWidth": 2}
        longest = max(map(len, self.of))
        columns = 3 if longest <= 12 else 2 if longest <= 24 else 1
        return alt.Legend(title=None, orient="top", columns=columns, **(point if self.points else line))


def looks_of_rows(rows: Sequence[Row]) -> RowLooks:
    """Each implementation has one colour, which is darker if the mode is not plain."""
    others = dict.fromkeys(row.implementation for row in rows if row.implementation not in COLOURS)
    colours, looks = COLOURS | dict(zip(others, itertools.cycle(MORE_COLOURS), strict=False)), {}
    widths = np.linspace(WIDEST, NARROWEST, max(2, len(rows))).tolist()
    for number, row in enumerate(rows):
        colour = colours[row.implementation]
        colour = colour if row.mode == "plain" else darker(colour)
        looks[row.title] = RowLook(
            colour, widths[number], LINE_PATTERNS[number % 3], MARK_SHAPES[number % len(MARK_SHAPES)]
        )
    return RowLooks(looks)


def darker(colour: str) -> str:
    """The colour mixed with INK."""
    pairs = ((int(colour[place : place + 2], 16), int(INK[place : place + 2], 16)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(0.55 * part + 0.45 * ink):02x}" for part, ink in pairs)
