"""Trees of layers: the specification can say what networks to come need."""

import json
import sys

from conftest import run

from common.spec.layers import (
    BatchNorm,
    Block,
    Conv,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePool,
    MaxPool,
    Relu,
    Residual,
    Trace,
    layer_names,
)

TORCHVISIONS = """
import json, torch, torchvision
from torch.utils.flop_counter import FlopCounterMode
network = torchvision.models.resnet18().eval()
with FlopCounterMode(display=False) as counter, torch.inference_mode():
    network(torch.zeros(1, 3, 224, 224))
shapes = {name: list(parameter.shape) for name, parameter in network.named_parameters()}
statistics = sum(array.numel() for name, array in network.named_buffers() if "running" in name)
print(json.dumps({"flops": counter.get_total_flops(), "shapes": shapes, "statistics": statistics}))
"""


def convolution(number, filters, size=3, stride=1):
    """Without bias or ReLU, then normalised."""
    conv = Conv(f"conv{number}", filters, size, padding=size // 2, stride=stride, use_bias=False, relu=False)
    return conv, BatchNorm(f"norm{number}")


def basic_block(name, filters, stride, shortcut):
    body = (*convolution(1, filters, stride=stride), Relu("relu1"), *convolution(2, filters))
    return Residual(name, body, convolution(3, filters, size=1, stride=stride) if shortcut else ())


def resnet18():
    """He et al. (2016), "Deep Residual Learning for Image Recognition", as torchvision builds it."""
    stages = [
        Block(f"stage{n}", (basic_block("block1", filters, stride, n > 1), basic_block("block2", filters, 1, False)))
        for n, (filters, stride) in enumerate([(64, 1), (128, 2), (256, 2), (512, 2)], 1)
    ]
    stem = (*convolution(0, 64, size=7, stride=2), Relu("relu"), MaxPool("pool", size=3, stride=2, padding=1))
    return (*stem, *stages, GlobalAveragePool("average"), Dense("dense"))


def test_a_residual_network_has_torchvisions_parameters_and_operations():
    theirs = json.loads(run(sys.executable, "-c", TORCHVISIONS).stdout)
    trace = Trace(num_classes=1000)
    assert trace.follow(resnet18(), (224, 224, 3)) == (1000,)
    trained = [parameter for parameter in trace.parameters if parameter.trainable]
    assert len(trained) == len(theirs["shapes"]) and trace.flops == theirs["flops"]
    native = [
        (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]
        for shape in (parameter.shape for parameter in trained)
    ]
    assert sorted(native) == sorted(map(tuple, theirs["shapes"].values()))
    assert sum(one.size for one in trace.parameters if not one.trainable) == theirs["statistics"]
    names = [parameter.name for parameter in trace.parameters]
    assert "stage2.block1.conv1.kernel" in names and "stage4.block1.norm3.variance" in names
    assert len(set(names)) == len(names)


def test_every_layer_has_an_output_and_a_place_in_the_order():
    trace = Trace(num_classes=10)
    trace.follow(resnet18(), (32, 32, 3))
    order = list(layer_names(resnet18()))
    assert order == list(trace.activations)
    assert order.index("stage1.block1.norm2") < order.index("stage1.block1") < order.index("stage1")
    assert trace.activations["stage1.block1"] == (8, 8, 64) and trace.activations["stage4"] == (1, 1, 512)


def test_what_is_flattened_is_known_until_the_next_dense_layer():
    trace = Trace(num_classes=3)
    layers = (Conv("conv", 4, 2), Flatten("flatten"), Dropout("drop", 0.5), Dense("dense1", 7), Dense("dense2"))
    assert trace.follow(layers, (5, 6, 1)) == (3,)
    assert trace.flattened == {"flatten": (4, 5, 4), "drop": (4, 5, 4)}
    flattened = {parameter.name: parameter.flattened for parameter in trace.parameters if parameter.flattened}
    assert flattened == {"dense1.kernel": (4, 5, 4)}
