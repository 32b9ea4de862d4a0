"""The networks in PyTorch. Its layouts: NCHW images, OIHW kernels, (out, in) dense."""

from collections import OrderedDict

from torch import nn

from common.spec.networks import NetworkSpec
from common.spec.options import Precision
from pt_impl.precision import DTYPES


def make_network(spec: NetworkSpec, precision: Precision) -> nn.Sequential:
    """The network of `spec`: normalised images (N, C, H, W) to logits (N, classes), in that precision."""
    return {"cnn": make_cnn, "lenet": make_lenet}[spec.name](spec).to(DTYPES[precision])


def make_cnn(spec: NetworkSpec) -> nn.Sequential:
    height, width, channels = spec.image_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3, padding="same"),
            conv1_relu=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 3, padding="same"),
            conv2_relu=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(64 * (height // 4) * (width // 4), 128),
            dense1_relu=nn.ReLU(),
            dense2=nn.Linear(128, spec.num_classes),
        )
    )


def make_lenet(spec: NetworkSpec) -> nn.Sequential:
    height, width, channels = (((size - 4) // 2 - 4) // 2 for size in spec.image_shape)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(spec.image_shape[2], 20, 5, padding="valid"),
            conv1_relu=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5, padding="valid"),
            conv2_relu=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(50 * height * width, 500),
            dense1_relu=nn.ReLU(),
            dense2=nn.Linear(500, spec.num_classes),
        )
    )
