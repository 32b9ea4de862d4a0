"""The learning curves of a table: accuracy over seconds, loss over epochs."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from comparison import numbers
from comparison.measure.row import Row
from comparison.run.store import Run
from comparison.show.report.charts import FOR_POINTERS, Chart, pointer_line, switch
from comparison.show.report.looks import Looks
from comparison.show.report.speed_figures import looks_of_rows

LEAST_ACCURACY_SPAN = (2.0, 20)  # of an axis: percentage points, and test images, so that one image looks unimportant


def accuracy_scale(percentages: Sequence[float], num_images: int) -> alt.Scale:
    """An axis on which a difference of a few test images looks small."""
    least = max(LEAST_ACCURACY_SPAN[0], 100 * LEAST_ACCURACY_SPAN[1] / num_images)
    low, high = min(percentages), max(percentages)
    missing = max(0.0, least - (high - low))
    high = min(100.0, high + missing / 2)
    return alt.Scale(domain=[max(0.0, min(low, high - least)), high], nice=True, zero=False)


def accuracy_over_seconds(rows: Sequence[Row]) -> Iterator[Chart]:
    """A line for each row: the test accuracy after each epoch of its run with the median duration."""
    data = [
        {"row": row.title, "x": second, "value": 100 * line.test_accuracy, "epoch": line.epoch}
        for row in rows
        for line, second in zip(row.typical_run.epochs, _seconds_of(row.typical_run), strict=True)
    ]
    if len(data) == len(rows):  # a single epoch would be a dot
        return
    table, looks = pd.DataFrame(data), looks_of_rows(rows)
    x = alt.X("x:Q", title="Seconds of training and evaluation, without start-up").scale(zero=True)
    y = alt.Y("value:Q", title="Test accuracy, %")
    y = y.scale(accuracy_scale(table["value"].tolist(), rows[0].results[0].test_count))
    tooltip = [alt.Tooltip("row:N", title="framework"), alt.Tooltip("epoch:Q")]
    tooltip += [alt.Tooltip("x:Q", title="seconds", format=numbers.SECONDS)]
    tooltip += [alt.Tooltip("value:Q", title="accuracy, %", format=numbers.PERCENT)]
    points = alt.Chart(table, name=f"{FOR_POINTERS}points").mark_point(size=120, opacity=0)
    ends = ", ".join(
        f"{row.title} {row.runs['run'].iloc[0].epochs[-1].test_accuracy:{numbers.ACCURACY}}" for row in rows
    )
    yield Chart(
        "accuracy",
        "Accuracy over seconds",
        "On the test set, in each row's run with the median duration.",
        f"Test accuracy over seconds, a line for each implementation; they end at {ends}",
        [lines_of(table, x, y, looks), points.encode(x, y, tooltip=tooltip)],
        260 + looks.legend_height,
    )


def _seconds_of(run: Run) -> list[float]:
    """The seconds of training and evaluation until the end of each epoch."""
    seconds: list[float] = np.cumsum([(line.train_seconds or 0.0) + line.eval_seconds for line in run.epochs]).tolist()
    return seconds


def loss_over_epochs(rows: Sequence[Row]) -> Iterator[Chart]:
    """A strong line for each row's test loss, a pale one for its training loss: the means over seeds."""
    data: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        runs = [*row.runs.drop_duplicates("seed")["run"]]  # the first one of each seed
        for kind in ("training", "test"):
            for lines in zip(*(run.epochs for run in runs), strict=True):
                losses = [line.test_loss if kind == "test" else line.train_loss for line in lines]
                data.append(
                    {"row": row.title, "key": f"{kind}{number}", "set": kind, "x": lines[0].epoch}
                    | {"value": None if None in losses else fmean(losses)}
                )
    if len(data) == 2 * len(rows):
        return
    table, looks = pd.DataFrame(data), looks_of_rows(rows)
    x, y = epoch_axis(table), loss_axis()
    tests = table[table["set"] == "test"][["x", "key", "value"]]
    titles = {f"test{number}": row.title for number, row in enumerate(rows)}
    ends = ", ".join(f"{row.title} {row.runs['run'].iloc[0].epochs[-1].test_loss:{numbers.LOSS}}" for row in rows)
    yield Chart(
        "loss",
        "Loss over epochs",
        "Strong lines: the test set. Pale lines: the training set, averaged over an epoch while the weights changed."
        " Lines on top of each other mean equal values.",
        f"Loss over epochs, a line for each implementation; on the test set they end at {ends}",
        [lines_of(table, x, y, looks), pointer_line(tests, x, titles, numbers.LOSS, "after epoch")],
        260 + looks.legend_height,
    )


def epoch_axis(table: pd.DataFrame) -> alt.X:
    """The axis of charts over epochs; `table` has the epochs in `x`."""
    last = int(table["x"].max())
    return alt.X("x:Q", title="Epoch").scale(nice=False).axis(tickMinStep=1, tickCount=min(10, last), format="d")


def loss_axis() -> alt.Y:
    return alt.Y("value:Q", title="Loss").scale(type="log", nice=False).axis(format="~g", tickCount=5)


def lines_of(table: pd.DataFrame, x: alt.X, y: alt.Y, looks: Looks) -> alt.Chart:
    """A line for each `row` of `table` and, if it has a column `set`, a pale one for the training set."""
    chosen = switch()
    lines: alt.Chart = alt.Chart(table).mark_line(point=bool(table.groupby("row")["x"].nunique().max() < 3))
    lines = lines.encode(x, y, *looks.line()).add_params(chosen).transform_filter(chosen)
    if "set" not in table:
        return lines
    pale = alt.Scale(domain=["test", "training"], range=[1, 0.4])
    return lines.encode(opacity=alt.Opacity("set:O", scale=pale, legend=None), detail="set:N")


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
    x, y = epoch_axis(table), loss_axis()
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
        [lines_of(table, x, y, looks), points],
        260 + looks.legend_height,
    )
