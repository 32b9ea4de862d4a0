"""Residual networks (He et al., 2016, "Deep Residual Learning for Image Recognition"), with torchvision's names."""

from collections.abc import Callable

from common.spec.layers import BatchNorm, Block, Conv, Dense, GlobalAveragePool, Layer, MaxPool, Relu, Residual


def normalised(number: int, filters: int, size: int, stride: int = 1) -> tuple[Layer, Layer]:
    conv = Conv(f"conv{number}", filters, size, padding=size // 2, stride=stride, use_bias=False, relu=False)
    return conv, BatchNorm(f"bn{number}")


def residual(name: str, body: tuple[Layer, ...], filters: int, stride: int, projected: bool) -> Residual:
    """`projected`: the shortcut is a convolution too, since the shapes differ."""
    conv = Conv("0", filters, 1, stride=stride, use_bias=False, relu=False)
    return Residual(name, body, (Block("downsample", (conv, BatchNorm("1"))),) if projected else ())


def basic(name: str, filters: int, stride: int, projected: bool) -> Residual:
    """Two convolutions 3 x 3; the first one has the stride."""
    body = (*normalised(1, filters, 3, stride), Relu(), *normalised(2, filters, 3))
    return residual(name, body, filters, stride, projected)


def bottleneck(name: str, filters: int, stride: int, projected: bool) -> Residual:
    """Three convolutions: 1 x 1, 3 x 3 with the stride, and 1 x 1 with four times the channels."""
    wide = normalised(3, 4 * filters, 1)
    body = (*normalised(1, filters, 1), Relu(), *normalised(2, filters, 3, stride), Relu(), *wide)
    return residual(name, body, 4 * filters, stride, projected)


def stage(
    number: int, make: Callable[..., Residual], blocks: int, filters: int, stride: int, projected: bool = True
) -> Block:
    """Blocks of one kind. The first one changes size and channels; `projected`: its shortcut is a convolution."""
    first = make("0", filters, stride, projected)
    return Block(f"layer{number}", (first, *(make(str(index), filters, 1, False) for index in range(1, blocks))))


NETWORKS: dict[str, tuple[Layer, ...]] = {
    # The paper's first three networks for CIFAR-10 have 3, 5 and 7 blocks a stage; this one has one.
    "resnet8": (
        *normalised(1, 16, 3),
        Relu(),
        stage(1, basic, 1, 16, stride=1, projected=False),
        stage(2, basic, 1, 32, stride=2),
        stage(3, basic, 1, 64, stride=2),
        GlobalAveragePool("avgpool"),
        Dense("fc"),
    ),
    # Its stem is that of the paper's networks for CIFAR-10: a convolution 3 x 3 and no pooling.
    "resnet18": (
        *normalised(1, 64, 3),
        Relu(),
        stage(1, basic, 2, 64, stride=1, projected=False),
        stage(2, basic, 2, 128, stride=2),
        stage(3, basic, 2, 256, stride=2),
        stage(4, basic, 2, 512, stride=2),
        GlobalAveragePool("avgpool"),
        Dense("fc"),
    ),
    "resnet50": (
        *normalised(1, 64, 7, stride=2),
        Relu(),
        MaxPool("maxpool", size=3, stride=2, padding=1),
        stage(1, bottleneck, 3, 64, stride=1),
        stage(2, bottleneck, 4, 128, stride=2),
        stage(3, bottleneck, 6, 256, stride=2),
        stage(4, bottleneck, 3, 512, stride=2),
        GlobalAveragePool("avgpool"),
        Dense("fc"),
    ),
}
