"""What the frameworks themselves say of the specification."""

import sys

import pytest
from conftest import run

COUNT = """
import torch
from torch.utils.flop_counter import FlopCounterMode
from common.spec.networks import NetworkSpec
from pt_impl.networks import make_network
for model, shape in (("cnn", (9, 12, 3)), ("lenet", (28, 28, 1))):
    spec = NetworkSpec.make(model, shape, 10)
    network = make_network(spec, "32")
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, shape[2], *shape[:2]))
    assert counter.get_total_flops() == spec.flops_per_image, (model, counter.get_total_flops(), spec.flops_per_image)
    assert sum(parameter.numel() for parameter in network.parameters()) == spec.num_parameters
"""

ROUND_TRIP = {
    "pt": """
import numpy as np
from common.spec.networks import NetworkSpec
from pt_impl.networks import make_network
from pt_impl.weights import get_weights, load_weights
for model in ("cnn", "lenet"):
    spec = NetworkSpec.make(model, (17, 22, 3), 7)
    weights = spec.initial_weights(1)
    network = make_network(spec, "64")
    load_weights(network, spec, weights)
    found = get_weights(network, spec)
    assert list(found) == list(weights) and all(np.array_equal(found[name], weights[name]) for name in weights)
""",
    "tf": """
import numpy as np
import tf_impl
from common.spec.networks import NetworkSpec
from tf_impl.networks import make_network
from tf_impl.weights import get_weights, load_weights
for model in ("cnn", "lenet"):
    spec = NetworkSpec.make(model, (17, 22, 3), 7)
    weights = spec.initial_weights(1)
    network = make_network(spec, "64")
    load_weights(network, weights)
    found = get_weights(network)
    assert list(found) == list(weights) and all(np.array_equal(found[name], weights[name]) for name in weights)
    assert network.count_params() == spec.num_parameters
""",
}


def test_torch_counts_the_same_operations_and_parameters():
    run(sys.executable, "-c", COUNT)


@pytest.mark.parametrize("implementation", ROUND_TRIP)
def test_canonical_weights_survive_a_framework_unchanged(implementation):
    run(sys.executable, "-c", ROUND_TRIP[implementation])
