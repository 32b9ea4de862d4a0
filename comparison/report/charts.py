"""What a chart is, and how it is drawn. Altair describes them, vl-convert draws them.

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
import vl_convert

from common.platform.files import write_bytes, write_text

# Okabe and Ito's colours (2008), told apart by people with any common kind of colour blindness.
COLOURS = {"tf": "#E69F00", "pt": "#0072B2", "ptl": "#CC79A7", "keras": "#009E73"}
MORE_COLOURS = ("#56B4E9", "#D55E00", "#8C8C8C")
# What the page replaces by its own colours, light or dark.
INK, FAINT, PAPER = "#1f2329", "#d1d6db", "#fefefe"
PALETTES = ((INK, FAINT, PAPER), ("#e6e9ec", "#3a424b", "#14181c"))

WIDTH, HEIGHT = 420, 290  # pixels: on a phone the text is hardly smaller than on a desk
PNG_SCALE = 2
STYLE: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "aria": False,  # the figure as a whole is described in words
    "view": {"stroke": None},
    "padding": {"left": 16, "right": 12, "top": 5, "bottom": 5},  # a reader's font may be wider than vl-convert's
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor"), INK),
        **dict.fromkeys(("labelFontSize", "titleFontSize"), 12),
        "gridColor": FAINT,
        "titleFontWeight": "normal",
        "labelLimit": 0,
    },
    "legend": {"columnPadding": 14, "labelColor": INK, "labelFontSize": 12, "labelLimit": 0, "symbolStrokeColor": INK},
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
    def for_any_page(self) -> str:
        """The SVG as a file that is dark on a dark screen: for READMEs, which have no style of their own."""
        light, dark = (
            f":root {{ --ink: {ink}; --faint: {faint}; --paper: {paper} }}" for ink, faint, paper in PALETTES
        )
        style = f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>"
        return re.sub(r"(<svg[^>]*>)", rf"\1{style}", _in_the_pages_colours(self.svg), count=1)

    @property
    def for_vega(self) -> str:
        """The description as JSON that may stand in a page's script."""
        return _in_the_pages_colours(json.dumps(self.description, separators=(",", ":")).replace("<", "\\u003c"))


def _in_the_pages_colours(text: str) -> str:
    """Of which what is darker on white paper is lighter on a dark page."""
    for colour, variable in ((INK, "ink"), (FAINT, "faint"), (PAPER, "paper")):
        text = text.replace(colour, f"var(--{variable})")
    for colour in (*COLOURS.values(), *MORE_COLOURS):
        text = text.replace(darker(colour), f"color-mix(in srgb, {colour} 55%, var(--ink))")
    return text


def darker(colour: str) -> str:
    """Mixed with ink."""
    pairs = ((int(colour[place : place + 2], 16), int(INK[place : place + 2], 16)) for place in (1, 3, 5))
    return "#" + "".join(f"{round(0.55 * part + 0.45 * ink):02x}" for part, ink in pairs)


def draw(charts: Iterable[Chart], folder: Path, suffix: str = "") -> list[Drawn]:
    """Writes `NAME.svg` and `NAME.png` of every chart into `folder`; `suffix`: that their names get."""
    drawn = [replace(chart, name=chart.name + suffix).draw() for chart in charts]
    for one in drawn:
        write_text(folder / f"{one.name}.svg", one.svg)
        write_bytes(folder / f"{one.name}.png", one.png())
    return drawn
