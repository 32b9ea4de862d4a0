"""The learning curves of a table: accuracy over seconds, loss over epochs, losses on training and test images."""

from collections.abc import Iterator, Sequence

import altair as alt
import pandas as pd

from common.record.results import EpochLine
from comparison.measure.row import Row
from comparison.show.report.charts import Chart
from comparison.show.report.looks import looks_of_rows

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
    table = pd.concat([_epochs(row.title, row.typical_run.epochs) for row in rows])
    if len(table) == len(rows):  # a single epoch would be a dot
        return
    table["x"] = (table["train_seconds"] + table["eval_seconds"]).groupby(table["row"]).cumsum()
    table["value"] = 100 * table["test_accuracy"]
    table = table[["row", "x", "value"]]
    x = alt.X("x:Q", title="Seconds of training and evaluation, without start-up").scale(zero=True)
    y = alt.Y("value:Q", title="Test accuracy, %")
    y = y.scale(accuracy_scale(table["value"].tolist(), rows[0].results[0].test_count))
    yield Chart(
        "accuracy",
        "Accuracy over seconds",
        "On the test set, in each row's run with the median duration.",
        [_lines(rows, table, x, y)],
        _height(rows),
    )


def loss_over_epochs(rows: Sequence[Row]) -> Iterator[Chart]:
    """A strong line for each row's test loss, a pale one for its training loss: the means over seeds."""
    parts = []
    for row in rows:
        firsts = row.runs.drop_duplicates("seed")["run"]
        means = pd.concat([_epochs(row.title, run.epochs) for run in firsts]).groupby("epoch")
        for kind, column in (("training", "train_loss"), ("test", "test_loss")):
            line = means[column].mean().reset_index().set_axis(["x", "value"], axis=1)
            parts.append(line.assign(row=row.title, set=kind))
    table = pd.concat(parts)
    if len(table) == len(parts):
        return
    yield Chart(
        "loss",
        "Loss over epochs",
        "Strong lines: the test set. Pale lines: the training set, averaged over an epoch while the weights changed."
        " Lines on top of each other mean equal values.",
        [_lines(rows, table, _epoch_axis(table), _loss_axis())],
        _height(rows),
    )


def learning_curves(rows: Sequence[Row]) -> Iterator[Chart]:
    """Losses on training and test images, with `--check-learning`."""
    parts = []
    for row in rows:
        if fit := row.fit:
            parts.append(_epochs(row.title, fit.train).assign(set="training"))
            parts.append(_epochs(row.title, fit.test).assign(set="test"))
    if not parts:
        return
    table = pd.concat(parts).rename(columns={"epoch": "x", "test_loss": "value"})[["row", "set", "x", "value"]]
    yield Chart(
        "learning",
        "Underfitting or overfitting",
        "Strong lines: the test images. Pale lines: the same number of training images, evaluated in the same way:"
        " after the epoch, without dropout or augmentation. Both high: underfitting. The pale line far below the strong"
        " one, or the strong one rising: overfitting.",
        [_lines(rows, table, _epoch_axis(table), _loss_axis())],
        _height(rows),
    )


def _epochs(title: str, epochs: Sequence[EpochLine]) -> pd.DataFrame:
    """A line for each evaluation; `row` is the title."""
    return pd.DataFrame(map(dict, epochs)).assign(row=title)


def _height(rows: Sequence[Row]) -> float:
    return 260 + looks_of_rows(rows).legend_height


def _epoch_axis(table: pd.DataFrame) -> alt.X:
    last = int(table["x"].max())
    return alt.X("x:Q", title="Epoch").scale(nice=False).axis(tickMinStep=1, tickCount=min(10, last), format="d")


def _loss_axis() -> alt.Y:
    return alt.Y("value:Q", title="Loss").scale(type="log", nice=False).axis(format="~g", tickCount=5)


def _lines(rows: Sequence[Row], table: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    """A line for each `row` of `table` and, if it has a column `set`, a pale one for the training set."""
    lines: alt.Chart = alt.Chart(table).mark_line(point=bool(table.groupby("row")["x"].nunique().max() < 3))
    lines = lines.encode(x, y, *looks_of_rows(rows).line())
    if "set" not in table:
        return lines
    pale = alt.Scale(domain=["test", "training"], range=[1, 0.4])
    return lines.encode(opacity=alt.Opacity("set:O", scale=pale, legend=None), detail="set:N")
