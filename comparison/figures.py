"""The charts of a report, each as SVG for the page and as PNG and SVG files. matplotlib draws them."""

import io
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from common.datasets import class_names
from common.errors import UserError
from common.machine import num_cores
from common.predictions import Predictions
from common.results import RunResult, write_text
from common.timeline import PHASES
from comparison.lockstep import FIRST_STEPS, loss_differences, rounding
from comparison.rows import Entry, Row, Table, phase_seconds
from comparison.store import Run
from comparison.sweep import Study, StudyRow

# Okabe and Ito's colours (2008), told apart by people with any common kind of colour blindness; and since the curves
# of runs in lockstep lie on each other, every line has a width and a pattern of its own, too.
COLOURS = {"tf": "#E69F00", "pt": "#0072B2", "ptl": "#CC79A7"}
MORE_COLOURS = ("#009E73", "#56B4E9", "#D55E00", "#8C8C8C")
PHASE_COLOURS = ("#56B4E9", "#009E73", "#F0E442", "#D55E00", "#0072B2", "#999999")
WIDTHS, MARKERS = (5.0, 3.0, 1.8), ("o", "s", "^", "D", "v", "P")
PATTERNS: tuple[Any, ...] = ("-", (0, (3, 1.5)), (0, (1, 1)))
# What the page replaces by its own colours, light or dark.
INK, FAINT, PAPER = "#1f2329", "#d1d6db", "#fefefe"
ROUNDOFF = {"32": 2.0**-24, "64": 2.0**-53}
MAX_POINTS = 600  # of a line; more are no wider than a pixel

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


