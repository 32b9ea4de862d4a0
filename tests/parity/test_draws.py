"""Dropout and augmentation: every framework drops the same values and moves the same pixels, on any devices."""

import functools
import sys

import numpy as np
import pytest
from conftest import CPU, IMPLEMENTATIONS, MODES, changed_code, each_mistake, run, run_program, train

from common.experiment import RESIDENT_VARIABLE, Experiment
from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.platform.files import read_safetensors
from common.record.results import read_result, read_step_losses
from common.spec.batches import epoch_order
from common.spec.options import TrainConfig
from common.spec.randomness import kept, visits
from comparison.lockstep import find_departure

TOLERANCE = 1e-12  # observed: 2e-15
DATA = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--train-size", 331, "--test-size", 51)
# An epoch has 34 batches. The last batch has one example, so two of three devices get none.
OPTIONS = (
    *DATA,
    "--batch-size",
    10,
    "--epochs",
    3,
    "--precision",
    64,
    "--save-first-batch",
    "true",
    "--seed",
    2**40 + 3,
)
AUGMENTED = ("--random-crop", 2, "--horizontal-flip", "true")
SCENARIOS = {
    "dropout": ("--model", "mnist_dropout"),
    "augmentation": ("--model", "cnn", *AUGMENTED),
    "both": ("--model", "mnist_dropout", *AUGMENTED, "--learning-rate", 0.01),
}
RUNS = [(name, mode, devices) for name in IMPLEMENTATIONS for mode in MODES for devices in (1, 2, 3)]
REFERENCE = ("pt", "plain", 1)


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """Scenario -> the run folder of PyTorch on one device, with which all others are compared."""
    return functools.cache(
        lambda scenario: train("pt", tmp_path_factory.mktemp(scenario), *OPTIONS, *SCENARIOS[scenario], "--devices", 1)
    )


@pytest.mark.quick("dropout-tf-tuned-2", "augmentation-pt-tuned-3", "augmentation-keras-tuned-1")
@pytest.mark.parametrize(
    ("scenario", "implementation", "mode", "devices"),
    [
        pytest.param(
            *(scenario, *case),
            marks=pytest.mark.xdist_group(scenario),
        )
        for scenario in SCENARIOS
        for case in RUNS
        if case != REFERENCE
    ],
)
def test_every_step_agrees(reference, tmp_path, scenario, implementation, mode, devices):
    options = (*OPTIONS, *SCENARIOS[scenario], "--mode", mode, "--devices", devices)
    other = train(implementation, tmp_path, *options)
    assert read_result(other).num_steps == 102
    message = find_departure(reference(scenario), other, TOLERANCE)
    assert message is None, message
    for file in ("model.safetensors", "first_batch.safetensors"):
        arrays, others = read_safetensors(reference(scenario) / file), read_safetensors(other / file)
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            assert np.max(np.abs(array - others[name])) <= TOLERANCE * max(1.0, np.max(np.abs(array))), name


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tf", "pt", "ptl"])
def test_every_step_agrees_streamed(reference, tmp_path, implementation):
    options = (*OPTIONS, *SCENARIOS["both"], "--mode", "tuned", "--devices", 2)
    other = train(implementation, tmp_path, *options, **{RESIDENT_VARIABLE: "0"})
    message = find_departure(reference("both"), other, TOLERANCE)
    assert message is None, message


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tf", "keras", "pt", "ptl"])
def test_every_step_agrees_compiled(tmp_path, implementation):
    options = (*OPTIONS, *SCENARIOS["both"], "--train-size", 332, "--save-first-batch", "false")  # no shard is empty
    compiled = ("--mode", "tuned", "--devices", 2, "--compile", "true")
    folders = (train("pt", tmp_path / "a", *options), train(implementation, tmp_path / "b", *options, *compiled))
    losses, others = (np.array(read_step_losses(folder)) for folder in folders)
    assert np.max(np.abs(losses - others) / losses) <= TOLERANCE


def test_pytorch_says_that_it_cannot_compile_a_shard_without_examples(tmp_path):
    options = (
        *OPTIONS,
        *SCENARIOS["dropout"],
        *CPU,
        "--devices",
        2,
        "--compile",
        "true",
        "--save-first-batch",
        "false",
    )
    process = run_program("pt", *options, "--run-dir", tmp_path / "r", expect=2)
    assert "a last batch of 1 leaves some of 2 replicas without examples" in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_first_steps_agree_in_half_precision(reference, tmp_path, implementation):
    options = (*OPTIONS, *SCENARIOS["both"], "--precision", "bf16-mixed", "--save-first-batch", "false")
    losses = np.array(read_step_losses(train(implementation, tmp_path, *options)))[:10]
    assert np.max(np.abs(losses - read_step_losses(reference("both"))[:10])) < 0.02


