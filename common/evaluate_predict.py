"""evaluate and predict: their options, what a trained network is used on, and the results from its logits."""

import json
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from common.data.datasets import Dataset, DataSpec, data_spec, load_dataset
from common.data.image_folder import read_image
from common.experiment import Experiment
from common.platform.cli import complaint, option_name
from common.platform.errors import DivergedError, UserError
from common.platform.files import invalid_file_error, read_json_model, read_safetensors_metadata
from common.platform.launch import Launch
from common.record.predictions import confusion
from common.record.results import CONFIG_FILE, TRAINED_ON
from common.spec.options import DatasetName, ImageShape, ModelName, Precision, TrainConfig

Logits = NDArray[np.floating]

MOST_CONFUSIONS = 12  # that are shown, the most frequent ones
SHOWN_CLASSES = 3  # most likely classes that are shown for a picture


# --- Options ---


class UseConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """The options that evaluate and predict have in common."""

    weights: Path
    """a model.safetensors; data set and network are those of the config.json beside it, unless given"""
    dataset: DatasetName | None = None
    """the data set that the network was trained on"""
    data_dir: Path | None = None
    """folder of data sets"""
    image_shape: ImageShape | None = None
    """height, width and channels of synthetic images"""
    model: ModelName | None = None
    """the network"""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: the GPU where there is one"""
    threads_per_device: Literal["auto"] | Annotated[int, Field(gt=0)] = "auto"
    """CPU threads; auto: as many as cores"""
    precision: Annotated[Precision, BeforeValidator(lambda value: str(value))] = "32"
    """bits of every float, or mixed"""
    format: Literal["text", "json"] = "text"
    """what is printed"""

    def train_config(self) -> TrainConfig:
        """The configuration of the training that made the network, for one device.

        Raises UserError if the weights file is missing; config.json can't be read; config.json is missing, and data set
        or network are not given; or options contradict each other.
        """
        if not self.weights.is_file():
            raise UserError(f"--weights {self.weights}: no such file")
        path, trained = self.weights.parent / CONFIG_FILE, TrainConfig()
        given: dict[str, Any] = {"initial_weights": self.weights}
        if path.exists():
            trained = read_json_model(TrainConfig, path)
            if self.dataset or self.data_dir:  # its sizes may differ from those of the data set trained on
                given |= dict.fromkeys(("test_size", "image_shape"))
        elif missing := [option_name(name) for name in ("dataset", "model") if getattr(self, name) is None]:
            raise UserError(f"--weights {self.weights}: no {CONFIG_FILE} beside it; give {' and '.join(missing)}")
        named = {name: getattr(self, name) for name in type(self).model_fields if name in TrainConfig.model_fields}
        given |= {name: value for name, value in named.items() if value is not None}
        try:
            return trained.made_for("use", **given)
        except ValidationError as error:
            raise UserError("; ".join(map(complaint, error.errors()))) from None


class EvaluateConfig(UseConfig):
    """The options of evaluate; `python -m <implementation> evaluate --help` prints them all."""

    test_size: int | None = Field(None, gt=0)
    """use the first N test examples; unset: as in training"""


class PredictConfig(UseConfig):
    """The options of predict; `python -m <implementation> predict --help` prints them all."""

    images: list[Path] = Field(min_length=1)
    """pictures, of any usual file format; where one has another shape, what is too much is cut off"""


# The first word of the command line -> its options, and what its --help says of it.
USES: dict[str, tuple[type[UseConfig], str]] = {
    "evaluate": (EvaluateConfig, "Evaluates a trained network on its test set, on one device."),
    "predict": (PredictConfig, "Says what a trained network sees in pictures, on one device."),
}


# --- Data ---


def dataset_to_use(use: UseConfig, config: TrainConfig) -> Dataset:
    """The data set to evaluate on; for predict, one made of the pictures. `config` is that of the training.

    Its classes, image shape and normalisation are those that the network was trained with.

    Raises UserError if weights, data or a picture can't be read, if the network was trained on other images or
    classes, or if a launcher has started several processes.
    """
    launch = Launch.read()
    if launch.world_size is not None and launch.world_size > 1:
        raise UserError(f"{launch.started_by} has started {launch.world_size} processes; evaluate and predict need one")
    trained_on = read_trained_on(use.weights)
    if isinstance(use, PredictConfig):
        return read_pictures(use, config.dataset, trained_on or data_spec(config))
    dataset = load_dataset(config)
    if trained_on is None:
        return dataset
    for one, other in zip_longest(trained_on.class_names, dataset.class_names, fillvalue="no class"):
        if one != other:
            raise UserError(f"--weights {use.weights}: trained on class {one!r} where this data set has {other!r}")
    if trained_on.image_shape != dataset.image_shape:
        one, other = (" x ".join(map(str, shape)) for shape in (trained_on.image_shape, dataset.image_shape))
        raise UserError(f"--weights {use.weights}: trained on images of {one}; this data set has images of {other}")
    return replace(dataset, spec=trained_on)


def read_pictures(use: PredictConfig, name: DatasetName, spec: DataSpec) -> Dataset:
    """A data set of the pictures, whose labels are all 0; `name`: of that which the network was trained on."""
    if spec.is_float:
        raise UserError("predict: the network takes arrays of float32; pictures have values from 0 to 255")
    if spec.image_shape[2] not in (1, 3):
        raise UserError(f"predict: the network takes images of {spec.image_shape[2]} channels; pictures have 1 or 3")
    images = np.stack([read_image(path, spec.image_shape)[0] for path in use.images])
    images = np.round(images * (spec.largest / 255)).astype(np.uint8)
    split = images, np.zeros(len(images), dtype=np.int64)
    return Dataset(name, spec, *split, *split, sha256="")


def read_trained_on(weights: Path) -> DataSpec | None:
    """What the network was trained on; None if its file does not say so. Raises UserError if it can't be read."""
    text = read_safetensors_metadata(weights, "--weights ").get(TRAINED_ON)
    try:
        return None if text is None else DataSpec.model_validate_json(text)
    except ValidationError as error:
        raise invalid_file_error(weights, error) from None


