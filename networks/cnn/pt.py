"""The cnn in PyTorch."""

from collections import OrderedDict

from torch import nn


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    height, width, channels = image_shape
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
            dense2=nn.Linear(128, num_classes),
        )
    )
