"""Where two trainings part, and what to suspect."""

import numpy as np
import pytest
from made_up import comparison

from common.platform.files import write_safetensors
from common.spec.options import TrainConfig
from comparison.lockstep import find_departure, loss_differences, roundoff


def test_differences_are_relative_above_a_loss_of_1_and_absolute_below():
    assert loss_differences([2.0, 0.5, 1.0], [2.2, 0.6]) == pytest.approx([0.1, 0.1])  # of the steps that both took
    assert np.isnan(loss_differences([1.0], [float("nan")])[0])
    one, half = TrainConfig(precision="32"), TrainConfig(precision="bf16-mixed")
    assert roundoff(one) == 2.0**-24 and roundoff(one, half) == 2.0**-8  # of the coarsest precision
    assert roundoff(TrainConfig(precision="32", tf32=True)) == 2.0**-11


def test_images_of_another_integer_type_are_suspected(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    folders = []
    for name, pixels in (("a", images), ("b", images.astype(np.int8))):
        runs = comparison(tmp_path / name, implementations=["pt"], verify="never").runs
        folders.append(tmp_path / name / runs["run_dir"][0])
        write_safetensors(folders[-1] / "first_batch.safetensors", {"activation.input": (pixels - 33.0) / 78})
    assert "suspect an integer type such as int8 for uint8: " in find_departure(*folders, 1e-10)