@pytest.mark.parametrize(("layer", "stream", "rate"), [("dropout1", 0, 0.25), ("dropout2", 1, 0.5)])
@pytest.mark.xdist_group("dropout")
def test_what_is_dropped_is_what_the_specification_says(reference, layer, stream, rate):
    before = {"dropout1": "pool", "dropout2": "dense1"}[layer]
    arrays = read_safetensors(reference("dropout") / "first_batch.safetensors")
    values, dropped = arrays[f"activation.{before}"], arrays[f"activation.{layer}"]
    config = read_result(reference("dropout")).config
    examples = visits(1, epoch_order(config.seed, 1, config.train_size)[: config.batch_size])
    stay = kept(config.seed, examples, stream, values[0].size, rate).reshape(values.shape)
    assert np.allclose(dropped, np.where(stay, values / (1 - rate), 0), rtol=1e-14, atol=0)
    assert (values[~stay] > 0).any() and (values[stay] > 0).any()


PREPARED = """
import numpy as np
import sys
from common.experiment import Experiment
from common.spec.options import TrainConfig
from common.spec.randomness import visits
config = TrainConfig(
    dataset="synthetic", image_shape=(12, 9, 3), train_size=200, test_size=5, precision="64", seed=2**33 + 7,
    random_crop=3, horizontal_flip=True,
)
experiment = Experiment.make(config)
dataset, seen = experiment.dataset, visits(3, np.arange(200))
expected = experiment.augmentation(dataset.train_images, seen, dataset.shift, dataset.scale)
assert np.unique(expected).size > 100
if sys.argv[1] == "tf":
    import tf_impl, tensorflow as tf
    from tf_impl.data import make_shards
    found = make_shards(experiment, 1)[0].prepare(tf.constant(dataset.train_images), tf.constant(seen)).numpy()
else:
    import torch
    from pt_impl.data import Normalise, Prepare
    prepare = Prepare(experiment, Normalise(dataset, "64"), experiment.augmentation)
    found = prepare(torch.tensor(dataset.train_images), torch.tensor(seen)).numpy().transpose(0, 2, 3, 1)
assert np.allclose(found, expected, rtol=1e-14, atol=1e-14), np.abs(found - expected).max()
"""


@pytest.mark.quick("pt")
@pytest.mark.parametrize("framework", ["tf", "pt"])
def test_images_are_changed_as_the_specification_says(framework):
    run(sys.executable, "-c", PREPARED, framework)


# name: (implementation, devices, file, code, mistake, what the message says)
MUTATIONS = {
    "PyTorch's own dropout": (
        *("pt", 1, "pt_impl/networks.py"),
        "return x * (kept if x.ndim == 2 else kept.permute(0, 3, 1, 2)) * self.scale",
        "return nn.functional.dropout(x, self.threshold / RESOLUTION)",
        "first batch: activation.dropout1 differs",
    ),
    "the same values dropped in every epoch": (
        *("tf", 1, "tf_impl/randomness.py"),
        "visits & WORD, high(visits)",
        "visits & WORD, high(visits) * 0 + 1",
        "the first of its epoch: suspect the order of examples or their random draws",
    ),
    "draws by the place in the shard": (
        *("keras", 2, "tf_impl/data.py"),
        "return (images, visits) if self.experiment.network.drops else images",
        "return (images, tf.range(tf.size(visits, tf.int64))) if self.experiment.network.drops else images",
        "first batch: activation.dropout1 differs",
    ),
    "one crop for a whole batch": (
        *("ptl", 1, "pt_impl/data.py"),
        "Augment(self.augmentation, visits)",
        "Augment(self.augmentation, visits[:1].expand(len(visits)))",
        "first batch: the network's input differs",
    ),
    "mirrored after the crop": (
        *("tf", 1, "tf_impl/augment.py"),
        "columns = columns + high(self.horizontal * (2 * pad + 1))",
        "columns = columns + 2 * pad - high(self.horizontal * (2 * pad + 1))",
        "first batch: the network's input differs",
    ),
}


@each_mistake(MUTATIONS, lambda name: "every epoch" in name)
def test_each_mistake_is_caught_and_pointed_at(tmp_path, mutation):
    implementation, devices, file, before, after, said = MUTATIONS[mutation]
    changed_code(tmp_path / "copy", file, before, after)
    options = (*OPTIONS, *SCENARIOS["both"], "--train-size", 95, "--epochs", 2, "--devices", devices)
    other = "tf" if implementation == "pt" else "pt"
    reference = train(other, tmp_path / "reference", *options)
    mutant = train(implementation, tmp_path / "mutant", *options, cwd=tmp_path / "copy")
    message = find_departure(reference, mutant, 1e-10)
    assert message is not None and said in message, message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--random-crop", 13), "--random-crop 13: images are 12 x 9; at most 9"),
        (
            ("--model", "mnist_dropout", "--image-shape", 5, 9, 3),
            "--model mnist_dropout: needs images of at least 6 x 6",
        ),
    ],
)
def test_what_does_not_fit_the_images_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        Experiment.make(parse_options(TrainConfig, "", "", list(map(str, (*DATA, *options)))).replace(devices=1))
