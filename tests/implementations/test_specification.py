"""The specification agrees with PyTorch on the numbers of operations and parameters."""

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


@pytest.mark.slow
def test_torch_counts_the_same_operations_and_parameters():
    run(sys.executable, "-c", COUNT)
