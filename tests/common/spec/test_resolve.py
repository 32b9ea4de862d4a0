"""What `--mode` decides, and what is left to the options."""

import pytest

from common.platform.errors import UserError
from common.spec.options import TrainConfig
from common.spec.resolve import Settings, describe_settings, resolve_settings

TUNED = Settings("bf16-mixed", compile=True)


def resolved(**options):
    return resolve_settings(TrainConfig(accelerator="cpu", **options), TUNED)


def test_plain_is_the_same_for_all_and_tuned_is_what_the_implementation_says():
    assert describe_settings(resolved()) == "32-bit"
    assert describe_settings(resolved(mode="tuned")) == "bf16-mixed, compiled"
    assert resolved().tf32 is False and resolved().compile is False


def test_what_is_given_by_hand_holds_in_either_mode():
    assert describe_settings(resolved(mode="tuned", precision="32")) == "32-bit, compiled"
    assert describe_settings(resolved(mode="tuned", compile=False)) == "bf16-mixed"
    assert describe_settings(resolved(precision="64", compile=True)) == "64-bit, compiled"


def test_tf32_is_for_gpus():
    with pytest.raises(UserError, match="--tf32 true: only GPUs have TF32"):
        resolved(tf32=True)
    gpu = resolve_settings(TrainConfig(accelerator="gpu", tf32=True), TUNED)
    assert describe_settings(gpu) == "32-bit, TF32"
