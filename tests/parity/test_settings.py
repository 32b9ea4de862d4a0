"""Settings for speed: each is the same training, up to its rounding, in every framework and mode."""

import functools
import shutil

import numpy as np
import pytest
from conftest import CPU, IMPLEMENTATIONS, MODES, changed_code, program_of, run, run_program, train

from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

OPTIONS = ("--epochs", 2, "--train-size", 418, "--batch-size", 16)
TORCH = ("pt", "ptl")
NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
COMPILED = [
    pytest.param(*(name, mode, devices), marks=[NEEDS_A_COMPILER] if name in TORCH else [])
    for name in IMPLEMENTATIONS
    for mode, devices in (("plain", 1), ("tuned", 2))
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """(implementation, options) -> run folder; each run is trained once for all tests."""

    @functools.cache
    def trained(implementation, *options):
        return train(implementation, tmp_path_factory.mktemp(implementation), *OPTIONS, *options)

    return trained


def first_losses(*folders, steps=1):
    return [np.array(read_step_losses(folder)[:steps]) for folder in folders]


# Half precisions and their rounding.
HALVES = {"bf16-mixed": 2.0**-8, "16-mixed": 2.0**-11}
MIXED = [
    *((name, "plain", 1) for name in IMPLEMENTATIONS),
    *(("tf", "plain", 2), ("pt", "plain", 2), ("keras", "tuned", 1), ("tf", "tuned", 1), ("ptl", "tuned", 1)),
]


@pytest.mark.quick("bf16-mixed-pt-plain-2")
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize(
    ("precision", "implementation", "mode", "devices"),
    [(half, *run) for half in HALVES for run in MIXED],
)
def test_mixed_precision_rounds_as_it_says_and_no_more(runs, precision, implementation, mode, devices):
    """The first loss differs from that in 64 bits by some roundings of half precision: it is near, but not equal."""
    options = ("--precision", precision, "--mode", mode, "--devices", devices)
    folder = runs(implementation, *options)
    mixed, exact = first_losses(folder, runs("pt", "--precision", "64"))
    assert 1e-6 < np.abs(mixed - exact)[0] < 2 * HALVES[precision]
    result = read_result(folder)
    assert result.config.precision == precision and (result.skipped_steps is None) == (precision == "bf16-mixed")


@pytest.mark.slow
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_stops_at_the_logits(runs, precision):
    """TensorFlow and Keras have the same layers. A half-precision loss in one of them would be some thousandths off."""
    still = ("--max-steps", 1, "--learning-rate", 1e-30)
    options = (*still, "--initial-weights", runs("pt") / "model.safetensors", "--precision", precision)
    losses = [read_result(runs(name, *options)).test_loss for name in ("tf", "keras")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.xdist_group("settings")
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_step_that_overflows_is_skipped_and_counted(runs, implementation, mode):
    # With a batch of one example, the gradient of the scaled loss overflows float16.
    options = ("--precision", "16-mixed", "--batch-size", 1, "--train-size", 40, "--epochs", 1)
    reference, other = runs("pt", *options), runs(implementation, *options, "--mode", mode, "--compile", "false")
    result = read_result(other)
    assert result.skipped_steps == read_result(reference).skipped_steps >= 1
    assert np.allclose(*first_losses(reference, other, steps=20), rtol=0.05, atol=0.05)


@pytest.mark.slow
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize(("implementation", "mode"), [("tf", "plain"), ("keras", "tuned"), ("ptl", "plain")])
def test_adam_does_not_count_a_step_that_is_skipped(runs, implementation, mode):
    """Adam corrects its averages by the number of steps taken: counting a skipped step makes updates smaller."""
    options = ("--precision", "16-mixed", "--batch-size", 1, "--train-size", 40, "--epochs", 1)
    options = (*options, "--optimizer", "adam", "--learning-rate", 0.003, "--schedule", "constant")
    reference, other = runs("pt", *options), runs(implementation, *options, "--mode", mode, "--compile", "false")
    assert read_result(other).skipped_steps == read_result(reference).skipped_steps >= 1
    # The sixth step is skipped. Up to the eighth step, float16 causes a difference of 0.0014, one step too many 0.016.
    losses = first_losses(reference, other, steps=8)
    assert np.max(np.abs(losses[0] - losses[1]) / losses[0]) <= 0.005


@pytest.mark.slow
@pytest.mark.parametrize("others", [[("ptl", 1), ("tf", 2)], [("keras", 1), ("pt", 2), ("keras", 2)]])
def test_the_scale_grows_and_falls_by_one_rule(tmp_path, others):
    """The scale doubles after every second step, so it soon overflows, again and again, in the same steps."""
    interval = "growth_interval: int ="
    folder = changed_code(tmp_path, "common/spec/update_rule.py", f"{interval} 2000", f"{interval} 2")
    options = (*OPTIONS, "--precision", "16-mixed", "--max-steps", 40)
    skipped = {
        (name, devices): read_result(
            train(name, folder / f"{name}-{devices}", *options, "--devices", devices, cwd=folder)
        ).skipped_steps
        for name, devices in [("pt", 1), *others]
    }
    assert min(skipped.values()) >= 5 and max(skipped.values()) <= min(skipped.values()) + 1, skipped


@pytest.mark.quick("keras-plain-1")
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize(("implementation", "mode", "devices"), COMPILED)
def test_compiled_steps_are_the_same_training(runs, implementation, mode, devices):
    options = ("--precision", "64", "--compile", "true", "--devices", devices, "--mode", mode)
    compiled, plain = runs(implementation, *options), runs("pt", "--precision", "64")
    assert read_result(compiled).config.compile is True
    if mode == "plain":
        assert "compile: False and True" in find_departure(plain, compiled, 1e-12)
    else:
        assert find_departure(plain, compiled, 1e-12) is None
    losses = first_losses(plain, compiled, steps=None)
    assert np.max(np.abs(losses[0] - losses[1]) / losses[0]) <= 1e-12


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", TORCH)
def test_without_a_compiler_there_is_one_line(tmp_path, implementation):
    command = (*program_of(implementation), "--compile", "true", "--run-dir", tmp_path / "r", *CPU)
    (line,) = run(*command, CXX="no-such-compiler", expect=2).stderr.splitlines()
    assert line.endswith("--compile true: PyTorch needs a C++ compiler, and no-such-compiler is not installed")


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_tf32_is_for_gpus(tmp_path, implementation):
    done = run_program(implementation, "--tf32", "true", "--run-dir", tmp_path / "r", *CPU, expect=2)
    assert "--tf32 true: only GPUs have TF32; this run is on the CPU" in done.stderr


@pytest.mark.quick("tf", "pt")
@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_tuned_mode_leaves_nothing_at_auto(runs, implementation):
    config = read_result(runs(implementation, "--mode", "tuned")).config
    assert "auto" not in (config.precision, config.compile, config.tf32) and config.mode == "tuned"
