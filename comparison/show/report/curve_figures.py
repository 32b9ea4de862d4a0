"""The learning curves of a table: accuracy over seconds, loss over epochs, losses on training and test images."""

from collections.abc import Iterator, Sequence

import altair as alt
import pandas as pd

from common.record.results import EpochLine
from comparison.measure.row import Row
from comparison.show.report.charts import Chart, looks_of_rows

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
    table = pd.concat([_epochs(row, row.typical_run.epochs) for row in rows])
    if len(table) == len(rows) or table["test_accuracy"].isna().any():  # a single epoch would be a dot
        return
    table["seconds"] = (table["train_seconds"] + table["eval_seconds"]).groupby(table["row"]).cumsum()
    table["value"] = 100 * table["test_accuracy"]
    x = alt.X("seconds:Q", title="Seconds of training and evaluation, without start-up").scale(zero=True)
    y = alt.Y("value:Q", title="Test accuracy, %")
    y = y.scale(accuracy_scale(table["value"].tolist(), rows[0].results[0].test_count))
    about = "On the test set, in each row's run with the median duration."
    yield Chart("accuracy", "Accuracy over seconds", about, [_lines(rows, table).encode(x, y)])


def loss_over_epochs(rows: Sequence[Row]) -> Iterator[Chart]:
    """A strong line for each row's test loss, a pale one for its training loss: the means over seeds."""
    parts = [_epochs(row, run.epochs) for row in rows for run in row.runs.drop_duplicates("seed")["run"]]
    means = pd.concat(parts).groupby(["row", "epoch"], sort=False)[["train_loss", "test_loss"]].mean()
    if len(means) == len(rows):
        return
    table = means.set_axis(["training", "test"], axis=1).melt(var_name="set", ignore_index=False).reset_index()
    yield Chart(
        "loss",
        "Loss over epochs",
        "Strong lines: the test set. Pale lines: the training set, averaged over an epoch while the weights changed."
        " Lines on top of each other mean equal values.",
        [_loss_lines(rows, table)],
    )


def learning_curves(rows: Sequence[Row]) -> Iterator[Chart]:
    """Losses on training and test images, with `--check-learning`."""
    sets = {(row, kind): getattr(row.fit, kind) for row in rows if row.fit for kind in ("train", "test")}
    if not sets:
        return
    table = pd.concat([_epochs(row, epochs).assign(set=kind) for (row, kind), epochs in sets.items()])
    table = table.replace({"set": {"train": "training"}}).rename(columns={"test_loss": "value"})
    yield Chart(
        "learning",
        "Underfitting or overfitting",
        "Strong lines: the test images. Pale lines: the same number of training images, evaluated in the same way:"
        " after the epoch, without dropout or augmentation. Both high: underfitting. The pale line far below the strong"
        " one, or the strong one rising: overfitting.",
        [_loss_lines(rows, table)],
    )


def _epochs(row: Row, epochs: Sequence[EpochLine]) -> pd.DataFrame:
    """A line for each evaluation; `row` is the row's title."""
    return pd.DataFrame(map(dict, epochs)).assign(row=row.title)


def _loss_lines(rows: Sequence[Row], table: pd.DataFrame) -> alt.Chart:
    """For each row a strong line, of the test set, and a pale one: the `value` after each `epoch` for each `set`."""
    ticks = min(10, int(table["epoch"].max()) - 1)
    x = alt.X("epoch:Q", title="Epoch").scale(nice=False).axis(tickMinStep=1, tickCount=ticks, format="d")
    y = alt.Y("value:Q", title="Loss").scale(type="log", nice=False).axis(format="~g", tickCount=5)
    pale = alt.Opacity("set:O", scale=alt.Scale(domain=["test", "training"], range=[1, 0.4]), legend=None)
    return _lines(rows, table).encode(x, y, pale, detail="set:N")


def _lines(rows: Sequence[Row], table: pd.DataFrame) -> alt.Chart:
    """A line for each `row` of `table`, with points if it is short."""
    lines: alt.Chart = alt.Chart(table).mark_line(point=bool(table.groupby("row")["epoch"].nunique().max() < 3))
    return lines.encode(*looks_of_rows(rows).line())
