"""Trees of layers: the specification can describe networks with branches, and its ResNets match torchvision's."""

import json
import sys

import pytest
from conftest import run

from common.spec.layers import Conv, Dense, Dropout, Flatten, Trace, layer_names
from common.spec.networks import LAYERS, SMALLEST_IMAGE

TORCHVISIONS = """
import json, torch, torchvision
from torch.utils.flop_counter import FlopCounterMode
network = torchvision.models.{}().eval()
with FlopCounterMode(display=False) as counter, torch.inference_mode():
    network(torch.zeros(1, 3, 224, 224))
shapes = {{name: list(array.shape) for name, array in network.state_dict().items()}}
print(json.dumps({{"flops": counter.get_total_flops(), "shapes": shapes}}))
"""
KINDS = {"kernel": "weight", "bias": "bias", "scale": "weight", "offset": "bias"}
KINDS |= {"mean": "running_mean", "variance": "running_var"}


def torchvisions(name):
    return json.loads(run(sys.executable, "-c", TORCHVISIONS.format(name)).stdout)


def native_shapes(parameters):
    """PyTorch's name of each parameter -> its shape in PyTorch."""
    shapes = {}
    for parameter in parameters:
        layer, _, kind = parameter.name.rpartition(".")
        shape = list(parameter.shape)
        shapes[f"{layer}.{KINDS[kind]}"] = [shape[3], shape[2], *shape[:2]] if len(shape) == 4 else shape[::-1]
    return shapes


@pytest.mark.slow
def test_resnet50_is_torchvisions_layer_for_layer():
    theirs, trace = torchvisions("resnet50"), Trace(num_classes=1000)
    assert trace.follow(LAYERS["resnet50"], (224, 224, 3)) == (1000,)
    assert trace.flops == theirs["flops"]
    expected = {name: shape for name, shape in theirs["shapes"].items() if not name.endswith("num_batches_tracked")}
    assert native_shapes(trace.parameters) == expected
    assert sum(parameter.size for parameter in trace.parameters if parameter.trainable) == 25_557_032


@pytest.mark.slow
def test_resnet18_is_torchvisions_but_for_its_stem():
    theirs, trace = torchvisions("resnet18"), Trace(num_classes=1000)
    assert trace.follow(LAYERS["resnet18"], (32, 32, 3)) == (1000,)
    expected = {name: shape for name, shape in theirs["shapes"].items() if not name.endswith("num_batches_tracked")}
    assert native_shapes(trace.parameters) == expected | {"conv1.weight": [64, 3, 3, 3]}
    # He et al. (2016) train it on images of 224 x 224: the last feature maps are 7 x 7. Here they are 4 x 4.
    assert trace.activations["layer4.1"] == (4, 4, 512) and trace.activations["layer1.0"] == (32, 32, 64)


def test_resnet8_has_three_stages_of_one_block():
    trace = Trace(num_classes=10)
    trace.follow(LAYERS["resnet8"], (32, 32, 3))
    stages = [trace.activations[f"layer{number}.0"] for number in (1, 2, 3)]
    assert stages == [(32, 32, 16), (16, 16, 32), (8, 8, 64)]
    assert sum(isinstance(name, str) and ".conv" in name for name in trace.activations) == 6


@pytest.mark.parametrize("model", LAYERS)
def test_every_layer_has_an_output_and_a_place_in_the_order(model):
    trace = Trace(num_classes=10)
    trace.follow(LAYERS[model], (64, 64, 3))
    order = list(layer_names(LAYERS[model]))
    assert order == list(trace.activations) and len(set(order)) == len(order)
    if model.startswith("resnet"):
        assert order.index("layer2.0.bn2") < order.index("layer2.0.downsample.1") < order.index("layer2.0")
        assert "layer2" not in order


@pytest.mark.parametrize("model", LAYERS)
def test_the_smallest_image_leaves_something_to_average_over(model):
    """Batch normalisation needs more than one value per channel, even with a single image."""
    size = SMALLEST_IMAGE[model]
    trace = Trace(num_classes=10)
    trace.follow(LAYERS[model], (size, size, 1))
    spatial = [shape[0] * shape[1] for name, shape in trace.activations.items() if len(shape) == 3]
    assert min(spatial) >= (4 if model.startswith("resnet") else 1)


def test_what_is_flattened_is_known_until_the_next_dense_layer():
    trace = Trace(num_classes=3)
    layers = (Conv("conv", 4, 2), Flatten("flatten"), Dropout("drop", 0.5), Dense("dense1", 7), Dense("dense2"))
    assert trace.follow(layers, (5, 6, 1)) == (3,)
    assert trace.flattened == {"flatten": (4, 5, 4), "drop": (4, 5, 4)}
    flattened = {parameter.name: parameter.flattened for parameter in trace.parameters if parameter.flattened}
    assert flattened == {"dense1.kernel": (4, 5, 4)}
