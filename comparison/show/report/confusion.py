"""Confusion matrices: how often each class was guessed for the images of each class."""

from collections.abc import Iterator, Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from common.platform.errors import UserError
from common.record.predictions import Predictions
from comparison.measure.table import Row, same_seed_runs
from comparison.run.store import Run
from comparison.show.report.charts import WIDTH, Chart

MOST_NAMED = 20  # classes; the names of more would be too small to read


def confusions(rows: Sequence[Row]) -> Iterator[Chart]:
    """One matrix for all rows with equal guesses; in lockstep, all rows have equal guesses."""
    alike: list[tuple[dict[str, Run], Predictions]] = []
    for title, run in same_seed_runs(rows).items():
        assert run.result
        try:
            predictions = Predictions.read(run.run_dir, len(run.result.class_names))
        except UserError:  # this implementation does not write predictions
            continue
        for runs, others in alike:
            if np.array_equal(others.guesses, predictions.guesses):
                runs[title] = run
                break
        else:
            alike.append(({title: run}, predictions))
    for number, (runs, predictions) in enumerate(alike, 1):
        result = next(iter(runs.values())).result
        assert result
        title = f"Confusion matrix {number}" if alike[1:] else "Confusion matrix"
        yield _confusion(title, runs, predictions.confusion(len(result.class_names)), result.class_names)


def _confusion(title: str, runs: Mapping[str, Run], counts: NDArray[np.int64], names: Sequence[str]) -> Chart:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    table = pd.DataFrame(
        {"class": names[i], "guess": names[j], "images": int(counts[i, j]), "share": float(shares[i, j])}
        for i, j in np.ndindex(counts.shape)
    )
    few = len(names) <= MOST_NAMED
    named = alt.Axis(labels=few, ticks=False, grid=False, labelOverlap=False)
    turned = alt.Axis(labels=few, ticks=False, grid=False, labelOverlap=False, labelAngle=_angle(names))
    base = alt.Chart(table).encode(
        alt.X("guess:N", sort=None, title="Guess", axis=turned),
        alt.Y("class:N", sort=None, title="Class", axis=named),
    )
    scale = alt.Scale(domain=[0, 1], range=["#f7fbff", "#08519c"])
    tooltip = [alt.Tooltip("class:N"), alt.Tooltip("guess:N"), alt.Tooltip("images:Q")]
    tooltip.append(alt.Tooltip("share:Q", title="share of the class", format=".1%"))
    layers = [base.mark_rect().encode(alt.Color("share:Q", scale=scale, legend=None), tooltip=tooltip)]
    if few:
        ink = alt.condition(alt.datum.share > 0.5, alt.value("#ffffff"), alt.value("#000000"))
        numbers = base.transform_filter(alt.datum.images > 0).mark_text(fontSize=10)
        layers.append(numbers.encode(text="images:Q", color=ink, tooltip=tooltip))
    right, who = int(np.trace(counts)), ", ".join(runs)
    worst = [(int(counts[i, j]), names[i], names[j]) for i, j in zip(*np.nonzero(counts), strict=True) if i != j]
    worst.sort(reverse=True)
    words = "; ".join(f"{label} taken for {guess} {count} times" for count, label, guess in worst[:5])
    return Chart(
        f"confusion-{'-'.join(run.record.name for run in runs.values())}",
        title,
        f"{who}. Each cell counts the test images of its row's class for which its column's class was guessed."
        " Correct guesses lie on the diagonal.",
        f"Confusion matrix of {who}: {right} of {counts.sum()} right; {words or 'no mistakes'}",
        layers,
        WIDTH - 30,
    )


def _angle(names: Sequence[str]) -> int:
    return -90 if max(map(len, names)) > 2 else 0
