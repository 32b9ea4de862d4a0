"""`--mode tutorial`: the programs of the frameworks' documentation are the same training, where they can be."""

import pytest
from agreement import assert_arrays_agree, rotated
from conftest import IMPLEMENTATIONS, train

from common.platform.errors import UserError
from common.platform.launch import Launch
from common.record.audited_states import STEPS_VARIABLE
from common.record.results import read_result
from common.resolve import Settings, resolve_devices, resolve_settings
from common.spec.options import TrainConfig
from comparison.lockstep import find_departure
from comparison.prove.audits import make_audits

TOLERANCE = 1e-12
# The last of 27 batches has two examples.
SMALL = ("--train-size", 418, "--batch-size", 16, "--epochs", 2, "--precision", 64)
SCENARIOS = {
    "sgd": ("--momentum", 0.9, "--schedule", "cosine", "--gradient-clip-val", 0.5),
    "drawn": (
        *("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true"),
        *("--optimizer", "adam", "--label-smoothing", 0.1),
    ),
    "colours": (
        *("--dataset", "synthetic", "--image-shape", 16, 19, 3, "--model", "lenet", "--test-size", 101),
        *("--random-crop", 3, "--horizontal-flip", "true", "--checkpoint-every", 30),
    ),
    "normalised": ("--model", "resnet8", "--verify-steps", 40),
}


@pytest.mark.quick("sgd")
@pytest.mark.parametrize(
    ("scenario", "implementation", "devices"),
    [
        pytest.param(*case, marks=pytest.mark.xdist_group(f"tutorial-{case[0]}"))
        for case in rotated(SCENARIOS, IMPLEMENTATIONS, [(2,), (1,)])
    ],
)
def test_tutorials_are_the_same_training(trained, tmp_path, scenario, implementation, devices):
    options = (*SMALL, *SCENARIOS[scenario])
    other = train(implementation, tmp_path / "run", *options, "--mode", "tutorial", "--devices", devices)
    # Each replica normalises its own shard.
    wanted = trained("pt", *options, "--devices", devices if scenario == "normalised" else 1)
    message = find_departure(wanted, other, TOLERANCE)
    assert message is None, message
    assert read_result(other).test_correct == read_result(wanted).test_correct
    assert_arrays_agree(wanted, other, "model.safetensors", TOLERANCE)


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", ["tf", "keras", "pt"])
def test_audits_say_where_unequal_shards_make_another_training(tmp_path, implementation):
    """JAX has no shards of its own: a batch is one array."""
    options = ("--mode", "tutorial", "--devices", 2, "--train-size", 165, "--batch-size", 32, "--epochs", 3)
    train(implementation, tmp_path / "run", *options, **{STEPS_VARIABLE: "1 4 6 7 12"})
    audits = make_audits(tmp_path / "run", (1, 4, 6, 7, 12))
    assert [audit.same for audit in audits.steps] == [True, True, False, True, None]  # the last one "like one before"
    assert "averages the means of the replicas' shards, which differ in size here" in audits.different[0].note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "pipeline", "devices": 2}, "--strategy pipeline: not with --mode tutorial"),
        ({"accumulate_grad_batches": 2}, "--accumulate-grad-batches 2: not with --mode tutorial"),
        ({"batch_size": 33, "devices": 2}, "--batch-size 33: with --mode tutorial, should be a multiple"),
    ],
)
def test_what_no_tutorial_teaches_is_refused(options, message):
    config = TrainConfig(mode="tutorial", accelerator="cpu", **options)
    config = resolve_devices(config, "PyTorch", 0, Launch.read({}), ("ddp", "pipeline"))
    with pytest.raises(UserError, match=f"^{message}"):
        resolve_settings(config, Settings())


@pytest.mark.slow
def test_tutorials_resume_within_an_epoch_from_a_checkpoint_of_mode_plain(tmp_path):
    whole = train("pt", tmp_path / "plain", *SMALL, "--checkpoint-every", 40)
    checkpoint = whole / "checkpoints" / "step-000000040"
    for implementation in IMPLEMENTATIONS:
        options = (*SMALL, "--mode", "tutorial", "--resume", checkpoint)
        message = find_departure(whole, train(implementation, tmp_path / implementation, *options), TOLERANCE)
        assert message is None, (implementation, message)
