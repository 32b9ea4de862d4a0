"""Golden losses: the first ten losses of each network, update rule and schedule in 64 bits, as they were when recorded.

Other tests compare the frameworks with each other, and with plain NumPy. These find a change that all of them share, in
common/spec or in their new versions. After an intended change, this records the losses of PyTorch anew:

    PYTHONPATH=.:tests python tests/parity/test_golden.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import IMPLEMENTATIONS, train

from common.experiment import Experiment
from common.platform.cli import parse_options
from common.record.results import read_result, read_step_losses
from common.spec.options import TrainConfig
from comparison.prove.audits import first_state
from comparison.prove.differences import reference_steps

FILE = Path(__file__).with_name("golden_losses.json")
STEPS = 10
SMALL = ("--train-size", 60, "--test-size", 16, "--batch-size", 16, "--epochs", 3, "--max-steps", STEPS)
COLOURS = ("--dataset", "synthetic", "--image-shape")
FEW = ("--train-size", 18, "--batch-size", 4)
# Every network, update rule and schedule. Large residual networks amplify rounding, so their rates are small.
SETTINGS = {
    "cnn": (),
    "lenet": ("--model", "lenet", *COLOURS, 16, 16, 3),
    "mnist_dropout": ("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true"),
    "resnet8": ("--model", "resnet8"),
    "resnet18": ("--model", "resnet18", "--learning-rate", 1e-3, *COLOURS, 16, 16, 3, *FEW),
    "resnet50": ("--model", "resnet50", "--learning-rate", 1e-6, *COLOURS, 64, 64, 3, *FEW),
    "nesterov": ("--momentum", 0.9, "--nesterov", "true", "--weight-decay", 0.01, "--gradient-clip-val", 0.5),
    "adam": ("--optimizer", "adam", "--weight-decay", 0.01),
    "adamw": ("--optimizer", "adamw", "--label-smoothing", 0.1),
    "adadelta": ("--optimizer", "adadelta", "--accumulate-grad-batches", 2, "--epochs", 5),
    "constant": ("--schedule", "constant", "--warmup-steps", 5),
    "cosine": ("--schedule", "cosine"),
    "step": ("--schedule", "step", "--step-size", 1),
    "one-cycle": ("--schedule", "one-cycle"),
    "seed": ("--seed", 2**33 + 1),
}
TOLERANCE = 1e-10  # relative; batch normalisation amplifies rounding in ten steps
SLOW_IN_NUMPY = ("resnet18", "resnet50")


def options_of(setting):
    return list(map(str, (*SMALL, *SETTINGS[setting], "--precision", "64", "--strategy", "single_device")))


def golden(setting):
    return json.loads(FILE.read_text())["losses"][setting]


@pytest.mark.parametrize(
    "setting", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_IN_NUMPY else ()) for name in SETTINGS]
)
def test_plain_formulas_give_the_golden_losses(setting):
    experiment = Experiment.make(parse_options(TrainConfig, "", "", options_of(setting)).replace(devices=1))
    losses = reference_steps(experiment, first_state(experiment), STEPS)["loss"]
    np.testing.assert_allclose(losses, golden(setting), rtol=TOLERANCE)


# The large networks in every framework; the others, which test_lockstep.py has in all, in one each, in turns.
RUNS = [
    *((implementation, "resnet50") for implementation in IMPLEMENTATIONS),
    *(("jax", "resnet18"), ("keras", "cnn"), ("pt", "lenet"), ("tf", "mnist_dropout"), ("ptl", "resnet8")),
    *(("jax", "nesterov"), ("ptl", "adam"), ("keras", "adamw"), ("pt", "adadelta"), ("tf", "constant")),
    *(("keras", "cosine"), ("jax", "step"), ("pt", "one-cycle"), ("ptl", "seed")),
]


@pytest.mark.quick("pt-adadelta")
@pytest.mark.parametrize(("implementation", "setting"), RUNS)
def test_frameworks_give_the_golden_losses(tmp_path, implementation, setting):
    run_dir = train(implementation, tmp_path / "run", *options_of(setting))
    np.testing.assert_allclose(read_step_losses(run_dir), golden(setting), rtol=TOLERANCE)


def record():
    losses, versions = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for setting in SETTINGS:
            run_dir = train("pt", Path(folder) / setting, *options_of(setting))
            losses[setting], versions = read_step_losses(run_dir), read_result(run_dir).versions
    del versions["platform"]
    FILE.write_text(json.dumps({"versions": versions, "losses": losses}, indent=1) + "\n")


if __name__ == "__main__":
    record()
