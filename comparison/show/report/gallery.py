"""The gallery: test images that some implementation got wrong."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from common.data.formats import Images
from common.platform.errors import UserError
from common.record.predictions import Predictions, as_rgb
from comparison.measure.table import Table, same_seed_runs

MAX_GALLERY = 24


@dataclass(frozen=True)
class Mistake:
    """A test image that some implementation got wrong.

    Attributes:
      picture: as a data URI.
      guesses: for each row: its title, its guess, the guess's score, and whether the guess is right.
    """

    index: int
    picture: str
    label: str
    guesses: list[tuple[str, str, float, bool]]


def find_mistakes(table: Table) -> tuple[list[Mistake], int]:
    """Test images that some implementation got wrong: up to MAX_GALLERY of them, and how many there are in all.

    Images on which the implementations disagree come first. Within both groups, the images with the highest score of a
    wrong guess come first.
    """
    found: dict[str, Predictions] = {}
    for run in same_seed_runs(table.rows).values():
        try:
            found[run.record.title] = Predictions.read(run.run_dir)
        except UserError:  # this implementation does not write predictions
            continue
    if not found or table.first_result is None:
        return [], 0
    pictures: dict[int, Images] = {}
    wrong: set[int] = set()
    for one in found.values():
        pictures |= dict(zip(one.wrong_indices.tolist(), one.wrong_images, strict=True))
        wrong |= set(np.flatnonzero(one.labels != one.guesses).tolist())

    def interest(index: int) -> tuple[bool, float]:
        guesses = {int(one.guesses[index]) for one in found.values()}
        scores = [float(one.scores[index]) for one in found.values() if one.guesses[index] != one.labels[index]]
        return len(guesses) > 1, max(scores)

    names = table.first_result.class_names
    labels = next(iter(found.values())).labels
    chosen = sorted(pictures, key=interest, reverse=True)[:MAX_GALLERY]
    return [
        Mistake(
            index,
            _picture(pictures[index]),
            names[labels[index]],
            [
                (name, names[one.guesses[index]], float(one.scores[index]), bool(one.guesses[index] == labels[index]))
                for name, one in found.items()
            ],
        )
        for index in chosen
    ], len(wrong)


def _picture(image: Images) -> str:
    """uint8 (H, W, C) as a PNG in a data URI."""
    shown = Image.fromarray(as_rgb(image))
    file = io.BytesIO()
    (shown if image.shape[2] == 3 else shown.convert("L")).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
