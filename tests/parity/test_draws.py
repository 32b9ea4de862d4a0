"""Dropout and augmentation draw what their specification says; test_lockstep.py compares whole trainings."""

import sys

import numpy as np
import pytest
from agreement import COLOURS
from conftest import CPU, run, run_program, train

from common.platform.files import read_safetensors
from common.record.results import read_result
from common.spec.batches import epoch_order
from common.spec.randomness import kept, visits


def test_what_is_dropped_is_what_the_specification_says(tmp_path):
    options = ("--model", "mnist_dropout", "--batch-size", 10, "--max-steps", 1)
    run_dir = train("pt", tmp_path, *COLOURS, *options, "--save-first-batch", "true", "--seed", 2**40 + 3)
    arrays, config = read_safetensors(run_dir / "first_batch.safetensors"), read_result(run_dir).config
    examples = visits(1, epoch_order(config.seed, 1, config.train_size)[: config.batch_size])
    for before, layer, stream, rate in (("pool", "dropout1", 0, 0.25), ("dense1", "dropout2", 1, 0.5)):
        values, dropped = arrays[f"activation.{before}"], arrays[f"activation.{layer}"]
        stay = kept(config.seed, examples, stream, values[0].size, rate).reshape(values.shape)
        assert np.allclose(dropped, np.where(stay, values / (1 - rate), 0), rtol=1e-14, atol=0)
        assert (values[~stay] > 0).any() and (values[stay] > 0).any()


PREPARED = """
import numpy as np
import sys
from common.experiment import Experiment
from common.spec.options import TrainConfig
from common.spec.randomness import visits
config = TrainConfig(
    dataset="synthetic", image_shape=(12, 9, 3), train_size=200, test_size=5, precision="64", seed=2**33 + 7,
    random_crop=3, horizontal_flip=True,
)
experiment = Experiment.make(config)
dataset, seen = experiment.dataset, visits(3, np.arange(200))
expected = experiment.augmentation(dataset.train_images, seen, dataset.shift, dataset.scale)
assert np.unique(expected).size > 100
if sys.argv[1] == "tf":
    import tf_impl, tensorflow as tf
    from tf_impl.data import make_shards
    found = make_shards(experiment, 1)[0].prepare(tf.constant(dataset.train_images), tf.constant(seen)).numpy()
else:
    import torch
    from pt_impl.data import Prepare
    prepare = Prepare(experiment, experiment.augmentation)
    found = prepare(torch.tensor(dataset.train_images), torch.tensor(seen)).numpy().transpose(0, 2, 3, 1)
assert np.allclose(found, expected, rtol=1e-14, atol=1e-14), np.abs(found - expected).max()
"""


@pytest.mark.parametrize("framework", ["tf", "pt"])
def test_images_are_changed_as_the_specification_says(framework):
    run(sys.executable, "-c", PREPARED, framework)


def test_a_crop_that_does_not_fit_the_images_is_refused(tmp_path):
    options = (*COLOURS, *CPU, "--random-crop", 13, "--run-dir", tmp_path / "r")
    assert "--random-crop 13: images are 12 x 9; at most 9" in run_program("pt", *options, expect=2).stderr
