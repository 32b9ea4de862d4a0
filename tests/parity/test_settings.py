"""Settings for speed: each is the same training, up to its rounding, in every framework and mode."""

import shutil

import numpy as np
import pytest
from agreement import rotated
from conftest import CPU, IMPLEMENTATIONS, run_program

from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

OPTIONS = ("--epochs", 1, "--train-size", 418, "--batch-size", 16)


@pytest.fixture
def runs(trained):
    """(implementation, *options) -> run folder."""
    return lambda implementation, *options: trained(implementation, *OPTIONS, *options)


def first_losses(*folders, steps=1):
    return [np.array(read_step_losses(folder)[:steps]) for folder in folders]


# Half precisions and their rounding.
HALVES = {"bf16-mixed": 2.0**-8, "16-mixed": 2.0**-11}


@pytest.mark.quick("bf16-mixed-pt-plain")
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize(
    ("precision", "implementation", "mode", "devices"),
    [
        *rotated(["bf16-mixed"], IMPLEMENTATIONS, [("tuned", 1), ("tuned", 2), ("plain", 2)]),
        *(("16-mixed", "tf", "plain", 2), ("16-mixed", "ptl", "tuned", 1)),
    ],
)
def test_mixed_precision_rounds_as_it_says_and_no_more(runs, precision, implementation, mode, devices):
    """The first loss differs from that in 64 bits by some roundings of half precision: it is near, but not equal."""
    options = ("--precision", precision, "--mode", mode, "--devices", devices)
    folder = runs(implementation, *options, "--max-steps", 1)
    mixed, exact = first_losses(folder, runs("pt", "--precision", "64", "--max-steps", 1))
    assert 1e-6 < np.abs(mixed - exact)[0] < 2 * HALVES[precision]
    result = read_result(folder)
    assert result.config.precision == precision and (result.skipped_steps is None) == (precision == "bf16-mixed")


@pytest.mark.slow
@pytest.mark.xdist_group("settings")
def test_half_precision_stops_at_the_logits(runs):
    """TensorFlow and Keras have the same layers. A half-precision loss in one of them would be some thousandths off."""
    still = ("--max-steps", 1, "--learning-rate", 1e-30, "--precision", "bf16-mixed")
    options = (*still, "--initial-weights", runs("pt") / "model.safetensors")
    losses = [read_result(runs(name, *options)).test_loss for name in ("tf", "keras")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.slow
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize(
    ("implementation", "mode"),
    [("tf", "plain"), ("keras", "tuned"), ("pt", "tuned"), ("ptl", "plain"), ("jax", "tuned")],
)
def test_a_step_that_overflows_is_skipped_and_not_counted_by_adam(runs, implementation, mode):
    """Adam corrects its averages by the number of steps taken: counting a skipped step makes updates smaller."""
    # With a batch of one example, the gradient of the scaled loss overflows float16.
    options = ("--precision", "16-mixed", "--batch-size", 1, "--train-size", 40, "--epochs", 1)
    options = (*options, "--optimizer", "adam", "--learning-rate", 0.003, "--schedule", "constant")
    reference, other = runs("pt", *options), runs(implementation, *options, "--mode", mode, "--compile", "false")
    assert read_result(other).skipped_steps == read_result(reference).skipped_steps >= 1
    # The sixth step is skipped. Up to the eighth step, float16 causes a difference of 0.0014, one step too many 0.016.
    losses = first_losses(reference, other, steps=8)
    assert np.max(np.abs(losses[0] - losses[1]) / losses[0]) <= 0.005


DRAWN = ("--precision", "64", "--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true")
COMPILED = [
    *((name, "plain", 1) for name in ("tf", "keras", "pt", "jax")),
    *((name, "tuned", 2) for name in ("tf", "pt", "ptl")),
]


@pytest.mark.quick("keras-plain-1")
@pytest.mark.xdist_group("settings")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize(("implementation", "mode", "devices"), COMPILED)
def test_compiled_steps_are_the_same_training(runs, implementation, mode, devices):
    options = (*DRAWN, "--compile", "true", "--devices", devices, "--mode", mode)
    compiled, plain = runs(implementation, *options), runs("pt", *DRAWN)
    assert read_result(compiled).config.compile is True
    if mode == "plain":
        assert "compile: False and True" in find_departure(plain, compiled, 1e-12)
    else:
        assert find_departure(plain, compiled, 1e-12) is None
    losses = first_losses(plain, compiled, steps=None)
    assert np.max(np.abs(losses[0] - losses[1]) / losses[0]) <= 1e-12


def test_without_a_compiler_there_is_one_line(tmp_path):
    command = ("pt", "--compile", "true", "--run-dir", tmp_path / "r", *CPU)
    (line,) = run_program(*command, CXX="no-such-compiler", expect=2).stderr.splitlines()
    assert line.endswith("--compile true: PyTorch needs a C++ compiler, and no-such-compiler is not installed")


PIPELINE = ("--strategy", "pipeline")
REFUSED = [
    ("pt", ("--mode", "tutorial", *PIPELINE, "--devices", 2), "--strategy pipeline: not with --mode tutorial"),
    ("pt", ("--mode", "tutorial", "--accumulate-grad-batches", 2), "--accumulate-grad-batches 2: not with --mode tut"),
    ("pt", ("--mode", "tutorial", "--batch-size", 33, "--devices", 2), "--batch-size 33: with --mode tutorial, should"),
    ("pt", (*PIPELINE, "--precision", "16-mixed"), "--precision 16-mixed: not with --strategy pipeline"),
    ("ptl", ("--strategy", "dp"), "--strategy dp: Lightning does not have it; use single_device, ddp"),
    ("tf", ("--strategy", "fsdp"), "--strategy fsdp: TensorFlow does not have it; use single_device, mirrored, multi"),
    ("keras", PIPELINE, "--strategy pipeline: Keras does not have it; use single_device, mirrored"),
    ("keras", ("--accumulate-grad-batches", 2), "--accumulate-grad-batches 2: not in Keras's fit"),
    ("jax", PIPELINE, "--strategy pipeline: JAX does not have it; use single_device, ddp, fsdp"),
    ("keras_torch", ("--mode", "plain"), "--mode plain: Keras-torch has --mode tutorial alone"),
    ("keras_torch", ("--mode", "tutorial", "--devices", 2), "--devices 2: Keras-torch trains on one device"),
]


@pytest.mark.quick("pt", "tf", "keras_torch")
@pytest.mark.parametrize(("implementation", "options", "said"), REFUSED)
def test_what_a_framework_has_not_got_is_refused(tmp_path, implementation, options, said):
    process = run_program(implementation, *CPU, *options, "--run-dir", tmp_path / "r", expect=2)
    assert said in process.stderr.splitlines()[-1] and not (tmp_path / "r").exists()
