import math
import sys

import numpy as np
import pytest
from conftest import run

from common.platform.errors import UserError
from common.spec.networks import NETWORK_FOLDERS, NetworkSpec

# The smallest images, and the layer after which `--strategy pipeline` cuts.
SMALLEST = {"cnn": 4, "lenet": 16, "mnist_dropout": 6, "resnet8": 5, "resnet18": 9, "resnet50": 33}
CUTS = {"cnn": "pool2", "lenet": "pool2", "mnist_dropout": "dropout1"}
CUTS |= {"resnet8": "layer1.0", "resnet18": "layer2.1", "resnet50": "layer2.3"}


@pytest.mark.parametrize("model", NETWORK_FOLDERS)
def test_the_smallest_image_leaves_something_to_average_over(model):
    """Batch normalisation needs more than one value per channel, even with a single image."""
    size = SMALLEST[model]
    spec = NetworkSpec.make(model, (size, size, 1), 10)
    values = [shape[0] * shape[1] for shape in spec.activations.values() if len(shape) == 3]
    assert min(values) >= (2 if spec.normalises else 1)
    with pytest.raises(
        UserError, match=rf"--model {model}: images of {size - 1} x {size - 1} are too small: (nothing|a single pixel)"
    ):
        NetworkSpec.make(model, (size - 1, size - 1, 1), 10)


@pytest.mark.parametrize("model", CUTS)
def test_a_pipeline_cuts_before_the_dense_layers_or_in_the_middle_of_the_work(model):
    assert NetworkSpec.make(model, (64, 64, 3), 10).end_of_first_stage == CUTS[model]


COUNT = """
import torch
from torch.utils.flop_counter import FlopCounterMode
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.networks import make_network
shapes = {"cnn": (9, 12, 3), "lenet": (28, 28, 1), "resnet8": (20, 9, 3), "resnet18": (32, 32, 1)}
shapes["resnet50"] = 64, 65, 3
for model, shape in shapes.items():
    spec = NetworkSpec.make(model, shape, 10)
    network = make_network(spec, TrainConfig(precision="32"))
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, shape[2], *shape[:2]))
    assert counter.get_total_flops() == spec.flops_per_image, (model, counter.get_total_flops(), spec.flops_per_image)
    assert sum(parameter.numel() for parameter in network.parameters()) == spec.num_parameters
"""


@pytest.mark.slow
def test_torch_counts_the_same_operations_and_parameters():
    run(sys.executable, "-c", COUNT)


def test_initial_weights_fill_their_bounds_and_biases_are_zero():
    spec = NetworkSpec.make("lenet", (28, 28, 1), 10)
    weights = spec.initial_weights(3)
    for parameter in spec.parameters:
        array = weights[parameter.name]
        assert array.shape == parameter.shape and array.dtype == np.float64
        if parameter.name.endswith("bias"):
            assert not array.any()
        else:
            assert 0.98 * parameter.bound < np.abs(array).max() < parameter.bound
            assert abs(array.std() - parameter.bound / math.sqrt(3)) < 0.05 * parameter.bound
    assert spec.parameters[2].bound == math.sqrt(6 / (5 * 5 * (20 + 50)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense2.bias": None}, "missing: dense2.bias; --model cnn has other names; "),
        ({"extra": np.zeros(3)}, "unexpected: extra; --model cnn has other names"),
        ({"conv1.bias": np.zeros(3)}, r"conv1.bias has shape \(3,\), should have \(32,\)"),
        ({"conv1.bias": np.full(32, np.inf)}, "conv1.bias contains NaN or infinity"),
        ({"conv1.bias": np.zeros(32, int)}, "conv1.bias is of type int64; should be floating-point numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_the_parameters_name(change, message):
    network = NetworkSpec.make("cnn", (8, 8, 1), 10)
    weights = {name: array for name, array in (network.initial_weights(0) | change).items() if array is not None}
    with pytest.raises(UserError, match=f"^FILE: {message}"):
        network.check(weights, "FILE")
