"""The promise: the same training in every framework and on any number of devices, step by step."""

import functools
import sys

import numpy as np
import pytest
from conftest import IMPLEMENTATIONS, THREADS, run, train

from common.results import read_metrics, read_result, read_step_losses
from common.weights import read_arrays
from comparison.lockstep import find_departure

DEVICES = (1, 2, 3)
REFERENCE = ("pt", 1)
RUNS = [(name, devices) for devices in DEVICES for name in IMPLEMENTATIONS]
OTHERS = [one for one in RUNS if one != REFERENCE]

# At least 100 steps over several epochs, a training set that the batch size doesn't divide, and 0.05 and
# 0.9, which float32 can't hold.
SCENARIOS = {
    # The last batch has 34 examples.
    "cnn-momentum": [
        *("--model", "cnn", "--epochs", 5, "--batch-size", 64, "--learning-rate", 0.05, "--schedule", "constant"),
        *("--momentum", 0.9, "--save-first-batch", "true"),
    ],
    # The last batch has one example: with several devices some get none.
    "cnn-nesterov-decay-warmup-cosine": [
        *("--model", "cnn", "--epochs", 5, "--batch-size", 48, "--train-size", 1201, "--learning-rate", 0.05),
        *(
            "--schedule",
            "cosine",
            "--warmup-steps",
            20,
            "--momentum",
            0.9,
            "--nesterov",
            "true",
            "--weight-decay",
            5e-4,
        ),
    ],
    # Images that are neither square nor grey; the last batch has 8 examples.
    "lenet-nesterov-decay-warmup-cosine": [
        *("--model", "lenet", "--dataset", "synthetic", "--image-shape", 16, 19, 3, "--train-size", 840),
        *("--test-size", 100, "--epochs", 4, "--batch-size", 32, "--learning-rate", 0.05, "--schedule", "cosine"),
        *("--warmup-steps", 20, "--momentum", 0.9, "--nesterov", "true", "--weight-decay", 5e-4),
        *("--save-first-batch", "true"),
    ],
}
FIRST_BATCH = ("cnn-momentum", "lenet-nesterov-decay-warmup-cosine")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """(scenario, precision, implementation, devices) -> run folder; each is trained once for all tests."""

    @functools.cache
    def trained(scenario, precision, implementation, devices):
        folder = tmp_path_factory.mktemp(f"{scenario}-{precision}-{implementation}-{devices}")
        options = ("--precision", precision, "--devices", devices, "--accelerator", "cpu", *SCENARIOS[scenario])
        return train(implementation, folder, *options)

    return trained


def cases(scenarios, runs):
    """Tests of one scenario run in one process, so that its runs are shared."""
    return pytest.mark.parametrize(
        ("scenario", "implementation", "devices"),
        [
            pytest.param(scenario, *one, marks=pytest.mark.xdist_group(scenario), id=f"{scenario}-{one[0]}-{one[1]}")
            for scenario in scenarios
            for one in runs
        ],
    )


def relative(reference, other):
    return np.max(np.abs(reference - other)) / np.max(np.abs(reference))


@cases(SCENARIOS, OTHERS)
def test_every_step_and_the_final_weights_agree_in_float64(runs, scenario, implementation, devices):
    reference, other = (runs(scenario, "64", *one) for one in (REFERENCE, (implementation, devices)))
    result, other_result = read_result(reference), read_result(other)
    assert other_result.devices == devices and other_result.implementation == implementation
    assert result.num_steps >= 100 and len(result.epoch_train_seconds) > 1
    assert result.train_count % result.config.batch_size

    message = find_departure(reference, other, 1e-10)
    assert message is None, message
    losses, other_losses = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert len(losses) == len(other_losses) == result.num_steps
    differences = np.abs(losses - other_losses) / losses
    assert differences.max() <= 1e-10, f"step {differences.argmax() + 1}: {differences.max():.1e}, loss {losses.min()}"

    weights, other_weights = (read_arrays(folder / "model.safetensors") for folder in (reference, other))
    assert weights.keys() == other_weights.keys()
    for name, array in weights.items():
        assert array.dtype == np.float64
        assert relative(array, other_weights[name]) <= 1e-10, name
    assert result.test_correct == other_result.test_correct
    assert result.test_count == other_result.test_count == read_metrics(other, "epoch")[0]["test_count"]


@cases(FIRST_BATCH, OTHERS)
def test_logits_and_gradients_agree_on_the_first_batch(runs, scenario, implementation, devices):
    folders = (runs(scenario, "64", *one) for one in (REFERENCE, (implementation, devices)))
    arrays, other = (read_arrays(folder / "first_batch.safetensors") for folder in folders)
    assert arrays.keys() == other.keys()
    gradients = [name for name in arrays if name.startswith("gradient.")]
    assert len(gradients) == 8 and "activation.dense2" in arrays
    faults = {name: relative(arrays[name], other[name]) for name in arrays}
    assert not {name: fault for name, fault in faults.items() if not fault <= 1e-12}


@cases(FIRST_BATCH, [("tf", 1), ("ptl", 1), ("tf", 2)])
def test_the_first_ten_steps_agree_in_float32(runs, scenario, implementation, devices):
    folders = [runs(scenario, "32", *one) for one in (REFERENCE, (implementation, devices))]
    losses, other = (np.array(read_step_losses(folder)[:10]) for folder in folders)
    differences = np.abs(losses - other) / losses
    assert len(differences) == 10 and differences.max() <= 1e-5, differences
    arrays, other = (read_arrays(folder / "first_batch.safetensors") for folder in folders)
    for name in arrays:
        assert arrays[name].dtype == np.float32 and relative(arrays[name], other[name]) <= 1e-5, name


@pytest.mark.parametrize(
    ("source", "implementation", "devices"),
    [("tf", "pt", 3), ("tf", "ptl", 1), ("pt", "tf", 2), ("pt", "ptl", 2), ("ptl", "tf", 3), ("ptl", "pt", 1)],
)
@pytest.mark.xdist_group("cnn-momentum")
def test_weights_trained_in_one_give_the_same_answers_in_another(runs, tmp_path, source, implementation, devices):
    trained = runs("cnn-momentum", "64", source, 1)
    options = (
        "--epochs",
        0,
        "--precision",
        64,
        "--devices",
        devices,
        "--initial-weights",
        trained / "model.safetensors",
    )
    loaded = read_result(train(implementation, tmp_path / "r", *options))
    result = read_result(trained)
    assert loaded.test_correct == result.test_correct and loaded.test_count == result.test_count == 355
    assert loaded.test_loss == pytest.approx(result.test_loss, rel=1e-12)
    assert loaded.num_steps == 0 and loaded.startup_seconds is None


@pytest.mark.parametrize("implementation", ["pt", "ptl"])
@pytest.mark.xdist_group("cnn-momentum")
def test_under_torchrun_it_is_the_same_run(runs, tmp_path, implementation):
    alone = runs("cnn-momentum", "64", implementation, 2)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    options = ("--precision", 64, "--accelerator", "cpu", *THREADS, *SCENARIOS["cnn-momentum"], "--run-dir", tmp_path)
    run(sys.executable, *launcher, "-m", f"{implementation}_impl", *options)
    assert read_result(tmp_path).devices == 2
    assert read_step_losses(tmp_path) == pytest.approx(read_step_losses(alone), rel=1e-13)