def _figure(height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _logarithmic(axis: Axis) -> None:
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
    free = iter(MORE_COLOURS * len(names))
    return {
        name: Look(COLOURS.get(name) or next(free), WIDTHS[n % 3], PATTERNS[n % 3], MARKERS[n % len(MARKERS)])
        for n, name in enumerate(names)
    }


# --- A table's charts ---


Maker = Callable[[], Iterable[Chart]]


def table_charts(table: Table, suffix: str = "") -> list[Maker]:
    """What makes all that can be drawn from the runs of a table; nothing of what it has no numbers for.

    Args:
      suffix: of the charts' names, which are the same for every table.
    """
    entries = [entry for entry in table.entries if entry.runs]
    kinds = (_loss_curves, _accuracy_curves, _throughput, _ratios, _breakdown, _lockstep, _confusions)
    return [partial(_styled, partial(kind, entries), suffix) for kind in kinds if entries]


def _styled(make: Maker, suffix: str) -> Iterator[Chart]:
    with rc_context(STYLE):
        for chart in make():
            yield replace(chart, name=chart.name + suffix)


def _typical(entry: Entry) -> Run:
    """The run of middle length: the one that rows and bars show too."""
    return sorted(entry.runs, key=lambda run: run.record.process_seconds)[(len(entry.runs) - 1) // 2]


def _by_seed(entry: Entry) -> list[Run]:
    """The first run of each seed."""
    return list({run.record.seed: run for run in reversed(entry.runs)}.values())[::-1]


def _loss_curves(entries: Sequence[Entry]) -> Iterator[Chart]:
    yield from _curves(
        entries,
        "loss",
        "Loss",
        [("training", lambda line: line.train_loss, 0.45), ("test", lambda line: line.test_loss, 1)],
    )


def _accuracy_curves(entries: Sequence[Entry]) -> Iterator[Chart]:
    yield from _curves(entries, "accuracy", "Test accuracy, %", [("", lambda line: 100 * line.test_accuracy, 1)])


def _curves(
    entries: Sequence[Entry], name: str, label: str, kinds: Sequence[tuple[str, Callable[[Any], float | None], float]]
) -> Iterator[Chart]:
    """Over epochs, the mean over seeds with all of them in a band; over seconds, each one's typical run."""
    if not any(line.epoch for entry in entries for line in entry.runs[0].epochs):
        return
    found = looks([entry.implementation for entry in entries])
    for axis in ("epochs", "seconds"):
        figure, axes = _figure()
        for entry in entries:
            look = found[entry.implementation]
            for kind, value, alpha in kinds:
                runs = _by_seed(entry) if axis == "epochs" else [_typical(entry)]
                values = np.array([[value(line) for line in run.epochs] for run in runs], dtype=float)
                x = [line.epoch for line in runs[0].epochs] if axis == "epochs" else _seconds(runs[0])
                axes.plot(
                    x,
                    values.mean(axis=0),
                    color=look.colour,
                    linewidth=look.width,
                    linestyle=look.pattern,
                    alpha=alpha,
                    marker=look.marker if len(x) < 3 else None,
                    label=f"{entry.implementation} {kind}".strip(),
                )
                if len(runs) > 1:
                    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=look.colour, alpha=0.15, lw=0)
        if name == "loss":
            _logarithmic(axes.yaxis)
        axes.set_ylabel(label)
        axes.set_xlabel("Epoch" if axis == "epochs" else "Seconds of training and evaluation, without start-up")
        if axis == "epochs":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(ncols=2 if len(kinds) > 1 else 1)
        title = f"{label.partition(',')[0]} over {axis}"
        yield Chart(f"{name}-{axis}", title, _curve_alt(entries, title), figure)


def _seconds(run: Run) -> NDArray[np.float64]:
    return np.cumsum([(line.train_seconds or 0.0) + line.eval_seconds for line in run.epochs])


def _curve_alt(entries: Sequence[Entry], title: str) -> str:
    ends = ", ".join(
        f"{entry.implementation} {entry.runs[0].epochs[-1].test_accuracy:.2%} with loss"
        f" {entry.runs[0].epochs[-1].test_loss:.4f}"
        for entry in entries
    )
    return f"{title}, a line for each implementation; on the test set they end at {ends}"


def _throughput(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Every run as a dot, the median as a bar's end, the middle half as a line."""
    shown = [entry for entry in entries if entry.row and entry.row.images_per_second]
    if not shown:
        return
    figure, axes = _figure(0.9 + 0.55 * len(shown))
    found = looks([entry.implementation for entry in entries])
    for place, entry in enumerate(shown):
        row, look = entry.row, found[entry.implementation]
        assert row and row.images_per_second and row.images_per_second_q1 and row.images_per_second_q3
        speeds = [run.result.images_per_second for run in entry.runs if run.result and run.result.images_per_second]
        axes.barh(place, row.images_per_second, color=look.colour, height=0.6, alpha=0.75)
        if len(speeds) > 1:
            axes.plot([row.images_per_second_q1, row.images_per_second_q3], [place, place], color=INK, linewidth=2)
            axes.plot(speeds, [place + 0.18] * len(speeds), ".", color=INK, markersize=4)
    _named(axes, [entry.implementation for entry in shown])
    axes.set_xlabel("Images per second: median, middle half, every run")
    words = [f"{row.implementation} {row.images_per_second:,.0f}" for row in _rows(shown) if row.images_per_second]
    alt = f"Images per second, a bar for each implementation: {', '.join(words)}"
    yield Chart("throughput", "Throughput", alt, figure)


def _ratios(entries: Sequence[Entry]) -> Iterator[Chart]:
    shown = [entry for entry in entries if entry.row and entry.row.ratio_low]
    if not shown:
        return
    figure, axes = _figure(0.9 + 0.5 * len(shown))
    found = looks([entry.implementation for entry in entries])
    axes.axvline(1, color=INK, linewidth=1, linestyle="--")
    for place, entry in enumerate(shown):
        row, look = entry.row, found[entry.implementation]
        assert row and row.ratio and row.ratio_low and row.ratio_high
        axes.plot([row.ratio_low, row.ratio_high], [place, place], color=look.colour, linewidth=3)
        axes.plot([row.ratio], [place], look.marker, color=look.colour, markersize=8)
    _named(axes, [entry.implementation for entry in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel(f"Speed as a multiple of {entries[0].implementation}'s, 95 % interval")
    words = [
        f"{row.implementation} {row.ratio:.2f}, {row.ratio_low:.2f} to {row.ratio_high:.2f}, {row.verdict}"
        for row in _rows(shown)
    ]
    yield Chart("ratio", "Speed ratio", f"Ratio of speeds with 95 % intervals: {'; '.join(words)}", figure)


def _rows(entries: Sequence[Entry]) -> list[Row]:
    return [entry.row for entry in entries if entry.row]


def _named(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def _breakdown(entries: Sequence[Entry]) -> Iterator[Chart]:
    figure, axes = _figure(1.5 + 0.5 * len(entries))
    words = []
    for place, entry in enumerate(entries):
        left, seconds = 0.0, phase_seconds(_typical(entry))
        for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
            axes.barh(place, seconds[phase], left=left, color=colour, height=0.6, label=None if place else phase)
            left += seconds[phase]
        words.append(f"{entry.implementation} " + ", ".join(f"{phase} {seconds[phase]:.2f}" for phase in PHASES))
    _named(axes, [entry.implementation for entry in entries])
    axes.set_xlabel("Seconds, from the start of the process to its end")
    figure.legend(loc="outside upper center", ncols=3)
    yield Chart("breakdown", "Where the time goes", f"Seconds in each phase: {'; '.join(words)}", figure)


def _lockstep(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Differences of step losses from the first row's, for its first seed."""
    reference, others = entries[0].runs[0], []
    for entry in entries[1:]:
        run = next((run for run in entry.runs if run.record.seed == reference.record.seed), None)
        if run and len(run.losses) and len(reference.losses):
            others.append((entry, loss_differences(reference.losses, run.losses)))
    if not others or reference.result is None:
        return
    precision = reference.result.config.precision
    floor = ROUNDOFF[precision] / 50  # losses that are equal to the last bit have no place on such a scale
    figure, axes = _figure()
    found = looks([entry.implementation for entry in entries])
    words = []
    for entry, differences in others:
        look = found[entry.implementation]
        steps, largest = _thinned(differences)
        axes.plot(
            steps,
            np.maximum(largest, floor),
            color=look.colour,
            linewidth=min(look.width, 1.8),
            linestyle=look.pattern,
            label=entry.implementation,
        )
        words.append(f"{entry.implementation} at most {differences.max():.0e}")
    label = f"rounding of one number, {ROUNDOFF[precision]:.0e}"
    axes.axhline(ROUNDOFF[precision], color=INK, linestyle="--", linewidth=1, label=label)
    first = np.arange(1, min(FIRST_STEPS, len(others[0][1])) + 1)
    axes.plot(first, rounding(precision, len(first)), color="#D55E00", linewidth=1.5, label="allowed, steps 1-10")
    _logarithmic(axes.yaxis)
    if len(others[0][1]) > 200:
        _logarithmic(axes.xaxis)
    axes.set_xlabel("Step")
    axes.set_ylabel(f"Difference in loss from {entries[0].implementation}")
    axes.legend()
    alt = f"Difference of every step's loss from {entries[0].implementation}, logarithmic: {', '.join(words)}"
    yield Chart("lockstep", "Lockstep", alt, figure)


def _thinned(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and values; of neighbours that share a pixel, the largest, so that no difference is hidden."""
    edges = np.unique(np.linspace(0, len(values), min(len(values), MAX_POINTS) + 1).astype(int))
    return edges[1:].astype(float), np.maximum.reduceat(values, edges[:-1])


def _confusions(entries: Sequence[Entry]) -> Iterator[Chart]:
    """One matrix for all implementations that guess alike, as they do in lockstep."""
    alike: list[tuple[list[str], Predictions, RunResult]] = []
    for entry in entries:
        run = entry.runs[0]
        assert run.result is not None
        try:
            predictions = Predictions.read(run.run_dir)
        except UserError:  # made by an implementation that writes none
            continue
        for names, others, _ in alike:
            if np.array_equal(others.guesses, predictions.guesses):
                names.append(entry.implementation)
                break
        else:
            alike.append(([entry.implementation], predictions, run.result))
    for implementations, predictions, result in alike:
        largest = int(max(predictions.labels.max(), predictions.guesses.max()))
        names = class_names(result.config.dataset, largest + 1)
        yield _confusion(implementations, predictions.confusion(len(names)), names)


def _confusion(implementations: Sequence[str], counts: NDArray[np.int64], names: Sequence[str]) -> Chart:
    figure, axes = _figure(4.1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.grid(visible=False)
    if len(names) <= 20:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "#ffffff" if shares[row, column] > 0.5 else "#000000"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=7)
        axes.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
        axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("Guess")
    axes.set_ylabel("Class")
    right, who = int(np.trace(counts)), ", ".join(implementations)
    worst = [(int(counts[i, j]), names[i], names[j]) for i, j in zip(*np.nonzero(counts), strict=True) if i != j]
    worst.sort(reverse=True)
    words = "; ".join(f"{label} taken for {guess} {count} times" for count, label, guess in worst[:5])
    alt = f"Confusion matrix of {who}: {right} of {counts.sum()} right; {words or 'no mistakes'}"
    return Chart(f"confusion-{'-'.join(implementations)}", f"Confusion matrix: {who}", alt, figure)


# --- A sweep's charts ---


def study_charts(study: Study) -> list[Maker]:
    """What makes one chart for each number that there is, over the swept values, a line for each implementation."""
    kinds: list[tuple[str, str, Value, Spread | None]] = [
        ("speed-up", "Speed-up in images per second", _speed_up, _speed_up_spread),
        ("efficiency", "Efficiency", lambda one: one.efficiency, None),
        ("images-per-second", "Images per second", lambda one: one.row.images_per_second, _speed_spread),
        ("target-epochs", "Epochs to the target accuracy", lambda one: one.row.target_epochs, None),
        ("target-steps", "Steps to the target accuracy", lambda one: one.row.target_steps, None),
        ("target-seconds", "Seconds to the target accuracy", lambda one: one.row.target_seconds, _target_spread),
        ("final-accuracy", "Final test accuracy", lambda one: one.row.test_accuracy, _accuracy_spread),
        ("final-loss", "Final test loss", lambda one: one.row.test_loss, None),
    ]
    return [
        partial(_styled, partial(_study_chart, study, *kind), "")
        for kind in kinds
        if any(kind[2](one) is not None for one in study.rows)
    ]


Value = Callable[[StudyRow], float | None]
Spread = Callable[[StudyRow], tuple[float | None, float | None]]


def _study_chart(study: Study, name: str, label: str, value: Value, spread: Spread | None) -> Iterator[Chart]:
    figure, axes = _figure()
    labels = list(dict.fromkeys(one.x for one in study.rows))
    places = {x: float(x) if study.numeric else float(n) for n, x in enumerate(labels)}
    series = list(dict.fromkeys(one.series for one in study.rows))
    found = looks(list(dict.fromkeys(one.row.implementation for one in study.rows)))
    words = []
    for number, one_series in enumerate(series):
        members = [one for one in study.rows if one.series == one_series or _also_in(one, one_series, study)]
        known = [(one, v) for one in members if (v := value(one)) is not None]
        if not known:
            continue
        look = found[known[0][0].row.implementation]
        x, y = [places[one.x] for one, _ in known], [v for _, v in known]
        pattern = "--" if "weak" in one_series else look.pattern if len(series) == len(found) else "-"
        axes.plot(x, y, color=look.colour, linestyle=pattern, marker=MARKERS[number % len(MARKERS)], label=one_series)
        for one, _ in known:
            low, high = spread(one) if spread else (None, None)
            if low is not None and high is not None:
                axes.plot([places[one.x]] * 2, [low, high], color=look.colour, linewidth=5, alpha=0.3)
        words.append(f"{one_series} " + ", ".join(f"{v:.4g} at {one.x}" for one, v in known))
    if name in ("speed-up", "efficiency"):
        ideal = {places[one.x]: one.ideal for one in study.rows if one.ideal}
        y_ideal = [ideal[x] or 1.0 if name == "speed-up" else 1.0 for x in sorted(ideal)]
        axes.plot(sorted(ideal), y_ideal, color=INK, linewidth=1, linestyle=":", label="ideal")
        axes.set_ylim(bottom=0)
    if study.numeric and min(places.values()) > 0 and max(places.values()) / min(places.values()) >= 4:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(places.values()), labels)
    axes.minorticks_off()
    axes.set_xlabel(study.option)
    axes.set_ylabel(label)
    if len(series) > 3:
        figure.legend(loc="outside upper center", ncols=3)
    else:
        axes.legend()
    yield Chart(f"sweep-{name}", f"{label} by {study.option}", f"{label} by {study.option}: {'; '.join(words)}", figure)


def _also_in(one: StudyRow, series: str, study: Study) -> bool:
    """Whether a row is the first one of weak scaling, too: one device is the same experiment in both."""
    strong = re.sub(r"\bweak$", "strong", series)
    has_first = any(other.series == series and other.x == "1" for other in study.rows)
    return study.kind == "devices" and one.x == "1" and one.series == strong != series and not has_first


def _speed_up(one: StudyRow) -> float | None:
    return one.speed_up.estimate if one.speed_up else None


def _speed_up_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return (one.speed_up.low, one.speed_up.high) if one.speed_up else (None, None)


def _speed_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return one.row.images_per_second_q1, one.row.images_per_second_q3


def _target_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return one.row.target_seconds_q1, one.row.target_seconds_q3


def _accuracy_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return one.row.test_accuracy_low, one.row.test_accuracy_high


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
        return list(workers.map(_draw_kept, range(len(makers))))


def _draw(maker: Maker, folder: Path) -> list[Drawn]:
    drawn = []
    for chart in maker():
        svg = chart.svg()
        write_text(folder / f"{chart.name}.svg", svg)
        (folder / f"{chart.name}.png").write_bytes(chart.png())
        drawn.append(Drawn(chart.name, chart.title, chart.inline(svg)))
    return drawn


_kept: list[tuple[Sequence[Maker], Path]] = []  # in a worker process, what it was started with


def _keep(makers: Sequence[Maker], folder: Path) -> None:
    _kept.append((makers, folder))


def _draw_kept(index: int) -> list[Drawn]:
    makers, folder = _kept[-1]
    return _draw(makers[index], folder)
