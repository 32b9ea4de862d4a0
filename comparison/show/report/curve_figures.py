"""The charts of a table that show whether rows train alike: accuracy, loss, and differences in the steps' losses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from common.record.results import EpochLine
from common.spec.options import TrainConfig
from comparison import numbers
from comparison.lockstep import loss_differences, roundoff
from comparison.measure.table import Row
from comparison.run.store import Run
from comparison.show.report.charts import FOR_POINTERS, INK, Chart, pointer_line, switch
from comparison.show.report.looks import Looks
from comparison.show.report.speed_figures import looks_of_rows

MAX_POINTS = 400  # of a line; more points would be less than a pixel apart
LEAST_ACCURACY_SPAN = (2.0, 20)  # of an axis: percentage points, and test images, so that one image looks unimportant


@dataclass(frozen=True)
class Quantity:
    """The quantity that curves show: name of its files, title of its axis, number format, values after an epoch."""

    name: str
    label: str
    form: str
    train: Callable[[EpochLine], float | None]
    test: Callable[[EpochLine], float | None]


LOSS = Quantity("loss", "Loss", numbers.LOSS, lambda line: line.train_loss, lambda line: line.test_loss)
ACCURACY = Quantity(
    "accuracy",
    "Accuracy, %",
    numbers.PERCENT,
    lambda line: None if line.train_accuracy is None else 100 * line.train_accuracy,
    lambda line: None if line.test_accuracy is None else 100 * line.test_accuracy,
)


def accuracy_scale(percentages: Sequence[float], num_images: int) -> alt.Scale:
    """An axis on which a difference of a few test images looks small."""
    least = max(LEAST_ACCURACY_SPAN[0], 100 * LEAST_ACCURACY_SPAN[1] / num_images)
    low, high = min(percentages), max(percentages)
    missing = max(0.0, least - (high - low))
    high = min(100.0, high + missing / 2)
    return alt.Scale(domain=[max(0.0, min(low, high - least)), high], nice=True, zero=False)


def curves(rows: Sequence[Row]) -> Iterator[Chart]:
    """Curves of each row: over seconds, its typical run; over epochs, the mean over seeds with a band of all seeds.

    There are none of a single epoch, which would be a dot.
    """
    if all(len(row.runs[0].epochs) < 2 for row in rows):
        return
    for quantity in (ACCURACY, LOSS):
        yield _over_seconds(rows, quantity)
        yield _over_epochs(rows, quantity)


def _over_seconds(rows: Sequence[Row], quantity: Quantity) -> Chart:
    data: list[dict[str, Any]] = []
    for row in rows:
        run = row.typical_run
        seconds = np.cumsum([(line.train_seconds or 0.0) + line.eval_seconds for line in run.epochs])
        for line, second in zip(run.epochs, seconds.tolist(), strict=True):
            for kind, value in (("training", quantity.train(line)), ("test", quantity.test(line))):
                data.append({"row": row.title, "set": kind, "x": second, "value": value, "epoch": line.epoch})
    table, looks = pd.DataFrame(data), looks_of_rows(rows)
    axis = alt.X("x:Q", title="Seconds of training and evaluation, without start-up").scale(zero=True)
    tooltip = [alt.Tooltip("row:N", title="framework"), alt.Tooltip("set:N"), alt.Tooltip("epoch:Q")]
    tooltip += [alt.Tooltip("x:Q", title="seconds", format=numbers.SECONDS)]
    tooltip += [alt.Tooltip("value:Q", title=quantity.label, format=quantity.form)]
    points = alt.Chart(table, name=f"{FOR_POINTERS}points").mark_point(size=120, opacity=0)
    points = points.encode(axis, value_axis(rows, quantity, table), tooltip=tooltip)
    return _chart(rows, quantity, "seconds", [lines_of(table, axis, rows, quantity, looks), points], looks)


def _over_epochs(rows: Sequence[Row], quantity: Quantity) -> Chart:
    data: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        runs = list({run.record.seed: run for run in reversed(row.runs)}.values())  # the first one of each seed
        for kind, value in (("training", quantity.train), ("test", quantity.test)):
            values = np.array([[value(line) for line in run.epochs] for run in runs], dtype=float)
            if np.isnan(values).all():
                continue
            parts = zip(runs[0].epochs, values.mean(axis=0), values.min(axis=0), values.max(axis=0), strict=True)
            for line, mean, low, high in parts:
                data.append(
                    {"row": row.title, "key": f"{kind}{number}", "set": kind, "x": line.epoch}
                    | {"value": mean, "low": low, "high": high}
                )
    table, looks = pd.DataFrame(data), looks_of_rows(rows)
    axis = epoch_axis(table)
    layers = [lines_of(table, axis, rows, quantity, looks)]
    if (table["low"] < table["high"]).any():
        band = (
            alt.Chart(table)
            .mark_area(opacity=0.15)
            .encode(axis, alt.Y("low:Q"), alt.Y2("high:Q"), looks.colour(legend=True))
        )
        layers.insert(0, band.encode(detail="set:N"))
    titles = {f"test{number}": row.title for number, row in enumerate(rows)}
    tests = table[table["set"] == "test"][["x", "key", "value"]]
    layers.append(pointer_line(tests, axis, titles, quantity.form, "after epoch"))
    return _chart(rows, quantity, "epochs", layers, looks)


def epoch_axis(table: pd.DataFrame) -> alt.X:
    """The axis of charts over epochs; `table` has the epochs in `x`."""
    last = int(table["x"].max())
    return alt.X("x:Q", title="Epoch").scale(nice=False).axis(tickMinStep=1, tickCount=min(10, last), format="d")


def lines_of(table: pd.DataFrame, axis: alt.X, rows: Sequence[Row], quantity: Quantity, looks: Looks) -> alt.Chart:
    """A line for each `row` and `set` of `table`, strong for the set test, pale for training; values in `value`."""
    chosen = switch()
    pale = alt.Scale(domain=["test", "training"], range=[1, 0.4])
    lines: alt.Chart = alt.Chart(table).mark_line(point=bool(table.groupby("row")["x"].nunique().max() < 3))
    lines = lines.encode(
        axis,
        value_axis(rows, quantity, table),
        *looks.line(),
        opacity=alt.Opacity("set:O", scale=pale, legend=None),
        detail="set:N",
    )
    return lines.add_params(chosen).transform_filter(chosen)


def value_axis(rows: Sequence[Row], quantity: Quantity, table: pd.DataFrame) -> alt.Y:
    axis = alt.Y("value:Q", title=quantity.label)
    if quantity is LOSS:
        return axis.scale(type="log", nice=False).axis(format="~g", tickCount=5)
    results = rows[0].results
    return axis.scale(accuracy_scale(table["value"].dropna().tolist(), results[0].test_count))


def _chart(rows: Sequence[Row], quantity: Quantity, axis: str, layers: Sequence[alt.Chart], looks: Looks) -> Chart:
    ends = ", ".join(
        f"{row.title} {line.test_accuracy:{numbers.ACCURACY}} with loss {line.test_loss:{numbers.LOSS}}"
        for row in rows
        for line in row.runs[0].epochs[-1:]
    )
    title = f"{quantity.label.partition(',')[0]} over {axis}"
    about = (
        "Strong lines: the test set. Pale lines: the training set, averaged over an epoch while the weights changed."
    )
    about += (
        " Each row is shown by its run with the median duration."
        if axis == "seconds"
        else " Lines on top of each other mean equal values."
    )
    return Chart(
        f"{quantity.name}-{axis}",
        title,
        about,
        f"{title}, a line for each implementation; on the test set they end at {ends}",
        layers,
        260 + looks.legend_height,
    )


def lockstep(rows: Sequence[Row]) -> Iterator[Chart]:
    """Differences of step losses from those of the first row, for its first seed: the effect of rounding."""
    reference, others = rows[0].runs[0], []
    configs: list[TrainConfig] = []
    for row in rows[1:]:
        run: Run | None = next((run for run in row.runs if run.record.seed == reference.record.seed), None)
        if run and run.result and len(run.losses) and len(reference.losses):
            configs.append(run.result.config)
            others.append((row, loss_differences(reference.losses, run.losses)))
    if not others or reference.result is None:
        return
    unit = roundoff(reference.result.config, *configs)
    data, words = [], []
    for number, (row, differences) in enumerate(others):
        steps, largest = _thinned(differences)
        # A logarithmic axis has no zero: losses that are equal to the last bit are drawn at its lower end.
        drawn = np.maximum(largest, unit / 50)
        columns = {"row": row.title, "key": f"row{number}", "x": steps, "value": largest, "drawn": drawn}
        data.append(pd.DataFrame(columns))
        words.append(f"{row.title} at most {differences.max():{numbers.DIFFERENCE}}")
    table, looks = pd.concat(data), looks_of_rows(rows)
    looks = Looks({row.title: looks.of[row.title] for row, _ in others})
    axis = alt.X("x:Q", title="Step").scale(nice=False)
    if len(others[0][1]) > 200:
        axis = axis.scale(type="log").axis(format="~s", tickCount=5)
    value = alt.Y("drawn:Q", title=f"Difference in loss from {rows[0].title}")
    value = value.scale(type="log", nice=False).axis(format=numbers.DIFFERENCE, tickCount=6)
    chosen = switch()
    lines = alt.Chart(table).mark_line().encode(axis, value, *looks.line()).add_params(chosen).transform_filter(chosen)
    rounding = alt.Chart(pd.DataFrame({"drawn": [unit]})).mark_rule(color=INK, strokeDash=[4, 3])
    yield Chart(
        "lockstep",
        "Lockstep",
        f"Same weights, same examples: only rounding makes the losses of a step differ. The dashed line is the rounding"
        f" error of a single number, {unit:{numbers.DIFFERENCE}}; errors add up over the steps. Equal losses are drawn"
        " at the bottom.",
        f"Difference of every step's loss from {rows[0].title}, logarithmic: {', '.join(words)}",
        [
            lines,
            rounding.encode(alt.Y("drawn:Q")),
            pointer_line(
                table[["x", "key", "value"]],
                axis,
                {f"row{number}": row.title for number, (row, _) in enumerate(others)},
                ".1e",
                "up to step",
            ),
        ],
        260 + looks.legend_height,
    )


def _thinned(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and values to draw: of several steps in one pixel only the largest value, so that none is hidden."""
    edges = np.unique(np.linspace(0, len(values), min(len(values), MAX_POINTS) + 1).astype(int))
    return edges[1:].astype(float), np.maximum.reduceat(values, edges[:-1])


