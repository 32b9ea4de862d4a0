"""LeNet in PyTorch."""

from collections import OrderedDict

from torch import nn


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    height, width = (((size - 4) // 2 - 4) // 2 for size in image_shape[:2])
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(image_shape[2], 20, 5, padding="valid"),
            conv1_relu=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5, padding="valid"),
            conv2_relu=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(50 * height * width, 500),
            dense1_relu=nn.ReLU(),
            dense2=nn.Linear(500, num_classes),
        )
    )
