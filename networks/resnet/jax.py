"""Residual networks in Flax NNX, with torchvision's names."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx


def conv(inputs: int, outputs: int, size: int, stride: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(inputs, outputs, (size, size), strides=stride, padding=size // 2, use_bias=False, rngs=rngs)


def norm(channels: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(channels, momentum=0.9, epsilon=1e-5, rngs=rngs)  # PyTorch's defaults


def projection(inputs: int, outputs: int, stride: int, rngs: nnx.Rngs) -> nnx.Module | None:
    """What the shortcut is where the shapes differ."""
    if stride == 1 and inputs == outputs:
        return None
    return nnx.Sequential(conv(inputs, outputs, 1, stride, rngs), norm(outputs, rngs))


class BasicBlock(nnx.Module):
    widening = 1

    def __init__(self, inputs: int, filters: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv1 = conv(inputs, filters, 3, stride, rngs)
        self.bn1 = norm(filters, rngs)
        self.conv2 = conv(filters, filters, 3, 1, rngs)
        self.bn2 = norm(filters, rngs)
        self.downsample = projection(inputs, filters, stride, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        shortcut = self.downsample(x) if self.downsample else x
        x = nnx.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        return nnx.relu(x + shortcut)


class BottleneckBlock(nnx.Module):
    widening = 4

    def __init__(self, inputs: int, filters: int, stride: int, rngs: nnx.Rngs) -> None:
        self.conv1 = conv(inputs, filters, 1, 1, rngs)
        self.bn1 = norm(filters, rngs)
        self.conv2 = conv(filters, filters, 3, stride, rngs)
        self.bn2 = norm(filters, rngs)
        self.conv3 = conv(filters, 4 * filters, 1, 1, rngs)
        self.bn3 = norm(4 * filters, rngs)
        self.downsample = projection(inputs, 4 * filters, stride, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        shortcut = self.downsample(x) if self.downsample else x
        x = nnx.relu(self.bn1(self.conv1(x)))
        x = nnx.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        return nnx.relu(x + shortcut)


class ResNet(nnx.Module):
    def __init__(
        self,
        channels: int,
        num_classes: int,
        block: type[BasicBlock] | type[BottleneckBlock],
        stages: list[tuple[int, int, int]],
        rngs: nnx.Rngs,
    ) -> None:
        """`stages`: number of blocks, filters and stride of each."""
        large = block is BottleneckBlock  # a stem for large images
        filters = stages[0][1]
        self.conv1 = conv(channels, filters, 7 if large else 3, 2 if large else 1, rngs)
        self.bn1 = norm(filters, rngs)
        self.maxpool = None
        if large:
            self.maxpool = partial(nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        inputs, self.stages = filters, tuple(f"layer{number}" for number in range(1, len(stages) + 1))
        for name, (blocks, filters, stride) in zip(self.stages, stages, strict=True):
            layers = [block(inputs, filters, stride, rngs)]
            inputs = block.widening * filters
            layers += [block(inputs, filters, 1, rngs) for _ in range(1, blocks)]
            setattr(self, name, nnx.Sequential(*layers))
        self.avgpool = partial(jnp.mean, axis=(1, 2))
        self.fc = nnx.Linear(inputs, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.bn1(self.conv1(x)))
        if self.maxpool:
            x = self.maxpool(x)
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(self.avgpool(x))


STAGES = {
    8: [(1, 16, 1), (1, 32, 2), (1, 64, 2)],
    18: [(2, 64, 1), (2, 128, 2), (2, 256, 2), (2, 512, 2)],
    50: [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)],
}


def make_network(image_shape: tuple[int, int, int], num_classes: int, size: int = 8) -> nnx.Module:
    """`size`: 8, 18 or 50 layers with weights."""
    block = BottleneckBlock if size == 50 else BasicBlock
    return ResNet(image_shape[2], num_classes, block, STAGES[size], nnx.Rngs(0))
