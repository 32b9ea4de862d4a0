"""The charts of a table: curves, speed, time, lockstep. matplotlib draws them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from common.record.timeline import PHASES
from common.spec.options import TrainConfig
from comparison.lockstep import loss_differences, roundoff
from comparison.report.charts import INK, Chart, Maker, add_legend, logarithmic, looks, new_figure, styled
from comparison.report.confusion import confusions
from comparison.row import Row
from comparison.row_values import phase_seconds
from comparison.store import Run
from comparison.table import Entry, Table

PHASE_COLOURS = ("#56B4E9", "#009E73", "#F0E442", "#D55E00", "#0072B2", "#999999")
RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 30, 50, 100)
LEAST_SPAN = 1.6  # of a logarithmic axis; in less there would be one of the ticks, or two
MAX_POINTS = 600  # of a line; more are no wider than a pixel


def table_charts(table: Table, suffix: str = "") -> list[Maker]:
    """What makes all that can be drawn from the runs of a table; nothing of what it has no numbers for.

    Args:
      suffix: of the charts' names, which are the same for every table.
    """
    entries = [entry for entry in table.entries if entry.runs]
    # Those that decide, then those that prove.
    kinds = (_throughput, _ratios, _breakdown, _accuracy_curves, _loss_curves, _lockstep, confusions)
    return [partial(styled, partial(kind, entries), suffix) for kind in kinds if entries]


def _by_seed(entry: Entry) -> list[Run]:
    """The first run of each seed."""
    return list({run.record.seed: run for run in reversed(entry.runs)}.values())[::-1]


def _loss_curves(entries: Sequence[Entry]) -> Iterator[Chart]:
    yield from _curves(
        entries,
        "loss",
        "Loss",
        [("training", lambda line: line.train_loss), ("test", lambda line: line.test_loss)],
    )


def _accuracy_curves(entries: Sequence[Entry]) -> Iterator[Chart]:
    yield from _curves(
        entries,
        "accuracy",
        "Accuracy, %",
        [("training", lambda line: _percent(line.train_accuracy)), ("test", lambda line: _percent(line.test_accuracy))],
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _curves(
    entries: Sequence[Entry], name: str, label: str, kinds: Sequence[tuple[str, Callable[[Any], float | None]]]
) -> Iterator[Chart]:
    """Over epochs, the mean over seeds with all of them in a band; over seconds, each one's typical run."""
    if not any(line.epoch for entry in entries for line in entry.runs[0].epochs):
        return
    found = looks([entry.name for entry in entries])
    each_named = len(kinds) * len(entries) <= 6
    for axis in ("epochs", "seconds"):
        figure, axes = new_figure()
        for entry in entries:
            look = found[entry.name]
            for kind, value in kinds:
                runs = _by_seed(entry) if axis == "epochs" else [entry.typical_run]
                values = np.array([[value(line) for line in run.epochs] for run in runs], dtype=float)
                x = [line.epoch for line in runs[0].epochs] if axis == "epochs" else _seconds(runs[0])
                axes.plot(
                    x,
                    values.mean(axis=0),
                    color=look.colour,
                    linewidth=look.width,
                    linestyle=look.pattern,
                    alpha=0.45 if kind == "training" else 1,
                    marker=look.marker if len(x) < 3 else None,
                    label=f"{entry.title} {kind}" if each_named else entry.title if kind == "test" else None,
                )
                if len(runs) > 1:
                    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=look.colour, alpha=0.15, lw=0)
        if name == "loss":
            logarithmic(axes.yaxis)
        axes.set_ylabel(label)
        axes.set_xlabel("Epoch" if axis == "epochs" else "Seconds of training and evaluation, without start-up")
        if axis == "epochs":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(figure, axes, None if each_named else "test; pale: training")
        title = f"{label.partition(',')[0]} over {axis}"
        yield Chart(f"{name}-{axis}", title, _curve_alt(entries, title), figure)


def _seconds(run: Run) -> NDArray[np.float64]:
    return np.cumsum([(line.train_seconds or 0.0) + line.eval_seconds for line in run.epochs])


def _curve_alt(entries: Sequence[Entry], title: str) -> str:
    ends = ", ".join(
        f"{entry.title} {entry.runs[0].epochs[-1].test_accuracy:.2%} with loss {entry.runs[0].epochs[-1].test_loss:.4f}"
        for entry in entries
    )
    return f"{title}, a line for each implementation; on the test set they end at {ends}"


