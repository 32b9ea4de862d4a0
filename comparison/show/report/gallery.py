"""The gallery: test images that some implementation got wrong (its mistakes), as a grid of pictures."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from common.data.formats import Images
from common.record.predictions import Predictions, as_rgb
from comparison.measure.table import Table

MAX_GALLERY = 24


@dataclass(frozen=True)
class Mistake:
    """A test image that some implementation got wrong.

    Attributes:
      picture: as a data URI.
      guesses: the guesses of the rows; each with its highest score, whether it is right, and the rows' titles.
    """

    index: int
    picture: str
    label: str
    guesses: list[tuple[str, float, bool, str]]


def find_mistakes(table: Table) -> tuple[list[Mistake], int]:
    """Test images that some implementation got wrong: up to MAX_GALLERY of them, and how many there are in all.

    Images on which the implementations disagree come first. Within both groups, the images with the highest score of a
    wrong guess come first.
    """
    if table.first_result is None or table.first_result.test_accuracy is None:
        return [], 0
    names, seed = table.first_result.class_names, table.first_result.config.seed
    predictions: dict[str, Predictions] = {}
    for row in table.finished:
        for run in row.runs.loc[row.runs["seed"] == seed, "run"].head(1):
            predictions[row.title] = Predictions.read(run.run_dir)
    pictures: dict[int, Images] = {}
    for predicted in predictions.values():
        pictures |= dict(zip(predicted.wrong_indices.tolist(), predicted.wrong_images, strict=True))
    titles, labels = [*predictions], next(iter(predictions.values())).labels
    guesses, scores = (np.array([getattr(of, name) for of in predictions.values()]) for name in ("guesses", "scores"))
    wrong = guesses != labels
    disagree, worst = (guesses != guesses[0]).any(axis=0), np.where(wrong, scores, 0).max(axis=0)

    def guesses_of(index: int) -> Iterator[tuple[str, float, bool, str]]:
        for guess in dict.fromkeys(guesses[:, index].tolist()):
            rows = np.flatnonzero(guesses[:, index] == guess)
            who = "all rows" if len(rows) == len(titles) > 1 else ", ".join(titles[row] for row in rows)
            yield names[guess], float(scores[rows, index].max()), bool(guess == labels[index]), who

    chosen = sorted(pictures, key=lambda index: (disagree[index], worst[index]), reverse=True)[:MAX_GALLERY]
    mistakes = [
        Mistake(index, _picture(pictures[index]), names[labels[index]], list(guesses_of(index))) for index in chosen
    ]
    return mistakes, int(wrong.any(axis=0).sum())


def _picture(image: Images) -> str:
    """uint8 (H, W, C) as a PNG in a data URI."""
    file = io.BytesIO()
    Image.fromarray(as_rgb(image)).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
