"""Resumed training, in any framework on any number of devices, has the losses of training that was not interrupted."""

import itertools
import os
import signal
import subprocess

import numpy as np
import psutil
import pytest
from agreement import COLOURS, assert_the_same
from conftest import IMPLEMENTATIONS, MODES, changed_code, each_mistake, family_of, steps_taken, train, wait_for

from common.platform.errors import describe_signal
from common.record.checkpoints import CHECKPOINTS_DIR, checkpoint_dirs
from common.record.results import read_result, read_step_losses
from comparison.lockstep import find_departure

# An epoch has 28 steps; the last step has 7 examples. Checkpoints are in the second and in the third epoch.
STEPS = ("--batch-size", 12, "--epochs", 3, "--checkpoint-every", 38)
DRAWN = ("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true")
SCENARIOS = {
    "sgd": (*DRAWN, "--momentum", 0.8, "--nesterov", "true", "--learning-rate", 0.02),
    "adamw": (*DRAWN, "--optimizer", "adamw", "--gradient-clip-val", 0.7, "--warmup-steps", 45),
    "adadelta": ("--optimizer", "adadelta", "--weight-decay", 1e-3, "--schedule", "one-cycle"),
    "normalised": ("--model", "resnet8", "--sync-batchnorm", "true", "--learning-rate", 0.01),
}
TOLERANCES = {"normalised": 1e-10}  # for the others 1e-12; observed: 5e-15
WAYS = list(itertools.product(MODES, (1, 2)))
ADAM = ("--optimizer", "adam", "--schedule", "step", "--step-size", 1, "--gamma", 0.5)


def handed_on():
    """In each scenario each implementation begins once and goes on once, in another mode and on other devices."""
    for number, (scenario, name) in enumerate(itertools.product(SCENARIOS, IMPLEMENTATIONS)):
        row, column = divmod(number, len(IMPLEMENTATIONS))
        goes_on = IMPLEMENTATIONS[(column + row + 1) % len(IMPLEMENTATIONS)]
        begins = (name, *WAYS[number % 4])
        yield scenario, begins, (38, 76)[number % 2], (goes_on, *WAYS[(number + 1 + row % 3) % 4])


@pytest.fixture
def begun(trained):
    """(scenario, implementation, mode, devices) -> the folder of a whole run with checkpoints."""
    return lambda scenario, implementation, mode, devices: trained(
        implementation, *COLOURS, *STEPS, *SCENARIOS[scenario], "--mode", mode, "--devices", devices
    )


def checkpoint(run_dir, step):
    """The first checkpoint at or after `step`: Keras's tuned mode takes several steps in one call."""
    return next(
        path for path in reversed(list(checkpoint_dirs(run_dir))) if int(path.name.removeprefix("step-")) >= step
    )


@pytest.mark.quick("sgd-('pt', 'tuned', 1)", "adamw-('keras', 'tuned', 1)")
@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(("scenario", "begins", "step", "goes_on"), [*handed_on()], ids=str)
def test_another_framework_goes_on(begun, tmp_path, scenario, begins, step, goes_on):
    reference, tolerance = begun(scenario, "pt", "plain", 1), TOLERANCES.get(scenario, 1e-12)
    first = begun(scenario, *begins)
    assert_the_same(reference, first, tolerance, steps=84)  # a whole run with checkpoints
    folder = checkpoint(first, step)
    implementation, mode, devices = goes_on
    options = (*COLOURS, *STEPS, *SCENARIOS[scenario], "--mode", mode, "--devices", devices, "--resume", folder)
    other = train(implementation, tmp_path / "r", *options)
    assert_the_same(reference, other, tolerance, steps=84)
    result = read_result(other)
    assert result.resumed_from == int(folder.name.removeprefix("step-")) and read_result(first).resumed_from is None
    assert result.config.resume == folder and result.num_steps == 84


