"""Networks with branches: the ResNets match torchvision's and He et al. (2016)."""

import json
import sys

import pytest
from conftest import run

from common.spec.layers import Trace
from common.spec.networks import LAYERS, SMALLEST_IMAGE

TORCHVISIONS = """
import json, torchvision
state = torchvision.models.resnet18().state_dict()
print(json.dumps({name: list(array.shape) for name, array in state.items() if "num_batches" not in name}))
"""
KINDS = {"kernel": "weight", "bias": "bias", "scale": "weight", "offset": "bias"}
KINDS |= {"mean": "running_mean", "variance": "running_var"}


def native_shapes(parameters):
    """PyTorch's name of each parameter -> its shape in PyTorch."""
    shapes = {}
    for parameter in parameters:
        layer, _, kind = parameter.name.rpartition(".")
        shape = list(parameter.shape)
        shapes[f"{layer}.{KINDS[kind]}"] = [shape[3], shape[2], *shape[:2]] if len(shape) == 4 else shape[::-1]
    return shapes


@pytest.mark.slow
def test_resnet18_is_torchvisions_but_for_its_stem():
    theirs, trace = json.loads(run(sys.executable, "-c", TORCHVISIONS).stdout), Trace(num_classes=1000)
    assert trace.follow(LAYERS["resnet18"], (32, 32, 3)) == (1000,)
    assert native_shapes(trace.parameters) == theirs | {"conv1.weight": [64, 3, 3, 3]}
    # He et al. train it on images of 224 x 224: the last feature maps are 7 x 7. Here they are 4 x 4.
    assert trace.activations["layer4.1"] == (4, 4, 512) and trace.activations["layer1.0"] == (32, 32, 64)


def test_resnet8_has_three_stages_of_one_block():
    trace = Trace(num_classes=10)
    trace.follow(LAYERS["resnet8"], (32, 32, 3))
    stages = [trace.activations[f"layer{number}.0"] for number in (1, 2, 3)]
    assert stages == [(32, 32, 16), (16, 16, 32), (8, 8, 64)]
    assert sum(".conv" in name for name in trace.activations) == 6


@pytest.mark.parametrize("model", LAYERS)
def test_the_smallest_image_leaves_something_to_average_over(model):
    """Batch normalisation needs more than one value per channel, even with a single image."""
    size = SMALLEST_IMAGE[model]
    trace = Trace(num_classes=10)
    trace.follow(LAYERS[model], (size, size, 1))
    spatial = [shape[0] * shape[1] for shape in trace.activations.values() if len(shape) == 3]
    assert min(spatial) >= (4 if model.startswith("resnet") else 1)
