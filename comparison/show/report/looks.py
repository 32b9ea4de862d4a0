"""How the rows of a comparison look in charts, the same in all charts."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from comparison.measure.row import Row
from comparison.show.report.charts import COLOURS, MORE_COLOURS, darker

# The curves of runs in lockstep lie on top of each other: every line has its own width and pattern.
WIDEST, NARROWEST = 5.0, 1.4
PATTERNS = ([1, 0], [6, 3], [2, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


@dataclass(frozen=True)
class Look:
    """How a row is drawn: the colour of its marks, the width and the dashes of its line, the shape of its points."""

    colour: str
    width: float
    dashes: list[int]
    shape: str


@dataclass(frozen=True)
class Looks:
    """How rows are drawn, by their titles. The data of charts have the title in the field `row`.

    Attributes:
      of: title -> look.
      points: whether the legend shows the rows' points, and not their lines.
    """

    of: dict[str, Look]
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


def looks_of_rows(rows: Sequence[Row]) -> Looks:
    """Each implementation has one colour, which is darker if the mode is not plain."""
    others = dict.fromkeys(row.implementation for row in rows if row.implementation not in COLOURS)
    colours, looks = COLOURS | dict(zip(others, itertools.cycle(MORE_COLOURS), strict=False)), {}
    widths = np.linspace(WIDEST, NARROWEST, max(2, len(rows))).tolist()
    for number, row in enumerate(rows):
        colour = colours[row.implementation]
        colour = colour if row.mode == "plain" else darker(colour)
        looks[row.title] = Look(colour, widths[number], PATTERNS[number % 3], SHAPES[number % len(SHAPES)])
    return Looks(looks)