@pytest.mark.slow
@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(
    ("scenario", "implementation", "strategy", "mode"),
    [
        ("normalised", "tf", "pipeline", "plain"),
        ("adamw", "pt", "fsdp", "plain"),
        ("normalised", "pt", "pipeline", "tuned"),
        ("normalised", "ptl", "fsdp", "tuned"),
        ("adamw", "ptl", "pipeline", "plain"),
    ],
)
def test_sharded_weights_and_stages_go_on(begun, tmp_path, scenario, implementation, strategy, mode):
    reference, tolerance = begun(scenario, "pt", "plain", 1), TOLERANCES.get(scenario, 1e-12)
    options = (*COLOURS, *STEPS, *SCENARIOS[scenario])
    more = ("--mode", mode, "--strategy", strategy, "--devices", 2)
    first = train(implementation, tmp_path / "a", *options, *more)
    other = train(implementation, tmp_path / "b", *options, *more, "--resume", checkpoint(reference, 38))
    alone = train("pt", tmp_path / "c", *options, "--resume", checkpoint(first, 76))
    for one in (first, other, alone):
        assert_the_same(reference, one, tolerance, steps=84)


@pytest.mark.slow
@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(
    ("implementation", "mode", "devices"),
    [("tf", "tuned", 1), ("keras", "tuned", 2), ("pt", "plain", 2), ("ptl", "plain", 1), ("jax", "tuned", 2)],
)
def test_every_epoch_has_its_checkpoint_and_accumulated_batches_go_on(tmp_path, implementation, mode, devices):
    batches = () if implementation == "keras" else ("--batch-size", 4, "--accumulate-grad-batches", 3)
    options = (*COLOURS, *STEPS, *ADAM, *batches)
    more = ("--mode", mode, "--devices", devices, "--checkpoint-every", "epoch")
    reference = train("pt", tmp_path / "reference", *options)
    first = train(implementation, tmp_path / "a", *options, *more)
    assert [path.name for path in checkpoint_dirs(first)] == [f"step-000000{step:03}" for step in (84, 56, 28)]
    other = train(implementation, tmp_path / "b", *options, *more, "--resume", checkpoint(reference, 38))
    for one in (first, other):
        assert_the_same(reference, one, 1e-12, steps=84)


HALF = (*COLOURS, *STEPS, "--precision", "16-mixed", "--optimizer", "adam", "--learning-rate", 0.003)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "mode", "devices"),
    [("tf", "plain", 2), ("keras", "plain", 1), ("pt", "tuned", 1), ("ptl", "tuned", 2), ("jax", "plain", 1)],
)
def test_the_scale_of_the_loss_goes_on(tmp_path, implementation, mode, devices):
    """The scale begins far too large and is halved in each of the first steps; a resumed run must not begin anew."""
    options = (*HALF, "--mode", mode, "--devices", devices, "--compile", "false")
    folder = changed_code(
        tmp_path / "copy", "common/spec/update_rule.py", "initial: float = 2.0**16", "initial: float = 2.0**30"
    )
    first = train(implementation, tmp_path / "a", *options, cwd=folder)
    other = train(implementation, tmp_path / "b", *options, "--resume", checkpoint(first, 38), cwd=folder)
    assert read_result(first).skipped_steps == read_result(other).skipped_steps >= 5
    losses, others = (np.array(read_step_losses(folder)) for folder in (first, other))
    assert np.max(np.abs(losses - others)) < 1e-3


# --- Runs that somebody ends ---

ENDLESS = ("--precision", 64, "--train-size", 418, "--batch-size", 16, "--log-every-n-steps", 5, "--optimizer", "adam")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("implementation", "devices", "name", "whom", "mode"),
    [
        ("pt", 2, "SIGTERM", "first", "plain"),
        ("pt", 2, "SIGTERM", "all", "tuned"),
        ("ptl", 2, "SIGINT", "all", "plain"),
        ("ptl", 2, "SIGTERM", "first", "tuned"),
        ("tf", 1, "SIGUSR1", "first", "plain"),
        ("keras", 2, "SIGINT", "first", "tuned"),
    ],
)
def test_a_signal_ends_it_with_a_checkpoint_and_it_goes_on(
    training, tmp_path, implementation, devices, name, whom, mode
):
    epochs = 20 if implementation == "ptl" else 60  # the others finish 20 too soon
    options = ("--devices", devices, "--epochs", epochs, "--checkpoint-every", 10_000, "--mode", mode)
    process, number = training(implementation, 30, *ENDLESS, *options), getattr(signal, name)
    (os.killpg if whom == "all" else os.kill)(process.pid, number)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == os.EX_TEMPFAIL == 75, err
    (folder,) = (tmp_path / "r" / CHECKPOINTS_DIR).iterdir()
    said = f"python -m {implementation}_impl: ended by {describe_signal(number)};"
    said += f" add --resume {folder} to continue from there"
    assert [line for line in err.splitlines() if line.startswith("python -m")] == [said]
    before = steps_taken(tmp_path / "r")
    assert int(folder.name.removeprefix("step-")) == before < epochs * 27

    train(implementation, tmp_path / "r", *ENDLESS, *options, "--resume", "auto")
    assert read_result(tmp_path / "r").resumed_from == before
    reference = train("pt", tmp_path / "reference", *ENDLESS, "--epochs", epochs)
    assert_the_same(reference, tmp_path / "r", 1e-10, steps=epochs * 27)


