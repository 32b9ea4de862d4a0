"""The settings that `--mode` decides, and those that the options decide."""

import numpy as np
import pytest

from common.data.arrays import write_arrays_info
from common.data.datasets import dataset_nbytes, load_dataset
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.resolve import (
    MAX_RESIDENT_BYTES,
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


def test_data_are_put_on_the_device_in_tuned_mode_where_they_are_not_too_large():
    assert resolved().data_on == "host" and resolved(mode="tuned").data_on == "device"
    assert resolved(mode="tuned", data_on="host").data_on == "host"
    # The size is known before any image is read or made: this folder has no CIFAR-10.
    assert resolved(mode="tuned", dataset="cifar10", data_dir="nowhere").data_on == "device"
    large = {"dataset": "synthetic", "image_shape": (64, 64, 3), "train_size": MAX_RESIDENT_BYTES // (64 * 64 * 3)}
    assert resolved(mode="tuned", **large).data_on == "host"
    assert resolved(mode="tuned", **{**large, "train_size": large["train_size"] - 1024}).data_on == "device"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"train_size": 7, "test_size": 3},
        {"dataset": "synthetic", "image_shape": (3, 4, 2), "train_size": 11},
        {"dataset": "mnist", "test_size": 9},
        {"dataset": "arrays", "train_size": 5},
    ],
)
def test_the_size_is_that_of_the_images_that_are_then_read(options, request, tmp_path):
    config = TrainConfig(**options)
    if config.dataset == "mnist":
        config = config.replace(data_dir=request.getfixturevalue("data_dir"))
    if config.dataset == "arrays":
        for part, count in (("train", 6), ("test", 2)):
            np.save(tmp_path / f"{part}_images.npy", np.arange(count * 12, dtype=np.uint8).reshape(count, 2, 2, 3))
            np.save(tmp_path / f"{part}_labels.npy", np.zeros(count, np.int64))
        write_arrays_info(tmp_path, ["a", "b"])
        config = config.replace(data_dir=tmp_path)
    dataset = load_dataset(config)
    assert dataset_nbytes(config) == dataset.train_images.nbytes + dataset.test_images.nbytes
