"""The charts of a sweep: every number that there is, over the swept values."""

import math
import re
from collections.abc import Callable, Iterator
from functools import partial

from comparison.report.charts import INK, MARKERS, Chart, Maker, add_legend, looks, new_figure, styled
from comparison.sweep import Study, StudyRow


def study_charts(study: Study) -> list[Maker]:
    """What makes one chart for each number that there is, over the swept values, a line for each implementation."""
    kinds: list[tuple[str, str, Value, Spread | None]] = [
        ("speed-up", "Speed-up in images per second", _speed_up, _speed_up_spread),
        ("efficiency", "Efficiency", _efficiency, None),
        ("images-per-second", "Images per second", lambda one: one.row.speed.images_per_second, _speed_spread),
        ("target-epochs", "Epochs to the target accuracy", lambda one: one.row.target.target_epochs, None),
        ("target-steps", "Steps to the target accuracy", lambda one: one.row.target.target_steps, None),
        ("target-seconds", "Seconds to the target accuracy", lambda one: one.row.target.target_seconds, _target_spread),
        ("final-accuracy", "Final test accuracy", lambda one: one.row.accuracy.test_accuracy, _accuracy_spread),
        ("final-loss", "Final test loss", lambda one: one.row.accuracy.test_loss, None),
    ]
    return [
        partial(styled, partial(_study_chart, study, *kind), "")
        for kind in kinds
        if any(kind[2](one) is not None for one in study.rows)
    ]


Value = Callable[[StudyRow], float | None]
Spread = Callable[[StudyRow], tuple[float | None, float | None]]


def _study_chart(study: Study, name: str, label: str, value: Value, spread: Spread | None) -> Iterator[Chart]:
    figure, axes = new_figure()
    labels = list(dict.fromkeys(one.x for one in study.rows))
    places = {x: float(x) if study.numeric else float(n) for n, x in enumerate(labels)}
    series = list(dict.fromkeys(one.series for one in study.rows))
    found = looks(list(dict.fromkeys(one.row.name for one in study.rows)))
    words = []
    for number, one_series in enumerate(series):
        members = [one for one in study.rows if one.series == one_series or _also_in(one, one_series, study)]
        known = [(one, v) for one in members if (v := value(one)) is not None]
        if not known:
            continue
        look = found[known[0][0].row.name]
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
    add_legend(figure, axes)
    yield Chart(f"sweep-{name}", f"{label} by {study.option}", f"{label} by {study.option}: {'; '.join(words)}", figure)


def _also_in(one: StudyRow, series: str, study: Study) -> bool:
    """Whether a row is the first one of weak scaling, too: one device is the same experiment in both."""
    strong = re.sub(r"\bweak$", "strong", series)
    has_first = any(other.series == series and other.x == "1" for other in study.rows)
    return study.kind == "devices" and one.x == "1" and one.series == strong != series and not has_first


def _speed_up(one: StudyRow) -> float | None:
    """Of fewer rounds than a ratio takes: between the least and the most."""
    ratio = one.speed_up
    return (ratio.estimate or math.sqrt(ratio.least * ratio.most)) if ratio else None


def _efficiency(one: StudyRow) -> float | None:
    speed_up = _speed_up(one)
    return speed_up / one.ideal if speed_up and one.ideal else None


def _speed_up_spread(one: StudyRow) -> tuple[float | None, float | None]:
    ratio = one.speed_up
    if ratio is None:
        return None, None
    return (ratio.least, ratio.most) if ratio.estimate is None else (ratio.low, ratio.high)


def _speed_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return one.row.speed.spread or (None, None)


def _target_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return one.row.target.target_seconds_q1, one.row.target.target_seconds_q3


def _accuracy_spread(one: StudyRow) -> tuple[float | None, float | None]:
    return one.row.accuracy.test_accuracy_low, one.row.accuracy.test_accuracy_high
