"""The networks in PyTorch. Its layouts: NCHW images, OIHW kernels, (out, in) dense."""

from collections import OrderedDict

from torch import nn

from common.spec.networks import NetworkSpec
from common.spec.options import Precision
from pt_impl.precision import DTYPES


def make_network(spec: NetworkSpec, precision: Precision) -> nn.Module:
    """The network of `spec`: normalised images (N, C, H, W) to logits (N, classes), in that precision."""
    make = {
        "cnn": make_cnn,
        "lenet": make_lenet,
        "resnet8": make_resnet8,
        "resnet18": make_resnet18,
        "resnet50": make_resnet50,
    }
    return make[spec.name](spec).to(DTYPES[precision])


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


# --- Residual networks: torchvision's. It is imported where it is needed, since that takes as long as torch itself ---


def make_resnet8(spec: NetworkSpec) -> nn.Sequential:
    from torchvision.models.resnet import BasicBlock

    def projection(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(spec.image_shape[2], 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu=nn.ReLU(inplace=True),
            layer1=nn.Sequential(BasicBlock(16, 16)),
            layer2=nn.Sequential(BasicBlock(16, 32, stride=2, downsample=projection(16, 32))),
            layer3=nn.Sequential(BasicBlock(32, 64, stride=2, downsample=projection(32, 64))),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(64, spec.num_classes),
        )
    )


def make_resnet18(spec: NetworkSpec) -> nn.Module:
    from torchvision.models import resnet18

    network = resnet18(num_classes=spec.num_classes)
    # As usual for images of 32 x 32, which its own stem would make 8 x 8.
    network.conv1 = nn.Conv2d(spec.image_shape[2], 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def make_resnet50(spec: NetworkSpec) -> nn.Module:
    from torchvision.models import resnet50

    network = resnet50(num_classes=spec.num_classes)
    if spec.image_shape[2] != 3:
        network.conv1 = nn.Conv2d(spec.image_shape[2], 64, 7, stride=2, padding=3, bias=False)
    return network
