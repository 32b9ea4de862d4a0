"""Residual networks: losses and batch-normalisation statistics agree in every framework on any number of devices."""

import functools
import json
import sys

import numpy as np
import pytest
from conftest import IMPLEMENTATIONS, MODES, changed_code, each_mistake, run, run_program, train

from common.platform.files import read_safetensors
from common.record.predictions import Predictions
from common.record.results import read_result, read_step_losses
from comparison.lockstep import OTHER_SETTINGS, find_departure

TOLERANCE = 1e-10  # observed in the first steps: 1e-15
# An epoch has 34 batches. The last batch has one example, so two of three devices get none.
OPTIONS = (
    *(
        "--model",
        "resnet8",
        "--dataset",
        "synthetic",
        "--image-shape",
        12,
        9,
        3,
        "--train-size",
        331,
        "--test-size",
        51,
    ),
    *("--batch-size", 10, "--epochs", 3, "--precision", 64, "--learning-rate", 0.01, "--save-first-batch", "true"),
)
# (devices, whether batch normalisation is synchronised). Synchronised runs are compared with a run on one device.
WAYS = [(1, False), (2, False), (3, False), (2, True), (3, True)]


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Number of devices -> the folder of PyTorch's plain run on them; each replica normalises its own shards."""

    @functools.cache
    def trained(devices):
        return train("pt", tmp_path_factory.mktemp(f"resnet8-{devices}"), *OPTIONS, "--devices", devices)

    return trained


@pytest.mark.quick("pt-plain-2-True")
@pytest.mark.xdist_group("resnet8")
@pytest.mark.parametrize(
    ("implementation", "mode", "devices", "sync"),
    [
        (name, mode, *way)
        for name in IMPLEMENTATIONS
        for mode in MODES
        for way in WAYS
        if not (name == "pt" and mode == "plain" and not way[1])
    ],
)
def test_losses_statistics_and_evaluations_agree(references, tmp_path, implementation, mode, devices, sync):
    options = (*OPTIONS, "--mode", mode, "--devices", devices, "--sync-batchnorm", str(sync).lower())
    reference, other = references(1 if sync else devices), train(implementation, tmp_path, *options)
    assert read_result(other).num_steps == 102
    message = find_departure(reference, other, TOLERANCE)
    if sync:  # the option differs, but the results do not
        assert message.startswith(OTHER_SETTINGS) and "sync_batchnorm" in message
    else:
        assert message is None, message
    losses, other_losses = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert np.max(np.abs(losses - other_losses) / losses) <= TOLERANCE
    for file in ("model.safetensors", "first_batch.safetensors"):
        arrays, others = read_safetensors(reference / file), read_safetensors(other / file)
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            assert np.max(np.abs(array - others[name])) <= TOLERANCE * max(1.0, np.max(np.abs(array))), name
    predictions = [Predictions.read(folder) for folder in (reference, other)]
    assert (predictions[0].guesses == predictions[1].guesses).all()


@pytest.mark.xdist_group("resnet8")
def test_without_synchronisation_replicas_part_from_one_device(references):
    losses = [np.array(read_step_losses(references(devices))) for devices in (1, 2)]
    apart = np.abs(losses[0] - losses[1]) / losses[0]
    assert apart[0] > 1e-4  # in the very first step: each shard has its own mean and variance


TORCHVISIONS = """
import json, sys, torch, torchvision
from pathlib import Path
from common.data.datasets import load_dataset
from common.platform.files import write_safetensors
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.data import Normalise
from pt_impl.weights import get_weights
torch.manual_seed(0)
network = torchvision.models.resnet50(num_classes=10).double()
network.train()(torch.randn(4, 3, 64, 64).double())  # statistics that are not those of the beginning
config = TrainConfig(dataset="synthetic", image_shape=(64, 64, 3), train_size=2, test_size=5, model="resnet50")
spec, dataset = NetworkSpec.make("resnet50", (64, 64, 3), 10), load_dataset(config)
folder = Path(sys.argv[1])
write_safetensors(folder / "weights.safetensors", get_weights(network, spec))
with torch.inference_mode():
    logits = network.eval()(Normalise(dataset, "64")(torch.from_numpy(dataset.test_images)))
loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(dataset.test_labels)).item()
print(json.dumps([loss, logits.argmax(dim=1).tolist(), dataset.test_labels.tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", ["tf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pt", "ptl"))]
)
def test_torchvisions_resnet50_gives_the_same_answers(tmp_path, implementation):
    loss, guesses, labels = json.loads(run(sys.executable, "-c", TORCHVISIONS, tmp_path).stdout)
    options = ("--model", "resnet50", "--dataset", "synthetic", "--image-shape", 64, 64, 3, "--test-size", 5)
    options = (*options, "--precision", 64, "--weights", tmp_path / "weights.safetensors", "--format", "json")
    found = json.loads(run_program(implementation, "evaluate", *options, "--accelerator", "cpu").stdout)
    assert found["test_loss"] == pytest.approx(loss, rel=1e-12)
    assert found["test_correct"] == sum(guess == label for guess, label in zip(guesses, labels, strict=True))


# name: (implementation, devices, synchronised, file, code, mistake, what the message says)
MUTATIONS = {
    "Keras's running variance": (
        *("tf", 1, "false", "tf_impl/networks.py"),
        "unbiased = variance * count / ops.maximum(count - 1, 1)",
        "unbiased = variance",
        "evaluation after epoch 1: test_loss is",
    ),
    "each replica's own statistics": (
        *("pt", 2, "false", "pt_impl/train.py"),
        "        share_statistics(network)\n",
        "        pass\n",
        "evaluation after epoch 1: test_loss is",
    ),
    "a variance that is not synchronised": (
        *("pt", 2, "true", "pt_impl/networks.py"),
        "variance = SumOverReplicas.apply(centred.square().sum((0, 2, 3))) / count",
        "variance = centred.square().mean((0, 2, 3))",
        "first batch: activation.bn1 differs",
    ),
    "a gradient that is not synchronised": (
        *("ptl", 2, "true", "pt_impl/replicas.py"),
        "return sum_over_replicas(gradient.clone())",
        "return gradient.clone()",
        "suspect the loss or the backward pass",
    ),
    "statistics of the whole batch": (
        *("jax", 2, "false", "jax_impl/networks.py"),
        "1 if config.sync_batchnorm else config.num_shards",
        "1",
        "first batch: activation.bn1 differs",
    ),
    "padding that is normalised": (
        *("jax", 2, "false", "jax_impl/networks.py"),
        "counted = run.real.astype(self.dtype)",
        "counted = jnp.ones(len(x), self.dtype)",
        "step 10 of 10",
    ),
    "another epsilon": (
        *("keras", 1, "false", "tf_impl/networks.py"),
        "epsilon=EPSILON)",
        "epsilon=1e-3)",
        "first batch: activation.bn1 differs",
    ),
}


@each_mistake(MUTATIONS, lambda name: name.startswith("Keras"))
def test_each_mistake_is_caught_and_pointed_at(tmp_path, mutation):
    implementation, devices, sync, file, before, after, said = MUTATIONS[mutation]
    changed_code(tmp_path / "copy", file, before, after)
    options = (*OPTIONS, "--train-size", 95, "--epochs", 1, "--devices", devices, "--sync-batchnorm", sync)
    other = "tf" if implementation == "pt" else "pt"
    reference = train(other, tmp_path / "reference", *options)
    mutant = train(implementation, tmp_path / "mutant", *options, cwd=tmp_path / "copy")
    message = find_departure(reference, mutant, TOLERANCE)
    assert message is not None and said in message, message
