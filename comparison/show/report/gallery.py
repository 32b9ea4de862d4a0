"""The gallery: test images that some implementation got wrong (its mistakes), as a grid of pictures."""

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from common.data.formats import Images
from common.platform.errors import UserError
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
    if table.first_result is None:
        return [], 0
    names, seed = table.first_result.class_names, table.first_result.config.seed
    predictions: dict[str, Predictions] = {}
    for row in table.finished:
        run = next((run for run in row.runs["run"] if run.record.seed == seed), None)
        if run is None:
            continue
        try:
            predictions[row.title] = Predictions.read(run.run_dir)
        except UserError:  # this implementation does not write predictions
            continue
    if not predictions:
        return [], 0
    pictures: dict[int, Images] = {}
    wrong: set[int] = set()
    for predicted in predictions.values():
        pictures |= dict(zip(predicted.wrong_indices.tolist(), predicted.wrong_images, strict=True))
        wrong |= set(np.flatnonzero(predicted.labels != predicted.guesses).tolist())

    def interest(index: int) -> tuple[bool, float]:
        guesses = {int(predicted.guesses[index]) for predicted in predictions.values()}
        scores = [
            float(value.scores[index]) for value in predictions.values() if value.guesses[index] != value.labels[index]
        ]
        return len(guesses) > 1, max(scores)

    labels = next(iter(predictions.values())).labels
    chosen = sorted(pictures, key=interest, reverse=True)[:MAX_GALLERY]

    def guesses(index: int) -> Iterator[tuple[str, float, bool, str]]:
        for guess in dict.fromkeys(int(predicted.guesses[index]) for predicted in predictions.values()):
            titles = [title for title, predicted in predictions.items() if predicted.guesses[index] == guess]
            score = max(float(predictions[title].scores[index]) for title in titles)
            who = "all rows" if len(titles) == len(predictions) > 1 else ", ".join(titles)
            yield names[guess], score, bool(guess == labels[index]), who

    mistakes = [
        Mistake(index, _picture(pictures[index]), names[labels[index]], list(guesses(index))) for index in chosen
    ]
    return mistakes, len(wrong)


def _picture(image: Images) -> str:
    """uint8 (H, W, C) as a PNG in a data URI."""
    shown = Image.fromarray(as_rgb(image))
    file = io.BytesIO()
    (shown if image.shape[2] == 3 else shown.convert("L")).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
