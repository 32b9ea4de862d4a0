"""The faster settings: each is the same training as far as its rounding allows, in every framework."""

import functools
import shutil
import sys

import numpy as np
import pytest
from conftest import CPU, IMPLEMENTATIONS, copy_code, run, train

from common.results import read_result, read_step_losses
from comparison.lockstep import find_departure, lockstep, rounding_between

OPTIONS = ("--epochs", 2, "--train-size", 418, "--batch-size", 16)
NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """(implementation, options) -> its run folder; each is trained once for all tests."""

    @functools.cache
    def trained(implementation, *options):
        return train(implementation, tmp_path_factory.mktemp(implementation), *OPTIONS, *options)

    return trained


def compare(one, other):
    results = [read_result(folder) for folder in (one, other)]
    rounding = rounding_between(*(result.config for result in results))
    return lockstep(*(read_step_losses(folder) for folder in (one, other)), rounding)


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(("implementation", "devices"), [("tf", 1), ("ptl", 1), ("tf", 2), ("pt", 2)])
def test_mixed_precision_is_the_same_training(runs, precision, implementation, devices):
    reference = runs("pt", "--precision", precision)
    found = compare(reference, runs(implementation, "--precision", precision, "--devices", devices))
    assert found.same_training, found
    result = read_result(reference)
    assert result.config.precision == precision and (result.skipped_steps is None) == (precision == "bf16-mixed")


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_mixed_precision_is_near_float32_and_is_not_it(runs, precision, implementation):
    found = compare(runs("pt", "--precision", "32"), runs(implementation, "--precision", precision))
    assert found.same_training and found.first_steps > 1e-5, found


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize(
    "mistake", [("--nesterov", "true"), ("--learning-rate", 0.06), ("--momentum", 0.5), ("--seed", 1)]
)
def test_what_mixed_precision_may_not_hide(runs, precision, mistake):
    """The tolerance is wide, and another update rule or another order of examples is outside it."""
    found = compare(runs("pt", "--precision", precision), runs("pt", "--precision", precision, *mistake))
    assert not found.same_training


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_step_that_overflows_is_skipped_and_counted(runs, implementation):
    # A batch of one example: the scaled loss's gradient is beyond what float16 holds.
    options = ("--precision", "16-mixed", "--batch-size", 1, "--train-size", 40, "--epochs", 1)
    reference, other = (runs(name, *options) for name in ("pt", implementation))
    result = read_result(other)
    assert result.skipped_steps == read_result(reference).skipped_steps >= 1
    losses = [np.array(read_step_losses(folder)[:20]) for folder in (reference, other)]
    assert np.allclose(*losses, rtol=0.05, atol=0.05)


@pytest.mark.xdist_group("settings")
def test_the_scale_grows_and_falls_by_one_rule(tmp_path):
    """With a scale that doubles after every second step it soon overflows, again and again, in the same steps."""
    folder = copy_code(tmp_path)
    path = folder / "common" / "optim.py"
    source = path.read_text()
    assert "growth_interval: int = 2000" in source
    path.write_text(source.replace("growth_interval: int = 2000", "growth_interval: int = 2"))
    options = (*OPTIONS, "--precision", "16-mixed", "--max-steps", 40)
    skipped = {
        (name, devices): read_result(
            train(name, folder / f"{name}-{devices}", *options, "--devices", devices, cwd=folder)
        ).skipped_steps
        for name, devices in [("pt", 1), ("tf", 1), ("ptl", 1), ("pt", 2), ("tf", 2)]
    }
    assert min(skipped.values()) >= 5 and max(skipped.values()) <= min(skipped.values()) + 1, skipped


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    "implementation", [pytest.param(name, marks=NEEDS_A_COMPILER) for name in ("pt", "ptl")] + ["tf"]
)
def test_compiled_steps_are_the_same_training(runs, implementation, devices):
    compiled = runs(implementation, "--precision", "64", "--compile", "true", "--devices", devices)
    assert read_result(compiled).config.compile is True
    plain = runs(implementation, "--precision", "64")
    losses = [np.array(read_step_losses(folder)) for folder in (plain, compiled)]
    assert np.max(np.abs(losses[0] - losses[1]) / losses[0]) <= 1e-10
    assert "compile: False and True" in find_departure(plain, compiled, 1e-10)


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize(
    "implementation", [pytest.param(name, marks=NEEDS_A_COMPILER) for name in ("pt", "ptl")] + ["tf"]
)
def test_compiled_steps_agree_in_float32(runs, implementation):
    found = compare(runs("pt", "--precision", "32"), runs(implementation, "--precision", "32", "--compile", "true"))
    assert found.same_training, found


@pytest.mark.parametrize("implementation", ["pt", "ptl"])
def test_without_a_compiler_there_is_one_line(tmp_path, implementation):
    command = (sys.executable, "-m", f"{implementation}_impl", "--compile", "true", "--run-dir", tmp_path / "r", *CPU)
    (line,) = run(*command, CXX="no-such-compiler", expect=2).stderr.splitlines()
    assert line.endswith("--compile true: PyTorch needs a C++ compiler, and no-such-compiler is not installed")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_tf32_is_for_gpus(tmp_path, implementation):
    command = (sys.executable, "-m", f"{implementation}_impl", "--tf32", "true", "--run-dir", tmp_path / "r", *CPU)
    assert "--tf32 true: only GPUs have TF32; this run is on the CPU" in run(*command, expect=2).stderr


@pytest.mark.xdist_group("settings")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_mode_best_is_the_same_training_too(runs, implementation):
    best = runs(implementation, "--mode", "best")
    config = read_result(best).config
    assert "auto" not in (config.precision, config.compile, config.tf32) and config.mode == "best"
    found = compare(runs("pt", "--precision", "32"), best)
    assert found.same_training, found
