"""What a chart is, how all of them look, and how they are drawn. Altair describes them, vl-convert draws them.

A page holds each chart twice: drawn, for paper and for readers without JavaScript, and as a description from which
Vega, a library in the page, makes one that answers: to a pointer, and to a click on a name of its legend.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import vl_convert

from common.platform.files import write_bytes, write_text

# Okabe and Ito's colours (2008), told apart by people with any common kind of colour blindness; and since the curves
# of runs in lockstep lie on each other, every line has a width and a pattern of its own, too.
COLOURS = {"tf": "#E69F00", "pt": "#0072B2", "ptl": "#CC79A7", "keras": "#009E73"}
MORE_COLOURS = ("#56B4E9", "#D55E00", "#8C8C8C")
WIDEST, NARROWEST = 5.0, 1.4
PATTERNS = ([1, 0], [6, 3], [2, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
# What the page replaces by its own colours, light or dark.
INK, FAINT, PAPER = "#1f2329", "#d1d6db", "#fefefe"

WIDTH, HEIGHT = 420, 290  # pixels: on a phone the text is hardly smaller than on a desk
PNG_SCALE = 2
STYLE: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "aria": False,  # the figure as a whole is described in words
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor"), INK),
        **dict.fromkeys(("labelFontSize", "titleFontSize"), 12),
        "gridColor": FAINT,
        "titleFontWeight": "normal",
        "labelLimit": 0,
    },
    "legend": {"labelColor": INK, "labelFontSize": 12, "labelLimit": 0, "symbolStrokeColor": INK},
    "text": {"color": INK},
    "rule": {"color": INK},
}
FOR_POINTERS = "for pointers: "  # begins the names of layers that only a page with Vega has


@dataclass(frozen=True)
class Chart:
    """A figure, made but not drawn.

    Attributes:
      name: of its files, without ending.
      title: for people.
      about: what its marks mean, in words that a newcomer knows.
      words: what it shows, for those who can't see it.
      layers: that lie on each other, the first one lowest.
      height: pixels, of all of it.
    """

    name: str
    title: str
    about: str
    words: str
    layers: Sequence[alt.Chart]
    height: float = HEIGHT

    def description(self) -> dict[str, Any]:
        """In Vega-Lite's words."""
        chart = alt.layer(*self.layers).properties(width=WIDTH, height=self.height, background=PAPER)
        with alt.data_transformers.enable("default", max_rows=None):
            found: dict[str, Any] = chart.to_dict()
        return found | {"config": STYLE, "autosize": {"type": "fit", "contains": "padding"}}

    def draw(self) -> "Drawn":
        description = self.description()
        still = [layer for layer in description["layer"] if not layer.get("name", "").startswith(FOR_POINTERS)]
        svg = vl_convert.vegalite_to_svg(description | {"layer": still})
        return Drawn(self.name, self.title, self.about, self.words, svg, description)


@dataclass(frozen=True)
class Drawn:
    """A chart, drawn; `name` to `words` as in `Chart`.

    Attributes:
      svg: a file's content.
      description: in Vega-Lite's words, with what answers to a pointer.
    """

    name: str
    title: str
    about: str
    words: str
    svg: str
    description: dict[str, Any]

    def png(self) -> bytes:
        drawn: bytes = vl_convert.svg_to_png(self.svg, scale=PNG_SCALE)
        return drawn

    @property
    def inline(self) -> str:
        """The SVG for a page with others: its own ids, and the page's colours."""
        body = re.sub(r'\bid="', f'id="{self.name}-', self.svg)
        body = _in_the_pages_colours(re.sub(r'(href="|url\()#', rf"\1#{self.name}-", body))
        return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", body, count=1)

    @property
    def for_vega(self) -> str:
        """The description as JSON that may stand in a page's script."""
        return _in_the_pages_colours(json.dumps(self.description, separators=(",", ":")).replace("<", "\\u003c"))


def _in_the_pages_colours(text: str) -> str:
    """Of which what is darker on white paper is lighter on a dark page."""
    for colour, variable in ((INK, "ink"), (FAINT, "faint"), (PAPER, "paper")):
        text = text.replace(colour, f"var(--{variable})")
    for colour in (*COLOURS.values(), *MORE_COLOURS):
        text = text.replace(_darker(colour), f"color-mix(in srgb, {colour} 55%, var(--ink))")
    return text


