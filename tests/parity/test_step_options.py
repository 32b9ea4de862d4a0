"""Options of a step besides the update rule: accumulated batches and clipped gradients."""

import functools

import numpy as np
import pytest
from agreement import assert_the_same
from conftest import CPU, IMPLEMENTATIONS, MODES, changed_code, each_mistake, run_program, train

from common.experiment import RESIDENT_VARIABLE
from common.platform.files import read_safetensors
from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

TOLERANCE = 1e-12  # observed: 2e-15
DATA = ("--dataset", "synthetic", "--image-shape", 12, 9, 3, "--train-size", 331, "--test-size", 51)
# An epoch has 28 steps; the last step has 7 examples. Of 3 devices, the last one gets no examples of a batch of 4.
OPTIONS = (*DATA, "--precision", 64, "--epochs", 4, "--learning-rate", 0.02)
CLIPPED = (*OPTIONS, "--batch-size", 12, "--gradient-clip-val", 0.7, "--save-first-batch", "true")
ACCUMULATED = (*OPTIONS, "--model", "mnist_dropout", "--gradient-clip-val", 0.7, "--momentum", 0.8)
ONE_BATCH, THREE_BATCHES = ("--batch-size", 12), ("--batch-size", 4, "--accumulate-grad-batches", 3)
RUNS = [(name, mode, devices) for name in IMPLEMENTATIONS for mode in MODES for devices in (1, 2, 3)]


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Options -> PyTorch's plain run on one device."""
    return functools.cache(lambda options: train("pt", tmp_path_factory.mktemp("r"), *options, "--devices", 1))


@pytest.mark.quick("ptl-plain-1")
@pytest.mark.xdist_group("clipped")
@pytest.mark.parametrize(
    ("implementation", "mode", "devices"),
    [case for case in RUNS if case != ("pt", "plain", 1)],
)
def test_clipped_gradients_are_the_same(references, tmp_path, implementation, mode, devices):
    reference = references(CLIPPED)
    other = train(implementation, tmp_path, *CLIPPED, "--mode", mode, "--devices", devices)
    message = find_departure(reference, other, TOLERANCE)
    assert message is None, message
    assert_the_same(reference, other, TOLERANCE, steps=112)


@pytest.mark.slow
@pytest.mark.xdist_group("clipped")
def test_ten_steps_in_a_call_of_jax_are_the_same_ten(references, tmp_path):
    """As on a GPU; on the CPU, where this is slow, each call takes one step."""
    whether = 'config.accelerator == "gpu" and source is Resident'
    folder = changed_code(tmp_path / "copy", "jax_impl/tuning.py", whether, "source is Resident")
    other = train("jax", tmp_path / "run", *CLIPPED, "--mode", "tuned", "--devices", 2, cwd=folder)
    assert find_departure(references(CLIPPED), other, TOLERANCE) is None


@pytest.mark.quick("pt-plain-2")
@pytest.mark.xdist_group("accumulated")
@pytest.mark.parametrize(
    ("implementation", "mode", "devices"),
    [case for case in RUNS if case[0] != "keras"],
)
def test_small_batches_are_one_large_batch(references, tmp_path, implementation, mode, devices):
    """The reference is PyTorch on one device, with dropout, clipping and an incomplete last step."""
    options = (*ACCUMULATED, *THREE_BATCHES, "--mode", mode, "--devices", devices)
    other = train(implementation, tmp_path, *options)
    assert read_result(other).config.accumulate_grad_batches == 3
    assert_the_same(references((*ACCUMULATED, *ONE_BATCH)), other, TOLERANCE, steps=112)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [("--max-steps", 40), ("--verify-steps", 20)], ids=lambda value: value[0])
