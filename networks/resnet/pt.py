"""Residual networks in PyTorch, from torchvision."""

from collections import OrderedDict

from torch import nn
from torchvision.models import resnet18, resnet50
from torchvision.models.resnet import BasicBlock


def make_network(image_shape: tuple[int, int, int], num_classes: int, size: int = 8) -> nn.Module:
    """`size`: 8, 18 or 50 layers with weights."""
    make = {8: make_resnet8, 18: make_resnet18, 50: make_resnet50}[size]
    return make(image_shape[2], num_classes)


def make_resnet8(channels: int, num_classes: int) -> nn.Module:
    def projection(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), nn.BatchNorm2d(outputs))

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu=nn.ReLU(inplace=True),
            layer1=nn.Sequential(BasicBlock(16, 16)),
            layer2=nn.Sequential(BasicBlock(16, 32, stride=2, downsample=projection(16, 32))),
            layer3=nn.Sequential(BasicBlock(32, 64, stride=2, downsample=projection(32, 64))),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(64, num_classes),
        )
    )


def make_resnet18(channels: int, num_classes: int) -> nn.Module:
    network = resnet18(num_classes=num_classes)
    # As usual for images of 32 x 32: torchvision's first layers would reduce them to 8 x 8.
    network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def make_resnet50(channels: int, num_classes: int) -> nn.Module:
    network = resnet50(num_classes=num_classes)
    if channels != 3:
        network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return network
