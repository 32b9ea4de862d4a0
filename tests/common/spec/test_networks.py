import math

import numpy as np
import pytest

from common.platform.errors import UserError
from common.spec.networks import FOLDERS, NetworkSpec


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        ("lenet", (28, 28, 1), 431_080),  # Caffe's LeNet, which has the same layers: 520 + 25,050 + 400,500 + 5,010
        ("resnet18", (32, 32, 3), 11_173_962),  # torchvision's for ten classes, with a stem of 3 x 3
        ("resnet50", (64, 64, 3), 23_528_522),  # torchvision's for ten classes
    ],
)
def test_networks_have_the_size_of_the_usual_example(model, shape, parameters):
    assert NetworkSpec.make(model, shape, 10).num_parameters == parameters


# The smallest images, and the layer after which `--strategy pipeline` cuts.
SMALLEST = {"cnn": 4, "lenet": 16, "mnist_dropout": 6, "resnet8": 5, "resnet18": 9, "resnet50": 33}
CUTS = {"cnn": "pool2", "lenet": "pool2", "mnist_dropout": "dropout1"}
CUTS |= {"resnet8": "layer1.0", "resnet18": "layer2.1", "resnet50": "layer2.3"}


@pytest.mark.parametrize("model", FOLDERS)
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


def test_cnn_shapes_and_operations_by_hand():
    spec = NetworkSpec.make("cnn", (9, 7, 3), 5)
    assert [(parameter.name, *parameter.shape) for parameter in spec.parameters] == [
        ("conv1.kernel", 3, 3, 3, 32),
        ("conv1.bias", 32),
        ("conv2.kernel", 3, 3, 32, 64),
        ("conv2.bias", 64),
        ("dense1.kernel", 2 * 1 * 64, 128),
        ("dense1.bias", 128),
        ("dense2.kernel", 128, 5),
        ("dense2.bias", 5),
    ]
    assert spec.flops_per_image == 2 * (9 * 9 * 7 * 3 * 32 + 9 * 4 * 3 * 32 * 64 + 128 * 128 + 128 * 5)


def test_initial_weights_are_the_same_everywhere():
    weights = NetworkSpec.make("cnn", (8, 8, 1), 10).initial_weights(0)
    first = [0.1107901193227573, 0.01624249764684038, 0.08553842624341965]
    assert weights["conv1.kernel"].ravel()[:3].tolist() == first


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


def test_a_framework_without_the_network_says_so_in_a_line():
    with pytest.raises(UserError, match="^--model cnn: there is no networks/cnn/mx.py$"):
        NetworkSpec.make("cnn", (8, 8, 1), 10).make_in("mx")
