"""The results that evaluate and predict compute from a network's logits and print."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from common.data.datasets import Dataset, dataset_of, image_shape_of, load_dataset
from common.data.image_folder import read_image
from common.platform.errors import UserError
from common.record.predictions import confusion
from common.record.results import RESULT_FILE, read_result
from common.spec.options import TrainConfig
from common.trained.command import Command, PredictConfig

Logits = NDArray[np.floating]

MOST_CLASSES = 12  # up to which all confusions are shown; with more classes, the most frequent ones
SHOWN = 3  # most likely classes that are shown for a picture


def read_used(command: Command) -> Dataset:
    """The data set to evaluate on; for predict, a data set made of the pictures.

    Raises:
      UserError: data or pictures can't be read.
    """
    if not isinstance(command.use, PredictConfig):
        dataset = load_dataset(command.config)
        check_classes(command, dataset)
        return dataset
    shape = image_shape_of(command.config)
    if shape[2] not in (1, 3):
        raise UserError(f"predict: the network takes images of {shape[2]} channels; pictures have 1 or 3")
    return dataset_of(command.config, np.stack([read_image(one, shape, command.use.fit) for one in command.use.images]))


def check_classes(command: Command, dataset: Dataset) -> None:
    """Raises UserError if the network was trained on other classes, according to a result beside its weights."""
    assert command.use is not None
    folder = command.use.weights.parent
    if not (folder / RESULT_FILE).exists():
        return
    trained = read_result(folder).class_names
    if len(trained) == len(dataset.class_names) and trained != dataset.class_names:  # shapes show another number
        one, other = next(pair for pair in zip(trained, dataset.class_names, strict=True) if pair[0] != pair[1])
        raise UserError(f"--weights {command.use.weights}: trained on class {one!r} where this data set has {other!r}")


def show(command: Command, implementation: str, dataset: Dataset, logits: Logits) -> None:
    """Prints the results of a network on `dataset`; `logits` are those of its test images, float (n, classes)."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    assert command.use is not None
    as_json = command.use.format == "json"
    if isinstance(command.use, PredictConfig):
        answers = answers_of(logits, [str(path) for path in command.use.images], dataset)
        if as_json:
            print(json.dumps(answers))
        else:
            show_answers(answers, console)
        return
    evaluation = Evaluation.make(implementation, command.config, dataset, logits)
    if as_json:
        print(json.dumps(asdict(evaluation)))
    else:
        evaluation.show(console)


def scores_of(logits: Logits) -> NDArray[np.float64]:
    """The softmax of the logits, float64 (n, classes)."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


# --- evaluate ---


@dataclass(frozen=True)
class Evaluation:
    """The results of a network on a test set.

    Attributes:
      top5_accuracy: share of images whose class is among the five with the largest scores; of equal scores the first
        ones count.
      confusion: number of images of each class (row) that were predicted as each class (column).
    """

    implementation: str
    weights: str
    dataset: str
    model: str
    test_count: int
    test_correct: int
    test_accuracy: float
    top5_accuracy: float
    test_loss: float
    class_names: list[str]
    confusion: list[list[int]]

    @classmethod
    def make(cls, implementation: str, config: TrainConfig, dataset: Dataset, logits: Logits) -> "Evaluation":
        labels, count = dataset.test_labels, len(dataset.test_labels)
        order = np.argsort(-logits, axis=1, kind="stable")
        places = (order == labels[:, None]).argmax(axis=1)  # position of the true class, from 0
        correct = int((places == 0).sum())
        largest = logits.max(axis=1).astype(np.float64)
        right = logits[np.arange(count), labels].astype(np.float64)
        losses = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest - right
        return cls(
            implementation,
            str(config.initial_weights),
            config.dataset,
            config.model,
            count,
            correct,
            correct / count,
            float((places < 5).mean()),
            float(losses.mean()),
            dataset.class_names,
            confusion(labels, order[:, 0], dataset.num_classes).tolist(),
        )

    def show(self, console: Console) -> None:
        console.print(f"{self.model} of {self.weights} on {self.dataset}, in {self.implementation}")
        top5 = f", top-5 {self.top5_accuracy:.2%}" if len(self.class_names) > 5 else ""
        accuracy = f"accuracy {self.test_accuracy:.2%} ({self.test_correct:,} of {self.test_count:,}){top5}"
        console.print(f"{accuracy}, loss {self.test_loss:.4f}\n")
        if len(self.class_names) <= MOST_CLASSES:
            console.print("confusions: row the class, column the guess")
            table = Table(box=None)
            for heading in ("", *(name[:6] for name in self.class_names)):
                table.add_column(heading, justify="right", no_wrap=True)
            for name, row in zip(self.class_names, self.confusion, strict=True):
                table.add_row(name[:10], *(str(value) if value else "." for value in row))
            console.print(table, soft_wrap=False)
            return
        pairs = [
            (value, name, guess)
            for name, row in zip(self.class_names, self.confusion, strict=True)
            for guess, value in zip(self.class_names, row, strict=True)
            if name != guess and value
        ]
        console.print("most frequent confusions:")
        for value, name, guess in sorted(pairs, key=lambda pair: -pair[0])[:MOST_CLASSES]:
            console.print(f"  {value:5} {name} taken for {guess}")


# --- predict ---


def answers_of(logits: Logits, pictures: list[str], dataset: Dataset) -> list[dict[str, Any]]:
    """For each picture, its predicted class, the score of this class, and the scores of all classes."""
    scores = scores_of(logits)
    return [
        {
            "image": picture,
            "class": dataset.class_names[row.argmax()],
            "score": float(row.max()),
            "scores": dict(zip(dataset.class_names, row.tolist(), strict=True)),
        }
        for picture, row in zip(pictures, scores, strict=True)
    ]


def show_answers(answers: list[dict[str, Any]], console: Console) -> None:
    for answer in answers:
        best = sorted(answer["scores"].items(), key=lambda item: -item[1])[:SHOWN]
        shown = ", ".join(f"{name} {score:.1%}" for name, score in best)
        console.print(f"{answer['image']}: {shown}")
