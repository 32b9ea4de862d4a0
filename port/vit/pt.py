"""A small vision transformer, after Dosovitskiy et al. (2021), in PyTorch; its attention keeps packed kernels."""

import torch
import torch.nn.functional as F
from torch import nn

FEATURES, HEADS, BLOCKS = 32, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(FEATURES)
        self.attention = nn.MultiheadAttention(FEATURES, HEADS, batch_first=True)
        self.norm2 = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 2 * FEATURES)
        self.down = nn.Linear(2 * FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.leaky_relu(self.up(self.norm2(x)), 0.1))


class Network(nn.Module):
    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        height, width, channels = image_shape
        self.patches = nn.Conv2d(channels, FEATURES, 2, stride=2)
        self.positions = nn.Parameter(torch.zeros(1, (height // 2) * (width // 2), FEATURES))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return Network(image_shape, num_classes)