def draw(charts: Iterable[Chart], folder: Path, suffix: str = "") -> list[Drawn]:
    """Writes `NAME.svg` and `NAME.png` of every chart into `folder`; `suffix`: that their names get."""
    drawn = [replace(chart, name=chart.name + suffix).draw() for chart in charts]
    for one in drawn:
        write_text(folder / f"{one.name}.svg", one.svg)
        write_bytes(folder / f"{one.name}.png", one.png())
    return drawn


# --- What charts have in common ---


@dataclass(frozen=True)
class Look:
    """How a row is drawn: the colour of its marks, the width and the dashes of its line, the shape of its points."""

    colour: str
    width: float
    dashes: list[int]
    shape: str


@dataclass(frozen=True)
class Looks:
    """How rows are drawn, by their titles. Their data have the title in the field `row`.

    Attributes:
      symbol_size: of the legend, in square pixels.
    """

    of: dict[str, Look]
    symbol_size: int = 250

    @classmethod
    def make(cls, names: Sequence[str], titles: Sequence[str]) -> "Looks":
        """`names`: as `pt tuned`. An implementation has one colour, which is darker where its mode is not plain."""
        free = iter(MORE_COLOURS * len(names))
        colours, found = dict(COLOURS), {}
        widths = np.linspace(WIDEST, NARROWEST, max(2, len(names))).tolist()
        for number, (name, title) in enumerate(zip(names, titles, strict=True)):
            implementation, _, mode = name.partition(" ")
            if implementation not in colours:
                colours[implementation] = next(free)
            colour = _darker(colours[implementation]) if mode else colours[implementation]
            found[title] = Look(colour, widths[number], PATTERNS[number % 3], SHAPES[number % len(SHAPES)])
        return cls(found)

    @property
    def titles(self) -> list[str]:
        return [*self.of]

    @property
    def place(self) -> alt.Y:
        """A line of the chart for each row."""
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
        return alt.Legend(title=None, orient="top", columns=legend_columns(self.titles), symbolSize=self.symbol_size)

    @property
    def legend_height(self) -> int:
        return legend_height(self.titles)


def legend_columns(names: Sequence[str]) -> int:
    longest = max(map(len, names))
    return 3 if longest <= 12 else 2 if longest <= 24 else 1


def legend_height(names: Sequence[str]) -> int:
    """Pixels, by which a chart grows: a legend stands above it, where it covers nothing."""
    return 10 + 16 * -(-len(names) // legend_columns(names))


def _darker(colour: str) -> str:
    """Mixed with ink."""
    pairs = ((int(colour[place : place + 2], 16), int(INK[place : place + 2], 16)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(0.55 * part + 0.45 * ink):02x}" for part, ink in pairs)


def switch() -> alt.Parameter:
    """The rows that a reader has chosen by clicks in the legend; all of them until then."""
    return alt.selection_point(name="chosen", fields=["row"], bind="legend", toggle="true")


def told_by_pointer(data: pd.DataFrame, x: alt.X, titles: dict[str, str], form: str, heading: str) -> alt.Chart:
    """A rule at the x that is nearest to the pointer, which tells the values of all lines there.

    Args:
      data: with the fields `x`, `key` and `value`.
      x: the chart's axis.
      titles: of each key.
      heading: of `x`.
    """
    nearest = alt.selection_point(name="nearest", nearest=True, on="pointerover", fields=["x"], empty=False)
    told = [alt.Tooltip("x", title=heading)]
    told += [alt.Tooltip(f"{key}:Q", title=title, format=form) for key, title in titles.items()]
    seen = alt.condition(nearest, alt.value(0.5), alt.value(0))
    rules = alt.Chart(data, name=f"{FOR_POINTERS}x").transform_pivot("key", value="value", groupby=["x"]).mark_rule()
    found: alt.Chart = rules.encode(x, opacity=seen, tooltip=told).add_params(nearest)
    return found
