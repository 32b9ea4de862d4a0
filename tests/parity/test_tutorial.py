"""`--mode tutorial`: the programs of the frameworks' documentation are the same training, where they can be.

Keras on PyTorch and on JAX has this mode alone, on one device.
"""

import pytest
from agreement import assert_the_same, rotated
from conftest import IMPLEMENTATIONS, ON_ONE_DEVICE, changed_code, train

from common.record.audited_states import STEPS_VARIABLE
from comparison.lockstep import find_departure
from comparison.prove.audits import make_audits

TOLERANCE = 1e-12
TUTORIAL = ("--mode", "tutorial")
# The last of 27 batches has two examples, or, where one device trains, five: a fifth is no 32-bit number.
SMALL = ("--batch-size", 16, "--epochs", 2, "--precision", 64, "--train-size")
SIZES = {"two": (*SMALL, 418), "five": (*SMALL, 421)}
CHECKPOINTS = ("--checkpoint-every", 15)
SCENARIOS = {
    "sgd": ("--momentum", 0.9, "--nesterov", "true", "--schedule", "cosine", "--gradient-clip-val", 0.5),
    "drawn": (
        *("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true"),
        *("--optimizer", "adam", "--weight-decay", 1e-3, "--label-smoothing", 0.1, *CHECKPOINTS),
    ),
    "colours": (
        *("--dataset", "synthetic", "--image-shape", 16, 19, 3, "--model", "lenet", "--test-size", 101),
        *("--random-crop", 3, "--horizontal-flip", "true", "--optimizer", "adamw", "--schedule", "one-cycle"),
        *CHECKPOINTS,
    ),
    "normalised": ("--model", "resnet8", "--momentum", 0.9, "--verify-steps", 40),
    "adadelta": ("--optimizer", "adadelta", "--weight-decay", 1e-3, "--schedule", "step", "--step-size", 1),
    "cut short": ("--max-steps", 50),
}
STEPS = {"normalised": 40, "cut short": 50}  # the others: 54
CASES = [(*case, "two") for case in rotated([*SCENARIOS][:4], IMPLEMENTATIONS, [(2,), (1,)])]
CASES += [(name, ON_ONE_DEVICE[row % 2], 1, "five") for row, name in enumerate(SCENARIOS)]
CASES += [("sgd", "keras_jax", 1, "five"), ("drawn", "keras_torch", 1, "five")]


@pytest.mark.quick("sgd")
@pytest.mark.parametrize(
    ("scenario", "implementation", "devices", "last"),
    [pytest.param(*case, marks=pytest.mark.xdist_group(f"tutorial-{case[0]}")) for case in CASES],
)
def test_tutorials_are_the_same_training(trained, tmp_path, scenario, implementation, devices, last):
    options = (*SIZES[last], *SCENARIOS[scenario])
    other = train(implementation, tmp_path / "run", *options, *TUTORIAL, "--devices", devices)
    # Each replica normalises its own shard.
    wanted = trained("pt", *options, "--devices", devices if scenario == "normalised" else 1)
    message = find_departure(wanted, other, TOLERANCE)
    assert message is None, message
    assert_the_same(wanted, other, TOLERANCE, steps=STEPS.get(scenario, 54))


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", ["tf", "keras", "pt"])
def test_audits_say_where_unequal_shards_make_another_training(tmp_path, implementation):
    """JAX has no shards of its own: a batch is one array."""
    options = (*TUTORIAL, "--devices", 2, "--train-size", 165, "--batch-size", 32, "--epochs", 3)
    train(implementation, tmp_path / "run", *options, **{STEPS_VARIABLE: "1 4 6 7 12"})
    audits = make_audits(tmp_path / "run", (1, 4, 6, 7, 12))
    assert [audit.same for audit in audits.steps] == [True, True, False, True, None]  # the last one "like one before"
    assert "averages the means of the replicas' shards, which differ in size here" in audits.different[0].note


@pytest.mark.slow
@pytest.mark.xdist_group("tutorial-drawn")
@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, *ON_ONE_DEVICE])
def test_it_resumes_within_an_epoch_and_is_resumed(trained, tmp_path, implementation):
    """From a checkpoint of PyTorch's in plain mode, and then PyTorch from its own."""
    options = (*SIZES["five"], *SCENARIOS["drawn"])
    whole = trained("pt", *options, "--devices", 1)
    checkpoint = whole / "checkpoints" / "step-000000030"
    other = train(implementation, tmp_path / "a", *options, *TUTORIAL, "--resume", checkpoint)
    checkpoint = other / "checkpoints" / "step-000000045"
    last = train("pt", tmp_path / "b", *options, "--resume", checkpoint)
    assert find_departure(whole, other, TOLERANCE) is None and find_departure(whole, last, TOLERANCE) is None


@pytest.mark.slow
@pytest.mark.xdist_group("tutorial-sgd")
def test_a_mistake_on_one_device_is_caught(trained, tmp_path):
    before, after = "epoch_order(config.seed, epoch + 1,", "epoch_order(config.seed, 1,"
    changed_code(tmp_path / "copy", "keras_impl/on_one_device.py", before, after)
    options = (*SIZES["five"], *SCENARIOS["sgd"])
    other = train("keras_torch", tmp_path / "run", *options, *TUTORIAL, cwd=tmp_path / "copy")
    message = find_departure(trained("pt", *options, "--devices", 1), other, TOLERANCE)
    assert "step 28 of 54 (epoch 2)" in message and "the first of its epoch" in message
