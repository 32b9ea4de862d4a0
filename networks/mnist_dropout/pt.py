"""The network of the usual course script in PyTorch."""

from collections import OrderedDict

from torch import nn


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    height, width, channels = image_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3),
            conv1_relu=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            conv2_relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            dropout1=nn.Dropout(0.25),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            dense1_relu=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            dense2=nn.Linear(128, num_classes),
        )
    )
