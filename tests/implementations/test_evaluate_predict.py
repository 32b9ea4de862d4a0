"""`evaluate` and `predict` put a trained network to use; that they agree in all frameworks is tests/parity's."""

import json
import re
import shutil

import numpy as np
import pytest
from conftest import run_program, train
from PIL import Image

from common.data.arrays import write_arrays_info
from common.data.datasets import load_dataset
from common.platform.files import write_json_model
from common.record.predictions import Predictions, confusion
from common.record.results import read_result
from common.spec.options import TrainConfig

pytestmark = pytest.mark.xdist_group("trained")


def use(command, weights, *options, implementation="pt", expect=0, **variables):
    options = ("--weights", weights, "--accelerator", "cpu", "--threads-per-device", 1, *options)
    return run_program(implementation, command, *options, expect=expect, **variables)


def answers(*arguments, **options):
    return json.loads(use(*arguments, "--format", "json", **options).stdout)


def dataset_of(run_dir):
    return load_dataset(TrainConfig(**{**read_result(run_dir).config.model_dump(), "run_dir": None}))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of a run on two devices: a network with dropout is trained on coloured images that are not square."""
    options = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--train-size", 600, "--test-size", 80)
    options = (*options, "--model", "mnist_dropout", "--epochs", 2, "--warmup-steps", 3, "--random-crop", 1)
    return train("pt", tmp_path_factory.mktemp("run"), *options, "--devices", 2) / "model.safetensors"


def test_evaluation_says_what_the_training_said(weights):
    result, predictions = read_result(weights.parent), Predictions.read(weights.parent)
    found = answers("evaluate", weights)
    assert found["implementation"] == "pt" and found["weights"] == str(weights)
    assert (found["test_count"], found["test_correct"]) == (80, result.test_correct)
    assert found["test_accuracy"] == result.test_accuracy
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-5)
    assert found["confusion"] == confusion(predictions.labels, predictions.guesses, 10).tolist()
    assert found["test_accuracy"] < found["top5_accuracy"] < 1
    text = use("evaluate", weights, "--test-size", 30).stdout
    correct = int((predictions.guesses == predictions.labels)[:30].sum())
    assert f"accuracy {correct / 30:.2%} ({correct} of 30), top-5 " in text
    assert "most frequent confusions:\n" in text


def test_options_say_what_stands_in_no_file_beside_the_weights(weights, tmp_path):
    alone = shutil.copy(weights, tmp_path / "alone.safetensors")
    complaint = use("evaluate", alone, expect=2).stderr
    assert "no config.json beside it; give --dataset and --model" in complaint
    options = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--model", "mnist_dropout", "--test-size", 80)
    assert answers("evaluate", alone, *options)["test_correct"] == read_result(weights.parent).test_correct


def test_pictures_are_classified_as_in_training(weights, tmp_path):
    expected, paths = Predictions.read(weights.parent), [tmp_path / f"{index}.png" for index in range(4)]
    for path, image in zip(paths, dataset_of(weights.parent).test_images, strict=False):
        Image.fromarray(image).save(path)
    found = answers("predict", weights, "--images", *paths)
    assert [picture["image"] for picture in found] == list(map(str, paths))
    assert [picture["class"] for picture in found] == [str(guess) for guess in expected.guesses[:4]]
    assert [picture["score"] for picture in found] == pytest.approx(expected.scores[:4].tolist(), rel=1e-5)
    assert all(sum(picture["scores"].values()) == pytest.approx(1) for picture in found)
    paths[1].write_bytes(b"no image")
    (line,) = use("predict", weights, "--images", paths[0]).stdout.splitlines()
    assert line.startswith(f"{paths[0]}: {expected.guesses[0]} {expected.scores[0]:.1%}, ")
    (line,) = use("predict", weights, "--images", *paths[:2], expect=2).stderr.splitlines()
    assert "1.png: cannot identify image file" in line


def test_a_picture_of_another_shape_is_made_to_fit(weights, tmp_path):
    large = np.zeros((90, 240, 3), np.uint8)
    large[:, 80:160] = 255  # cropping leaves only the white part
    Image.fromarray(large).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(np.full((12, 9, 3), 255, np.uint8)).save(tmp_path / "white.png")
    cropped, white = answers("predict", weights, "--images", tmp_path / "a.jpg", tmp_path / "white.png")
    assert cropped["scores"] == pytest.approx(white["scores"], abs=1e-6)


@pytest.mark.slow
def test_pictures_are_brought_to_the_range_of_the_data_set(tmp_path):
    """The pixels of the digits go from 0 to 16, and those of image files from 0 to 255."""
    folder = train("tf", tmp_path / "r", "--epochs", 2)
    expected, paths = Predictions.read(folder), [tmp_path / f"{index}.png" for index in range(3)]
    for path, image in zip(paths, dataset_of(folder).test_images[..., 0], strict=False):
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(path)
    found = answers("predict", folder / "model.safetensors", "--images", *paths, implementation="tf")
    assert [one["score"] for one in found] == pytest.approx(expected.scores[:3].tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate", "--weights: is needed"),
        ("evaluate --weights none.safetensors", "--weights none.safetensors: no such file"),
        ("evaluate --weights RUN/model.safetensors --model lenet", "--model lenet: images of 12 x 9 are too small"),
        (
            "evaluate --weights RUN/model.safetensors --dataset digits --model cnn",  # its own size counts
            "trained on images of 12 x 9 x 3; this data set has images of 8 x 8 x 1",
        ),
        ("predict --weights RUN/model.safetensors --images none.png", "No such file"),
        ("tain", "tain: the first word should be train, which may be left out, evaluate or predict"),
    ],
)
def test_mistakes_are_reported_in_one_line(weights, command, message):
    words = command.replace("RUN", str(weights.parent)).split()
    (line,) = run_program("pt", *words, expect=2).stderr.splitlines()
    assert message.replace("RUN", str(weights.parent)) in line


def test_weights_that_are_damaged_are_refused(weights, tmp_path):
    for content in (weights.read_bytes()[:-1], weights.read_bytes().replace(b"F32", b"I32", 1)):
        (tmp_path / "model.safetensors").write_bytes(content)
        shutil.copy(weights.parent / "config.json", tmp_path)
        (line,) = use("evaluate", tmp_path / "model.safetensors", expect=2).stderr.splitlines()
        assert re.match(f"python -m pt_impl: error: --(initial-)?weights {tmp_path}/model.safetensors: ", line)


def save_arrays(folder, dataset, names):
    """The images of `dataset` as a folder of arrays with classes of these names; returns the options that name it."""
    folder.mkdir()
    for part in ("train", "test"):
        for kind in ("images", "labels"):
            np.save(folder / f"{part}_{kind}.npy", getattr(dataset, f"{part}_{kind}"))
    info = write_arrays_info(folder, list(names), "").model_copy(update={"mean": [0.1] * 3})  # not that of the training
    write_json_model(folder / "dataset.json", info)
    return "--dataset", folder


def test_classes_and_normalisation_are_those_of_the_training(weights, tmp_path):
    result, dataset = read_result(weights.parent), dataset_of(weights.parent)
    same, other = (save_arrays(tmp_path / names, dataset, names) for names in ("0123456789", "012X456789"))
    found = answers("evaluate", weights, *same)
    assert found["test_correct"] == result.test_correct
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-5)
    complaint = use("evaluate", weights, *other, expect=2).stderr
    assert "trained on class '3' where this data set has 'X'" in complaint
    Image.fromarray(dataset.test_images[0]).save(tmp_path / "image.png")
    picture = tmp_path / "image.png"
    assert answers("predict", weights, "--images", picture) == answers("predict", weights, "--images", picture, *other)
