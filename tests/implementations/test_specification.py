"""The specification agrees with the frameworks: numbers of operations and parameters, and canonical weights."""

import sys

import pytest
from conftest import run

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

ROUND_TRIP = {
    "pt": """
import numpy as np
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.networks import make_network
from pt_impl.weights import get_weights, load_weights
for model in ("cnn", "lenet", "resnet8", "resnet50"):
    spec = NetworkSpec.make(model, (65, 70, 3), 7)
    weights = {name: array + 0.5 for name, array in spec.initial_weights(1).items()}
    network = make_network(spec, TrainConfig(precision="64"))
    load_weights(network, spec, weights)
    found = get_weights(network, spec)
    assert list(found) == list(weights) and all(np.array_equal(found[name], weights[name]) for name in weights)
""",
    "tf": """
import numpy as np
import tf_impl
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from tf_impl.networks import make_network
from tf_impl.weights import get_weights, load_weights
for model in ("cnn", "lenet", "resnet8", "resnet50"):
    spec = NetworkSpec.make(model, (65, 70, 3), 7)
    weights = {name: array + 0.5 for name, array in spec.initial_weights(1).items()}
    network = make_network(spec, TrainConfig(precision="64"))
    load_weights(network, weights)
    found = get_weights(network)
    assert found.keys() == weights.keys() and all(np.array_equal(found[name], weights[name]) for name in weights)
    assert network.count_params() == sum(parameter.size for parameter in spec.parameters)
""",
}


@pytest.mark.slow
def test_torch_counts_the_same_operations_and_parameters():
    run(sys.executable, "-c", COUNT)


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", ROUND_TRIP)
def test_canonical_weights_survive_a_framework_unchanged(implementation):
    run(sys.executable, "-c", ROUND_TRIP[implementation])