@pytest.mark.parametrize(
    ("implementation", "more"),
    [
        ("tf", ("--mode", "tuned")),  # and with batches that are streamed to the device
        ("tf", ("--compile", "true")),
        ("pt", ("--compile", "true", "--mode", "tuned", "--train-size", 330)),
        ("ptl", ("--compile", "true", "--mode", "tuned", "--train-size", 330)),
        ("ptl", ()),
        ("ptl", ("--mode", "tuned")),
        ("pt", ("--save-first-batch", "true", "--devices", 2)),
        ("ptl", ("--save-first-batch", "true", "--devices", 2)),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_small_batches_of_a_run_that_ends_early(tmp_path, implementation, more, cut):
    options = (*ACCUMULATED, *THREE_BATCHES, *cut)
    first = ("--save-first-batch", "true") if "--save-first-batch" in more else ()
    size = more[-2:] if "--train-size" in more else ()
    reference = train("tf", tmp_path / "a", *options, *first, *size)
    limit = {RESIDENT_VARIABLE: "0"} if implementation == "tf" else {}
    other = train(implementation, tmp_path / "b", *options, *more, **limit)
    losses, others = (np.array(read_step_losses(folder)) for folder in (reference, other))
    assert len(losses) == len(others) == cut[1] and np.max(np.abs(losses - others) / losses) <= TOLERANCE
    if "--compile" not in more:  # which is another setting
        message = find_departure(reference, other, TOLERANCE)
        assert message is None, message


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tf", "pt", "ptl"])
@pytest.mark.parametrize("mode", MODES)
def test_the_first_steps_agree_where_losses_are_scaled(references, tmp_path, implementation, mode):
    options = (*ACCUMULATED, *THREE_BATCHES, "--precision", "16-mixed", "--mode", mode, "--devices", 2)
    losses = np.array(read_step_losses(train(implementation, tmp_path, *options)))[:10]
    assert np.max(np.abs(losses - read_step_losses(references((*ACCUMULATED, *ONE_BATCH)))[:10])) < 0.02


@pytest.mark.parametrize(
    ("implementation", "mode"),
    [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [("tf", "plain"), ("keras", "tuned"), ("pt", "tuned"), ("ptl", "plain"), ("ptl", "tuned")]
    ],
)
def test_statistics_are_of_one_batch_at_a_time(tmp_path, implementation, mode):
    options = (*DATA, "--precision", 64, "--model", "resnet8", "--batch-size", 10, "--epochs", 1)
    if implementation != "keras":
        options = (*options, "--accumulate-grad-batches", 2)
    options = (*options, "--devices", 2, "--learning-rate", 0.01)
    reference = train("pt", tmp_path / "a", *options)
    other = train(implementation, tmp_path / "b", *options, "--mode", mode)
    message = find_departure(reference, other, TOLERANCE)
    assert message is None, message
    weights, others = (read_safetensors(folder / "model.safetensors") for folder in (reference, other))
    for name, array in weights.items():
        assert np.max(np.abs(array - others[name])) <= TOLERANCE * max(1.0, np.max(np.abs(array))), name


@pytest.mark.xdist_group("rules")
def test_gradients_are_clipped_by_the_written_rule(tmp_path):
    options = (*DATA, "--precision", 64, "--max-steps", 1, "--momentum", 0, "--schedule", "constant")
    options = (*options, "--learning-rate", 0.5, "--save-first-batch", "true", "--gradient-clip-val", 0.25)
    before, after = (
        train("pt", tmp_path / "b", *options, "--learning-rate", 1e-30),
        train("pt", tmp_path / "a", *options),
    )
    arrays = read_safetensors(after / "first_batch.safetensors")
    gradients = {
        name.removeprefix("gradient."): array for name, array in arrays.items() if name.startswith("gradient.")
    }
    norm = np.sqrt(sum((array**2).sum() for array in gradients.values()))
    assert norm > 0.5
    weights, changed = (read_safetensors(folder / "model.safetensors") for folder in (before, after))
    for name, gradient in gradients.items():
        expected = weights[name] - 0.5 * gradient * 0.25 / (norm + 1e-6)
        assert np.allclose(changed[name], expected, rtol=1e-13, atol=1e-15), name


@pytest.mark.slow
def test_keras_says_that_it_has_no_accumulation(tmp_path):
    options = (*DATA, *CPU, "--accumulate-grad-batches", 2, "--run-dir", tmp_path / "r")
    process = run_program("keras", *options, expect=2)
    assert "--accumulate-grad-batches 2: not in Keras's fit" in process.stderr.splitlines()[-1]


# name: (implementation, devices, options, file, code, mistake)
MUTATIONS = {
    "each replica's gradients clipped by themselves": (
        *("tf", 2, CLIPPED, "tf_impl/optimizer.py"),
        "sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)",
        "sums = gradients",
    ),
    "gradients clipped one by one": (
        *("pt", 1, CLIPPED, "pt_impl/parallel.py"),
        "nn.utils.clip_grad_norm_(model.parameters(), largest_norm)",
        "[nn.utils.clip_grad_norm_([one], largest_norm) for one in model.parameters()]",
    ),
    "Lightning's mean over the accumulated batches": (
        *("ptl", 1, (*ACCUMULATED, *THREE_BATCHES), "ptl_impl/train.py"),
        "factor = self.trainer.world_size * self.trainer.accumulate_grad_batches",
        "factor = self.trainer.world_size",
    ),
    "gradients that are not forgotten": (
        *("tf", 2, (*ACCUMULATED, *THREE_BATCHES), "tf_impl/optimizer.py"),
        "total.assign(tf.zeros_like(total))",
        "total.assign(tf.zeros_like(total) + 0.01 * total)",
    ),
    "each batch with a weight of its own": (
        *("pt", 1, (*ACCUMULATED, *THREE_BATCHES), "common/spec/batches.py"),
        "np.minimum(self.examples_per_step, self.train_size - step * self.examples_per_step)[:, None]",
        "rows[:, :, 2] * self.accumulated",
    ),
}


@each_mistake(MUTATIONS, lambda name: name.startswith("each replica"))
def test_each_mistake_is_caught(tmp_path, mutation):
    implementation, devices, options, file, before, after = MUTATIONS[mutation]
    changed_code(tmp_path / "copy", file, before, after)
    options = (*options, "--train-size", 95, "--epochs", 2, "--devices", devices)
    other = "tf" if implementation == "pt" else "pt"
    reference = train(other, tmp_path / "reference", *options)
    mutant = train(implementation, tmp_path / "mutant", *options, cwd=tmp_path / "copy")
    message = find_departure(reference, mutant, 1e-10)
    assert message is not None and message.startswith(("step ", "evaluation ")), message
