"""A small residual network; the reference of this folder."""

import torch
import torch.nn.functional as F
from torch import nn


class Network(nn.Module):
    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.dense1 = nn.Linear(32, 64)
        self.dense2 = nn.Linear(64, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(images)))
        x = F.relu(self.conv2(x))
        x = F.relu(x + self.conv3(x))
        x = self.dropout(x.mean((2, 3)))
        return self.dense2(F.gelu(self.dense1(x)))


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """`image_shape`: height, width, channels. The network takes images (n, channels, height, width) to logits."""
    return Network(image_shape[2], num_classes)