@pytest.mark.slow
def test_what_is_killed_loses_one_interval(training, tmp_path):
    options = ("--epochs", 100_000, "--checkpoint-every", 500)
    process = training("pt", 510, *ENDLESS, *options)
    wait_for(lambda: 100 < steps_taken(tmp_path / "r") % 500 < 400)  # otherwise a checkpoint may be half written
    process.kill()
    process.communicate()
    done = steps_taken(tmp_path / "r")
    latest = next(checkpoint_dirs(tmp_path / "r"))
    assert int(latest.name.removeprefix("step-")) == done // 500 * 500
    train("pt", tmp_path / "r", *ENDLESS, *options, "--resume", "auto", "--dry-run", "true")


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(training):
    """After the first signal, the run waits for a vote of all replicas; a stopped replica does not vote."""
    process = training("pt", 30, *ENDLESS, "--devices", 2, "--epochs", 100_000, "--checkpoint-every", 10_000)
    replicas = family_of(process)[1:]
    stopped = next(replica for replica in reversed(replicas) if "spawn_main" in " ".join(replica.cmdline()))
    stopped.suspend()
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert not psutil.wait_procs(replicas, timeout=10)[1]  # the stopped replica is gone too


# name: (scenario, implementation that continues, file, code, mistake)
MUTATIONS = {
    "a velocity that is forgotten": ("sgd", "pt", "pt_impl/state.py", "        if kept:\n", "        if not kept:\n"),
    "Adam's count of steps": ("adamw", "pt", "pt_impl/state.py", "float(state.steps_taken)", "0.0"),
    "TensorFlow's count of steps": (
        "adamw",
        "tf",
        "tf_impl/state.py",
        "    optimizer.iterations.assign(state.step)\n",
        "",
    ),
    "a schedule that begins anew": ("sgd", "pt", "pt_impl/optimizer.py", "[first_step - 1 :]", ""),
    "batches that are taken twice": (
        *("sgd", "pt", "common/spec/batches.py"),
        "for number in self.steps(epoch)]",
        "for number in self.all_steps(epoch)]",
    ),
}


@pytest.mark.slow
def test_a_finished_run_is_trained_longer_where_its_learning_rates_do_not_depend_on_its_length(tmp_path):
    options = (*COLOURS, "--schedule", "constant", "--checkpoint-every", "epoch")
    whole = train("pt", tmp_path / "whole", *options, "--epochs", 4)
    short = train("pt", tmp_path / "short", *options, "--epochs", 2)
    longer = train("tf", tmp_path / "longer", *options, "--epochs", 4, "--resume", short)
    assert find_departure(whole, longer, 1e-12) is None


@each_mistake(MUTATIONS, lambda name: "velocity" in name)
def test_each_mistake_is_caught(begun, tmp_path, mutation):
    scenario, implementation, file, before, after = MUTATIONS[mutation]
    changed_code(tmp_path / "copy", file, before, after)
    reference = begun(scenario, "pt", "plain", 1)
    options = (*COLOURS, *STEPS, *SCENARIOS[scenario], "--resume", checkpoint(reference, 38))
    message = find_departure(reference, train(implementation, tmp_path / "r", *options, cwd=tmp_path / "copy"), 1e-10)
    assert message is not None and message.startswith(("step 39 ", "step 40 ")), message
