"""`evaluate` and `predict`: each implementation uses a trained network, whichever implementation trained it."""

import json
import shutil

import numpy as np
import pytest
from conftest import CPU, IMPLEMENTATIONS, run_program, train
from PIL import Image

from common.command import Command, PredictConfig, UseConfig, parse_command
from common.data.arrays import write_arrays_info
from common.data.datasets import data_spec, load_dataset
from common.platform.errors import DivergedError, UserError
from common.platform.files import write_json_model, write_safetensors
from common.platform.launch import Launch
from common.record.predictions import Predictions
from common.record.results import TRAINED_ON, read_result
from common.resolve import resolve_devices
from common.spec.options import TrainConfig
from common.trained import Used, read_pictures, read_trained_on, show

CPU_ALONE = ("--accelerator", "cpu", "--threads-per-device", 1)


def trained_network(command, implementation, weights, *options, expect=0):
    return run_program(implementation, command, "--weights", weights, *CPU_ALONE, *options, expect=expect)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on two devices: a network with dropout is trained on coloured images that are not square."""
    options = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--train-size", 600)
    options = (*options, "--test-size", 80, "--model", "mnist_dropout", "--epochs", 2, "--warmup-steps", 3)
    return train("pt", tmp_path_factory.mktemp("run"), *options, "--random-crop", 1, "--devices", 2)


@pytest.mark.quick("keras")
@pytest.mark.xdist_group("trained")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_evaluation_says_what_the_training_said(trained, implementation):
    result, predictions = read_result(trained), Predictions.read(trained)
    weights = trained / "model.safetensors"
    found = json.loads(trained_network("evaluate", implementation, weights, "--format", "json").stdout)
    assert found["implementation"] == implementation and found["weights"] == str(weights)
    assert (found["test_count"], found["test_correct"]) == (80, result.test_correct)
    assert found["test_accuracy"] == result.test_accuracy
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-5)
    assert found["confusion"] == predictions.confusion(10).tolist()
    assert found["test_accuracy"] < found["top5_accuracy"] < 1
    assert found["class_names"] == list("0123456789")


@pytest.mark.xdist_group("trained")
def test_text_holds_the_same_numbers_and_options_override_what_stands_beside_the_weights(trained, tmp_path):
    weights = trained / "model.safetensors"
    text = trained_network("evaluate", "pt", weights, "--test-size", 30).stdout
    answers = Predictions.read(trained)
    correct = int((answers.guesses == answers.labels)[:30].sum())
    assert f"accuracy {correct / 30:.2%} ({correct} of 30), top-5 " in text
    assert "confusions: row the class, column the guess\n" in text
    assert max(len(line) for line in text.splitlines()[1:]) <= 80  # the first line has the file's name
    alone = shutil.copy(weights, tmp_path / "alone.safetensors")
    complaint = trained_network("evaluate", "pt", alone, expect=2).stderr
    assert "no config.json beside it; give --dataset and --model" in complaint
    options = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--model", "mnist_dropout")
    found = trained_network("evaluate", "pt", alone, *options, "--test-size", 80, "--format", "json").stdout
    assert json.loads(found)["test_count"] == 80


@pytest.mark.slow
@pytest.mark.xdist_group("trained")
def test_pictures_are_classified_alike_in_all(trained, tmp_path):
    config, answers = read_result(trained).config, Predictions.read(trained)
    images = load_dataset(TrainConfig(**{**config.model_dump(), "run_dir": None})).test_images[:4]
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    found = {}
    for implementation in IMPLEMENTATIONS:
        options = (*paths, "--format", "json")
        found[implementation] = json.loads(
            trained_network("predict", implementation, trained / "model.safetensors", *options).stdout
        )
    for answer in found.values():
        assert [picture["image"] for picture in answer] == list(map(str, paths))
        assert [picture["class"] for picture in answer] == [str(guess) for guess in answers.guesses[:4]]
        assert [picture["score"] for picture in answer] == pytest.approx(answers.scores[:4].tolist(), rel=1e-5)
        assert all(sum(picture["scores"].values()) == pytest.approx(1) for picture in answer)
        assert all(picture["score"] == max(picture["scores"].values()) for picture in answer)
    text = trained_network("predict", "pt", trained / "model.safetensors", *paths).stdout.splitlines()
    assert [line.split(": ")[0] for line in text] == list(map(str, paths))
    assert text[0].startswith(f"{paths[0]}: {answers.guesses[0]} {answers.scores[0]:.1%}, ")


@pytest.mark.xdist_group("trained")
def test_a_picture_of_another_shape_is_made_to_fit(trained, tmp_path):
    large = np.zeros((90, 240, 3), np.uint8)
    large[:, 80:160] = 255  # cropping leaves only the white part
    Image.fromarray(large).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(np.full((12, 9, 3), 255, np.uint8)).save(tmp_path / "white.png")
    found = json.loads(
        trained_network(
            *("predict", "pt", trained / "model.safetensors", tmp_path / "a.jpg", tmp_path / "white.png"),
            *("--format", "json"),
        ).stdout
    )
    assert found[0]["scores"] == pytest.approx(found[1]["scores"], abs=1e-6)
    padded = (tmp_path / "a.jpg", "--fit", "pad", "--format", "json")
    (other,) = json.loads(trained_network("predict", "pt", trained / "model.safetensors", *padded).stdout)
    assert other["score"] != pytest.approx(found[0]["score"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tf", pytest.param("pt", marks=pytest.mark.slow)])
def test_pictures_are_brought_to_the_range_of_the_data_set(tmp_path, implementation):
    """The pixels of the digits go from 0 to 16, and those of image files from 0 to 255."""
    folder = train(implementation, tmp_path / "r", "--epochs", 2)
    dataset, answers = load_dataset(TrainConfig()), Predictions.read(folder)
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    for path, image in zip(paths, dataset.test_images[:3, ..., 0], strict=True):
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(path)
    found = json.loads(
        trained_network("predict", implementation, folder / "model.safetensors", *paths, "--format", "json").stdout
    )
    assert [one["score"] for one in found] == pytest.approx(answers.scores[:3].tolist(), rel=1e-5)
    assert [one["class"] for one in found] == [str(guess) for guess in answers.guesses[:3]]


@pytest.mark.xdist_group("trained")
def test_another_data_set_is_not_held_to_the_sizes_of_the_first(trained):
    options = ("--dataset", "digits", "--format", "json", "--model", "cnn")
    complaint = trained_network("evaluate", "pt", trained / "model.safetensors", *options, expect=2).stderr
    # The data set's own sizes count, and not those of config.json.
    assert "trained on images of 12 x 9 x 3; this data set has images of 8 x 8 x 1" in complaint


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("evaluate",), "--weights: is needed"),
        (("evaluate", "--weights", "none/model.safetensors"), "--weights none/model.safetensors: no such file"),
        (("evaluate", "--weights", "RUN/config.json"), "--weights RUN/config.json: not a readable safetensors file"),
        (("evaluate", "--weights", "RUN/model.safetensors", "--model", "lenet"), "--model lenet: needs images"),
        (("predict", "--weights", "RUN/model.safetensors"), "the following arguments are required"),
        (("predict", "--weights", "RUN/model.safetensors", "RUN/config.json"), "cannot identify image file"),
        (("predict", "--weights", "RUN/model.safetensors", "none.png"), "No such file"),
        (("tain",), "tain: the first word should be train, which may be left out, evaluate or predict"),
    ],
)
@pytest.mark.xdist_group("trained")
def test_mistakes_are_reported_in_one_line(trained, command, said):
    words = (str(word).replace("RUN", str(trained)) for word in command)
    complaint = run_program("pt", *words, expect=2).stderr
    assert said.replace("RUN", str(trained)) in complaint and len(complaint.strip().splitlines()) == 1


def save_arrays(folder, dataset, names):
    """The images of `dataset` as a folder of arrays with classes of these names; returns the options that name it."""
    folder.mkdir()
    for part in ("train", "test"):
        for kind in ("images", "labels"):
            np.save(folder / f"{part}_{kind}.npy", getattr(dataset, f"{part}_{kind}"))
    info = write_arrays_info(folder, list(names))
    write_json_model(
        folder / "dataset.json", info.model_copy(update={"mean": [0.1] * 3})
    )  # not what it was trained with
    return "--dataset", "arrays", "--data-dir", folder


@pytest.mark.xdist_group("trained")
@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_classes_and_normalisation_are_those_of_the_training(trained, tmp_path, implementation):
    result, weights = read_result(trained), trained / "model.safetensors"
    dataset = load_dataset(TrainConfig(**{**result.config.model_dump(), "run_dir": None}))
    same, other = (save_arrays(tmp_path / names, dataset, names) for names in ("0123456789", "012X456789"))
    found = json.loads(trained_network("evaluate", implementation, weights, *same, "--format", "json").stdout)
    assert found["test_correct"] == result.test_correct
    assert found["test_loss"] == pytest.approx(result.test_loss, rel=1e-5)
    complaint = trained_network("evaluate", implementation, weights, *other, expect=2).stderr
    assert "trained on class '3' where this data set has 'X'" in complaint
    Image.fromarray(dataset.test_images[0]).save(tmp_path / "image.png")
    answers = [
        json.loads(trained_network("predict", implementation, weights, tmp_path / "image.png", *options).stdout)
        for options in (("--format", "json"), (*other, "--format", "json"))
    ]
    assert answers[0] == answers[1]


@pytest.mark.xdist_group("trained")
def test_a_broken_picture_costs_no_other_its_answer(trained, tmp_path):
    Image.fromarray(np.full((12, 9, 3), 255, np.uint8)).save(tmp_path / "white.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    images = (tmp_path / "broken.png", tmp_path / "white.png")
    process = trained_network("predict", "pt", trained / "model.safetensors", *images, expect=2)
    assert process.stdout.startswith(f"{tmp_path / 'white.png'}: ") and process.stdout.count("\n") == 1
    assert "broken.png: cannot identify image file" in process.stderr and process.stderr.count("\n") == 1


@pytest.mark.xdist_group("trained")
def test_one_process_puts_a_network_to_use(trained):
    launched = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    launched |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    weights = ("--weights", trained / "model.safetensors")
    complaint = run_program("pt", "evaluate", *weights, expect=2, **launched).stderr
    assert "torchrun has started 2 processes; evaluate and predict need one" in complaint


def test_a_network_trained_on_several_nodes_is_used_on_one_device(tmp_path):
    config = TrainConfig(num_nodes=2, devices=4, strategy="ddp", compile=True, resume="auto")
    write_json_model(tmp_path / "config.json", config)
    (tmp_path / "model.safetensors").touch()
    use = parse_command("pt_impl", "about", ["evaluate", "--weights", str(tmp_path / "model.safetensors")]).config
    use = resolve_devices(use, "PyTorch", 0, Launch.read(), ("ddp",))
    assert (use.all_devices, use.strategy, use.compile, use.resume) == (1, "single_device", "auto", None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_shape": [60_000, 60_000, 3]}, "image_shape.0: .* less than or equal to 4096"),
        ({"image_shape": [8, 8, 10**12]}, "image_shape.2: .* less than or equal to 4096"),
        ({"class_names": ["a", "a"]}, "class_names: .*'a' is the name of several classes"),
        ({"class_names": ["a", "\x1b[31m"]}, "class_names: .* can't be shown"),
        ({"scale": [1e308]}, "scale.0: "),
        ({"scale": [0]}, "scale.0: "),
        ({"shift": [-1e308]}, "shift.0: "),
    ],
)
def test_what_makes_no_sense_in_a_file_of_weights_is_refused(tmp_path, values, message):
    path = tmp_path / "model.safetensors"
    trained_on = {**data_spec(TrainConfig()).model_dump(), **values}
    write_safetensors(path, {}, {TRAINED_ON: json.dumps(trained_on)})
    with pytest.raises(UserError, match=f"model.safetensors: not valid: {message}"):
        read_trained_on(path)


def test_pictures_that_need_more_memory_than_there_is_are_not_read(tmp_path):
    use = PredictConfig(weights=tmp_path / "model.safetensors", images=[tmp_path / "none.png"] * 10**6)
    spec = data_spec(TrainConfig()).model_copy(update={"image_shape": (4096, 4096, 1)})
    with pytest.raises(UserError, match="predict: 1000000 images of 4096 x 4096 x 1 need .* GiB; this machine has"):
        read_pictures(use, "digits", spec)


def test_a_transparent_picture_is_noted(tmp_path, capsys):
    Image.new("LA", (8, 8)).save(tmp_path / "clear.png")
    use = PredictConfig(weights=tmp_path / "model.safetensors", images=[tmp_path / "clear.png", tmp_path / "none.png"])
    used = read_pictures(use, "digits", data_spec(TrainConfig()))
    assert (used.dataset.test_images == 16).all()  # white in digits
    note = "note: 1 of 2 images: transparent in places; a white background was taken\n"
    assert capsys.readouterr() == ("", note)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_no_answer(tmp_path, capsys, value):
    use = UseConfig(weights=tmp_path / "model.safetensors")
    logits = np.zeros((355, 10))
    logits[7, 3] = value
    message = "model.safetensors: with --precision 32 the logits of 1 of 355 images are not finite"
    with pytest.raises(DivergedError, match=message):
        show(Command(TrainConfig(), use), "pt", Used(load_dataset(TrainConfig())), logits)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_the_word_train_may_be_left_out(tmp_path):
    options = ("--max-steps", 2, *CPU)
    run_program("pt", "train", *options, "--run-dir", tmp_path / "a")
    run_program("pt", *options, "--run-dir", tmp_path / "b")
    assert read_result(tmp_path / "a").config_sha256 == read_result(tmp_path / "b").config_sha256
