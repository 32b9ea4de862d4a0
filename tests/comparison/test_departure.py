import numpy as np
import pytest
from made_up import comparison

from common.platform.errors import UserError
from common.platform.files import write_safetensors
from common.spec.options import TrainConfig
from comparison.lockstep import find_departure, loss_differences, roundoff


def test_differences_are_relative_above_a_loss_of_1_and_absolute_below():
    assert loss_differences([2.0, 0.5], [2.2, 0.6]) == pytest.approx([0.1, 0.1])


def test_only_steps_that_both_took_are_compared_and_what_is_no_number_shows():
    assert len(loss_differences([1.0] * 12, [1.0] * 11)) == 11
    assert np.isnan(loss_differences([1.0, 1.0], [1.0, float("nan")])[1])


def test_the_coarsest_precision_counts():
    one, half = TrainConfig(precision="32"), TrainConfig(precision="bf16-mixed")
    assert roundoff(one) == 2.0**-24 and roundoff(one, half) == 2.0**-8
    assert roundoff(TrainConfig(precision="32", tf32=True)) == 2.0**-11


@pytest.mark.parametrize("array", [np.ones(2, np.int64), np.zeros((0, 3), np.float32)])
def test_a_first_batch_without_floats_is_refused(tmp_path, array):
    (run,) = comparison(tmp_path, implementations=["pt"], verify="never").runs
    write_safetensors(run.run_dir / "first_batch.safetensors", {"activation.dense1": array})
    with pytest.raises(UserError, match=f"first_batch.safetensors: activation.dense1 is {array.dtype} "):
        find_departure(run.run_dir, run.run_dir, 1e-9)


def test_inputs_that_differ_by_one_amount_are_of_another_type(tmp_path):
    first, other = (
        comparison(tmp_path / name, implementations=["pt"], verify="never").runs[0].run_dir for name in "ab"
    )
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    for folder, integers in ((first, images), (other, images.astype(np.int8))):
        write_safetensors(folder / "first_batch.safetensors", {"activation.input": (integers - 33.0) / 78})
    assert "suspect an integer type such as int8 for uint8: " in find_departure(first, other, 1e-10)
    write_safetensors(other / "first_batch.safetensors", {"activation.input": (images[::-1] - 33.0) / 78})
    assert "suspect the examples of the batch, their normalisation" in find_departure(first, other, 1e-10)


def test_layers_that_could_not_be_watched_are_not_compared(tmp_path):
    made = (comparison(tmp_path / name, implementations=["pt"], verify="never") for name in "ab")
    first, other = (summary.runs[0].run_dir for summary in made)
    arrays = {f"activation.{name}": np.ones((4, 2)) for name in ("input", "conv1", "conv2", "dense1")}
    write_safetensors(first / "first_batch.safetensors", arrays)
    del arrays["activation.conv1"]
    write_safetensors(other / "first_batch.safetensors", arrays | {"activation.conv2": np.full((4, 2), 1.5)})
    found = find_departure(first, other, 1e-10)
    assert found.startswith(
        "first batch: activation.conv2 differs by 5.0e-01, the layers before it agree: suspect that"
    )
    assert "or conv1" in found and "which could not be watched" in found
