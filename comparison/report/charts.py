"""What a chart is, how all of them look, and how they are drawn: as SVG for a page, as PNG and SVG files."""

import io
import math
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from common.platform.files import write_bytes, write_text
from common.platform.machine import num_cores
from common.platform.program import ctrl_c_waits, serve_pool

# Okabe and Ito's colours (2008), told apart by people with any common kind of colour blindness; and since the curves
# of runs in lockstep lie on each other, every line has a width and a pattern of its own, too.
COLOURS = {"tf": "#E69F00", "pt": "#0072B2", "ptl": "#CC79A7", "keras": "#009E73"}
MORE_COLOURS = ("#56B4E9", "#D55E00", "#8C8C8C")
WIDEST, NARROWEST, MARKERS = 5.0, 1.4, ("o", "s", "^", "D", "v", "P")
MOST_NAMES_INSIDE = 4  # more of them would hide the lines: their legend stands above the chart
PATTERNS: tuple[Any, ...] = ("-", (0, (3, 1.5)), (0, (1, 1)))
# What the page replaces by its own colours, light or dark.
INK, FAINT, PAPER = "#1f2329", "#d1d6db", "#fefefe"

STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "text.parse_math": False,  # a class may be called $x$
    "svg.hashsalt": "comparison",
    "grid.color": FAINT,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"), INK
    ),
}
WIDTH, HEIGHT = 4.4, 3.1  # inches: on a phone the text is hardly smaller than on a desk


@dataclass(frozen=True)
class Chart:
    """A figure, made but not drawn.

    Attributes:
      name: of its files, without ending.
      title: for people.
      alt: what it shows, in words, for those who can't see it.
    """

    name: str
    title: str
    alt: str
    figure: Figure

    def __post_init__(self) -> None:
        # Once for all formats, since it takes as long as drawing.
        engine = self.figure.get_layout_engine()
        if engine is not None:
            engine.execute(self.figure)
            self.figure.set_layout_engine("none")

    def png(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=120)
        return file.getvalue()

    def svg(self) -> str:
        file = io.StringIO()
        self.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return file.getvalue()

    def inline(self, svg: str) -> str:
        """The SVG for a page with others: its own ids, the page's colours, and words for screen readers."""
        body = svg[svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'\bid="', f'id="{self.name}-', body)
        body = re.sub(r'(href="|url\()#', rf"\1#{self.name}-", body)
        for colour, variable in ((INK, "ink"), (FAINT, "faint"), (PAPER, "paper")):
            body = body.replace(colour, f"var(--{variable})")
        body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
        body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
        return re.sub(r"<svg", f'<svg role="img" aria-label="{_escaped(self.alt)}"', body, count=1)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def new_figure(height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def logarithmic(axis: Axis) -> None:
    """With numbers that people read at once, and few marks: both are most of the time that drawing takes."""
    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log", nonpositive="mask", subs=[])
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))


@dataclass(frozen=True)
class Look:
    """How an implementation is drawn."""

    colour: str
    width: float
    pattern: Any
    marker: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Of rows: an implementation has one colour, which is darker where its mode is not plain."""
    free = iter(MORE_COLOURS * len(names))
    colours, found = dict(COLOURS), {}
    widths = np.linspace(WIDEST, NARROWEST, max(2, len(names))).tolist()
    for number, name in enumerate(names):
        implementation, _, mode = name.partition(" ")
        if implementation not in colours:
            colours[implementation] = next(free)
        colour = _darker(colours[implementation]) if mode else colours[implementation]
        found[name] = Look(colour, widths[number], PATTERNS[number % 3], MARKERS[number % len(MARKERS)])
    return found


def _darker(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return to_hex((0.55 * red, 0.55 * green, 0.55 * blue))


def add_legend(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """In the chart, or above it where there are many names, for which the figure grows."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= MOST_NAMES_INSIDE:
        axes.legend(title=title, ncols=2 if len(labels) == MOST_NAMES_INSIDE else 1)
        return
    columns = 3 if max(map(len, labels)) < 18 else 2
    figure.set_figheight(figure.get_figheight() + 0.18 * (math.ceil(len(labels) / columns) + bool(title)))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, title=title)


Maker = Callable[[], Iterable[Chart]]


def styled(make: Maker, suffix: str) -> Iterator[Chart]:
    with rc_context(STYLE):
        for chart in make():
            yield replace(chart, name=chart.name + suffix)


# --- Drawing ---


@dataclass(frozen=True)
class Drawn:
    """A chart whose files are written: name and title as in `Chart`, and its SVG for the page."""

    name: str
    title: str
    svg: str


def draw(makers: Sequence[Maker], folder: Path) -> list[list[Drawn]]:
    """Writes `NAME.svg` and `NAME.png` of every chart into `folder`; a list for each maker, in their order.

    In several processes where they can be had by forking, which brings all that is loaded with it.
    """
    if sys.platform != "linux" or num_cores() < 2 or len(makers) < 2:
        return [_draw(maker, folder) for maker in makers]
    with ProcessPoolExecutor(
        min(num_cores(), len(makers)),
        mp_context=multiprocessing.get_context("fork"),
        initializer=_keep,
        initargs=(makers, folder),  # inherited, not sent
    ) as workers:
        with ctrl_c_waits():
            drawn = workers.map(_draw_kept, range(len(makers)))
        return list(drawn)


def _draw(maker: Maker, folder: Path) -> list[Drawn]:
    drawn = []
    for chart in maker():
        svg = chart.svg()
        write_text(folder / f"{chart.name}.svg", svg)
        write_bytes(folder / f"{chart.name}.png", chart.png())
        drawn.append(Drawn(chart.name, chart.title, chart.inline(svg)))
    return drawn


_kept: list[tuple[Sequence[Maker], Path]] = []  # in a worker process, what it was started with


def _keep(makers: Sequence[Maker], folder: Path) -> None:
    serve_pool()
    _kept.append((makers, folder))


def _draw_kept(index: int) -> list[Drawn]:
    makers, folder = _kept[-1]
    return _draw(makers[index], folder)
