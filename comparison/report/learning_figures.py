"""The chart of `--check-learning`: losses on training and test images after each epoch, both from evaluations."""

from collections.abc import Iterator, Sequence

import altair as alt
import pandas as pd

from comparison.report.charts import FOR_POINTERS, Chart
from comparison.report.curve_figures import LOSS, epoch_axis, lines_of, value_axis
from comparison.report.speed_figures import looks_of
from comparison.table import Entry


def learning_curves(entries: Sequence[Entry]) -> Iterator[Chart]:
    """The chart of a table's entries; no chart if learning was not checked."""
    found, words = [], []
    for entry in entries:
        fit = entry.fit
        if fit is None:
            continue
        for kind, lines in (("training", fit.train), ("test", fit.test)):
            found += [
                {"row": entry.title, "set": kind, "x": line.epoch, "value": line.test_loss}
                | {"accuracy": line.test_accuracy}
                for line in lines
            ]
        ends = f"{fit.train[-1].test_loss:.4f} on training and {fit.test[-1].test_loss:.4f} on test images"
        words.append(f"{entry.title} ends at {ends}: {fit.verdict}")
    if not found:
        return
    table, looks = pd.DataFrame(found), looks_of(entries)
    x, y = epoch_axis(table), value_axis(entries, LOSS, table)
    told = [alt.Tooltip("row:N", title="framework"), alt.Tooltip("set:N"), alt.Tooltip("x:Q", title="epoch")]
    told += [alt.Tooltip("value:Q", title="loss", format=".4f"), alt.Tooltip("accuracy:Q", format=".2%")]
    points = alt.Chart(table, name=f"{FOR_POINTERS}points").mark_point(size=120, opacity=0).encode(x, y, tooltip=told)
    yield Chart(
        "learning",
        "Underfitting or overfitting",
        "Strong lines: the test images. Pale lines: as many training images, evaluated in the same way: after the"
        " epoch, without dropout or augmentation. Both high: underfitting. The pale line far below the strong one, or"
        " the strong one rising: overfitting.",
        f"Loss on training and test images over epochs: {'; '.join(words)}",
        [lines_of(table, x, entries, LOSS, looks), points],
        260 + looks.legend_height,
    )
