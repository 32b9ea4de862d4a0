"""Confusion matrices: which class was taken for which."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from common.platform.errors import UserError
from common.record.predictions import Predictions
from comparison.report.charts import Chart, new_figure
from comparison.store import Run
from comparison.table import Entry, same_seed_runs


def confusions(entries: Sequence[Entry]) -> Iterator[Chart]:
    """One matrix for all implementations that guess alike, as they do in lockstep."""
    alike: list[tuple[list[Run], Predictions]] = []
    for run in same_seed_runs(entries).values():
        try:
            predictions = Predictions.read(run.run_dir)
        except UserError:  # made by an implementation that writes none
            continue
        for runs, others in alike:
            if np.array_equal(others.guesses, predictions.guesses):
                runs.append(run)
                break
        else:
            alike.append(([run], predictions))
    for runs, predictions in alike:
        assert runs[0].result
        names = runs[0].result.class_names
        yield _confusion(runs, predictions.confusion(len(names)), names)


def _confusion(runs: Sequence[Run], counts: NDArray[np.int64], names: Sequence[str]) -> Chart:
    figure, axes = new_figure(4.1)
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
    right, who = int(np.trace(counts)), ", ".join(run.record.title for run in runs)
    worst = [(int(counts[i, j]), names[i], names[j]) for i, j in zip(*np.nonzero(counts), strict=True) if i != j]
    worst.sort(reverse=True)
    words = "; ".join(f"{label} taken for {guess} {count} times" for count, label, guess in worst[:5])
    alt = f"Confusion matrix of {who}: {right} of {counts.sum()} right; {words or 'no mistakes'}"
    return Chart(f"confusion-{'-'.join(run.record.name for run in runs)}", f"Confusion matrix: {who}", alt, figure)