# --- Results ---


def show_use(use: UseConfig, experiment: Experiment, implementation: str, logits: Logits) -> None:
    """Prints the results of a network; `logits` are those of the test images, float (n, classes).

    Raises:
      DivergedError: some logits are not finite.
    """
    if broken := np.count_nonzero(~np.isfinite(logits).all(axis=1)):
        raise DivergedError(
            f"--weights {use.weights}: with --precision {use.precision} the logits of {broken:,} of"
            f" {len(logits):,} images are not finite; the network can't be used"
        )
    results: Any
    if isinstance(use, PredictConfig):
        results = predictions_of(logits, list(map(str, use.images)), experiment.dataset)
        lines = [prediction_line(prediction) for prediction in results]
    else:
        results = evaluation_of(implementation, experiment, logits)
        lines = evaluation_lines(results)
    print(json.dumps(results) if use.format == "json" else "\n".join(lines))


# --- evaluate ---


def evaluation_of(implementation: str, experiment: Experiment, logits: Logits) -> dict[str, Any]:
    """The results of a network on a test set, by name.

    `top5_accuracy` is the share of images whose class is among the five with the largest scores; of equal scores the
    first ones count. `test_loss`: the mean cross-entropy, whatever loss the network was trained with.
    `confusion`: number of images of each class (row) that were predicted as each class (column).
    """
    config, dataset = experiment.config, experiment.dataset
    labels, count = dataset.test_labels, len(dataset.test_labels)
    order = np.argsort(-logits, axis=1, kind="stable")
    places = (order == labels[:, None]).argmax(axis=1)  # position of the true class, from 0
    correct = int((places == 0).sum())
    largest = logits.max(axis=1).astype(np.float64)
    right = logits[np.arange(count), labels].astype(np.float64)
    losses = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest - right
    return {
        "implementation": implementation,
        "weights": str(config.initial_weights),
        "dataset": config.dataset,
        "model": config.model,
        "test_count": count,
        "test_correct": correct,
        "test_accuracy": correct / count,
        "top5_accuracy": float((places < 5).mean()),
        "test_loss": float(losses.mean()),
        "class_names": dataset.class_names,
        "confusion": confusion(labels, order[:, 0], dataset.num_classes).tolist(),
    }


def evaluation_lines(results: dict[str, Any]) -> list[str]:
    names, wrong = results["class_names"], np.array(results["confusion"])
    top5 = ", top-5 {top5_accuracy:.2%}" if len(names) > 5 else ""
    shown = "accuracy {test_accuracy:.2%} ({test_correct:,} of {test_count:,})" + top5 + ", loss {test_loss:.4f}\n"
    about = "{model} of {weights} on {dataset}, in {implementation}"
    lines = [about.format(**results), shown.format(**results), "most frequent confusions:"]
    np.fill_diagonal(wrong, 0)
    most = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSIONS]
    for label, guess in zip(*np.unravel_index(most, wrong.shape), strict=True):
        if wrong[label, guess]:
            lines.append(f"  {wrong[label, guess]:5} {names[label]} taken for {names[guess]}")
    return lines


# --- predict ---


def predictions_of(logits: Logits, pictures: list[str], dataset: Dataset) -> list[dict[str, Any]]:
    """For each picture, its predicted class, the score of this class, and the scores of all classes: the softmax."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    scores = powers / powers.sum(axis=1, keepdims=True)
    return [
        {
            "image": picture,
            "class": dataset.class_names[row.argmax()],
            "score": float(row.max()),
            "scores": dict(zip(dataset.class_names, row.tolist(), strict=True)),
        }
        for picture, row in zip(pictures, scores, strict=True)
    ]


def prediction_line(prediction: dict[str, Any]) -> str:
    best = sorted(prediction["scores"].items(), key=lambda item: -item[1])[:SHOWN_CLASSES]
    return f"{prediction['image']}: {', '.join(f'{name} {score:.1%}' for name, score in best)}"
