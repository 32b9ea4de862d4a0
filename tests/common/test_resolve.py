"""The settings that `--mode` decides, and those that the options decide."""

import pytest

from common.experiment import MAX_RESIDENT_BYTES, RESIDENT_VARIABLE, Experiment
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.resolve import (
    Settings,
    describe_devices,
    describe_settings,
    resolve_devices,
    resolve_settings,
)
from common.spec.options import TrainConfig

TUNED = Settings("bf16-mixed", compile=True)


def resolved(num_gpus=0, **options):
    config = resolve_devices(TrainConfig(**options), "X", num_gpus, Launch.read({}), ("ddp", "dp", "fsdp", "pipeline"))
    return resolve_settings(config, TUNED)


def test_plain_is_the_same_for_all_and_tuned_is_what_the_implementation_says():
    assert describe_settings(resolved()) == "32-bit"
    assert describe_settings(resolved(mode="tuned")) == "bf16-mixed, compiled"
    assert resolved().tf32 is False and resolved().compile is False


def test_what_is_given_by_hand_holds_in_either_mode():
    assert describe_settings(resolved(mode="tuned", precision="32")) == "32-bit, compiled"
    assert describe_settings(resolved(mode="tuned", compile=False)) == "bf16-mixed"
    assert describe_settings(resolved(precision="64", compile=True)) == "64-bit, compiled"


def test_synchronised_batch_normalisation_is_not_compiled():
    with pytest.raises(UserError, match="--sync-batchnorm true: cannot be compiled, since replicas communicate"):
        resolved(sync_batchnorm=True, compile=True, devices=2)
    assert resolved(sync_batchnorm=True, compile=True, devices=1).compile is True


def test_the_settings_name_a_strategy_that_is_not_the_usual_one():
    assert describe_settings(resolved(devices=2)) == "32-bit"
    assert describe_settings(resolved(devices=2, strategy="fsdp")) == "32-bit, fsdp"
    assert describe_settings(resolved(strategy="ddp")) == "32-bit, ddp"
    assert describe_settings(resolved(strategy="pipeline", microbatches=4)) == "32-bit, pipeline, 4 microbatches"
    mixed = resolved(num_gpus=1, strategy="pipeline", stages=("cpu", "gpu"))
    assert describe_devices(mixed, "any").startswith("cpu and gpu (any), ")


def test_a_pipeline_is_not_compiled():
    with pytest.raises(UserError, match="--compile true: not with --strategy pipeline"):
        resolved(strategy="pipeline", compile=True)


def test_tf32_is_for_gpus():
    with pytest.raises(UserError, match="--tf32 true: only GPUs have TF32"):
        resolved(tf32=True)
    assert describe_settings(resolved(num_gpus=1, tf32=True)) == "32-bit, TF32"


def test_data_are_put_on_the_devices_where_they_are_not_too_large(monkeypatch):
    experiment = Experiment.make(TrainConfig())
    size = experiment.dataset.train_images.nbytes + experiment.dataset.test_images.nbytes
    assert experiment.is_resident and MAX_RESIDENT_BYTES == 512 * 2**20
    for limit, resident in ((size, True), (size - 1, False)):
        monkeypatch.setenv(RESIDENT_VARIABLE, str(limit))
        assert experiment.is_resident is resident