def _throughput(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Every run as a dot, a ring where its round was disturbed; the median as a bar's end, the spread as a line."""
    shown = [entry for entry in entries if entry.row and entry.row.speed.images_per_second]
    if not shown:
        return
    figure, axes = new_figure(0.9 + 0.55 * len(shown))
    found = looks([entry.name for entry in entries])
    for place, entry in enumerate(shown):
        assert entry.row
        speed, look = entry.row.speed, found[entry.name]
        assert speed.images_per_second and speed.spread
        speeds = [(run.images_per_second, entry.leaves_out(run)) for run in entry.runs if run.images_per_second]
        quiet, disturbed = ([value for value, out in speeds if out == kind] for kind in (False, True))
        axes.barh(place, speed.images_per_second, color=look.colour, height=0.6, alpha=0.75)
        if len(speeds) > 1:
            axes.plot(speed.spread, [place, place], color=INK, linewidth=2)
            axes.plot(quiet, [place + 0.18] * len(quiet), ".", color=INK, markersize=4)
            axes.plot(disturbed, [place + 0.18] * len(disturbed), "o", color=INK, markersize=4, fillstyle="none")
    _named(axes, [entry.title for entry in shown])
    axes.set_xlabel("Images per second")
    words = [f"{row.title} {row.speed.images_per_second:,.0f}" for row in _rows(shown) if row.speed.images_per_second]
    alt = f"Images per second, a bar for each implementation: {', '.join(words)}"
    rings = "; rings: disturbed" if any(entry.disturbed for entry in shown) else ""
    yield Chart("throughput", f"Throughput: median, spread, every run{rings}", alt, figure)


def _ratios(entries: Sequence[Entry]) -> Iterator[Chart]:
    shown = [entry for entry in entries if entry.row and entry.row.speed.ratio_low]
    if not shown:
        return
    figure, axes = new_figure(0.9 + 0.5 * len(shown))
    found = looks([entry.name for entry in entries])
    axes.axvline(1, color=INK, linewidth=1, linestyle="--")
    words = []
    for place, entry in enumerate(shown):
        assert entry.row
        speed, look = entry.row.speed, found[entry.name]
        assert speed.ratio and speed.ratio_low and speed.ratio_high
        axes.plot([speed.ratio_low, speed.ratio_high], [place, place], color=look.colour, linewidth=3)
        axes.plot([speed.ratio], [place], look.marker, color=look.colour, markersize=8)
        words.append(
            f"{entry.title} {speed.ratio:.2f}, {speed.ratio_low:.2f} to {speed.ratio_high:.2f}, {speed.verdict}"
        )
    _named(axes, [entry.title for entry in shown])
    _twice_is_as_far_as_half(axes)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel(f"Times as fast as {entries[0].title}, 95 % interval")
    yield Chart("ratio", "Speed ratio", f"Ratio of speeds with 95 % intervals: {'; '.join(words)}", figure)


def _twice_is_as_far_as_half(axes: Axes) -> None:
    """A logarithmic axis for ratios, with numbers that can be read; as it is where they are all near 1."""
    low, high = axes.get_xlim()
    if low > 0 and high / low > LEAST_SPAN:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(FixedLocator([tick for tick in RATIO_TICKS if low <= tick <= high]))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())


def _rows(entries: Sequence[Entry]) -> list[Row]:
    return [entry.row for entry in entries if entry.row]


def _named(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def _breakdown(entries: Sequence[Entry]) -> Iterator[Chart]:
    figure, axes = new_figure(1.5 + 0.5 * len(entries))
    words = []
    for place, entry in enumerate(entries):
        left, seconds = 0.0, phase_seconds(entry.typical_run)
        for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
            axes.barh(place, seconds[phase], left=left, color=colour, height=0.6, label=None if place else phase)
            left += seconds[phase]
        words.append(f"{entry.title} " + ", ".join(f"{phase} {seconds[phase]:.2f}" for phase in PHASES))
    _named(axes, [entry.title for entry in entries])
    axes.set_xlabel("Seconds, from the start of the process to its end")
    figure.legend(loc="outside upper center", ncols=3)
    yield Chart("breakdown", "Where the time goes", f"Seconds in each phase: {'; '.join(words)}", figure)


def _lockstep(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Differences of step losses from the first row's, for its first seed: what rounding makes of one training."""
    reference, others = entries[0].runs[0], []
    configs: list[TrainConfig] = []
    for entry in entries[1:]:
        run = next((run for run in entry.runs if run.record.seed == reference.record.seed), None)
        if run and run.result and len(run.losses) and len(reference.losses):
            configs.append(run.result.config)
            others.append((entry, loss_differences(reference.losses, run.losses)))
    if not others or reference.result is None:
        return
    unit = roundoff(reference.result.config, *configs)
    floor = unit / 50  # losses that are equal to the last bit have no place on such a scale
    figure, axes = new_figure()
    found = looks([entry.name for entry in entries])
    words = []
    for entry, differences in others:
        look = found[entry.name]
        steps, largest = _thinned(differences)
        axes.plot(
            steps,
            np.maximum(largest, floor),
            color=look.colour,
            linewidth=min(look.width, 1.8),
            linestyle=look.pattern,
            label=entry.title,
        )
        words.append(f"{entry.title} at most {differences.max():.0e}")
    axes.axhline(unit, color=INK, linestyle="--", linewidth=1, label=f"rounding of one number, {unit:.0e}")
    logarithmic(axes.yaxis)
    if len(others[0][1]) > 200:
        logarithmic(axes.xaxis)
    axes.set_xlabel("Step")
    axes.set_ylabel(f"Difference in loss from {entries[0].title}")
    add_legend(figure, axes)
    alt = f"Difference of every step's loss from {entries[0].title}, logarithmic: {', '.join(words)}"
    yield Chart("lockstep", "Lockstep", alt, figure)


def _thinned(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and values; of neighbours that share a pixel, the largest, so that no difference is hidden."""
    edges = np.unique(np.linspace(0, len(values), min(len(values), MAX_POINTS) + 1).astype(int))
    return edges[1:].astype(float), np.maximum.reduceat(values, edges[:-1])