# --- With --check-learning ---


def learning_curves(rows: Sequence[Row]) -> Iterator[Chart]:
    """The chart of a table's rows; no chart if learning was not checked."""
    data, words = [], []
    for row in rows:
        fit = row.fit
        if fit is None:
            continue
        for kind, lines in (("training", fit.train), ("test", fit.test)):
            data += [
                {"row": row.title, "set": kind, "x": line.epoch, "value": line.test_loss}
                | {"accuracy": line.test_accuracy}
                for line in lines
            ]
        train, test = (format(lines[-1].test_loss, numbers.LOSS) for lines in (fit.train, fit.test))
        words.append(f"{row.title} ends at {train} on training and {test} on test images: {fit.verdict}")
    if not data:
        return
    table, looks = pd.DataFrame(data), looks_of_rows(rows)
    x, y = epoch_axis(table), value_axis(rows, LOSS, table)
    tooltip = [alt.Tooltip("row:N", title="framework"), alt.Tooltip("set:N"), alt.Tooltip("x:Q", title="epoch")]
    tooltip += [alt.Tooltip("value:Q", title="loss", format=numbers.LOSS)]
    tooltip.append(alt.Tooltip("accuracy:Q", format=numbers.ACCURACY))
    points = (
        alt.Chart(table, name=f"{FOR_POINTERS}points").mark_point(size=120, opacity=0).encode(x, y, tooltip=tooltip)
    )
    yield Chart(
        "learning",
        "Underfitting or overfitting",
        "Strong lines: the test images. Pale lines: the same number of training images, evaluated in the same way:"
        " after the epoch, without dropout or augmentation. Both high: underfitting. The pale line far below the strong"
        " one, or the strong one rising: overfitting.",
        f"Loss on training and test images over epochs: {'; '.join(words)}",
        [lines_of(table, x, rows, LOSS, looks), points],
        260 + looks.legend_height,
    )
