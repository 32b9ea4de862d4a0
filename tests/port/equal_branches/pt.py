"""Blocks with two branches that begin alike; only what follows tells them apart."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
        self.wide = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 5, padding=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.narrow(x), self.wide(x)], 1)


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    blocks = [Block(image_shape[2]), Block(6), Block(6)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, num_classes))
