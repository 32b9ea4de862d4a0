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


def resnet(
    stem: tuple[Layer, ...], make: Callable[..., Residual], stages: list[tuple[int, int, int]]
) -> tuple[Layer, ...]:
    """The layers from the stem to the classes.

    Args:
      make: `basic` or `bottleneck`.
      stages: number of blocks, filters and stride of each. The first block changes size and channels.
    """
    made = []
    for number, (blocks, filters, stride) in enumerate(stages, 1):
        first = make("0", filters, stride, projected=stride > 1 or make is bottleneck)
        others = (make(str(index), filters, 1, projected=False) for index in range(1, blocks))
        made.append(Block(f"layer{number}", (first, *others)))
    return (*stem, *made, GlobalAveragePool("avgpool"), Dense("fc"))


LARGE_STEM = (*normalised(1, 64, 7, stride=2), Relu(), MaxPool("maxpool", size=3, stride=2, padding=1))

NETWORKS: dict[str, tuple[Layer, ...]] = {
    # The paper's first three networks for CIFAR-10 have 3, 5 and 7 blocks a stage; this one has one.
    "resnet8": resnet((*normalised(1, 16, 3), Relu()), basic, [(1, 16, 1), (1, 32, 2), (1, 64, 2)]),
    # Its stem is that of the paper's networks for CIFAR-10: a convolution 3 x 3 and no pooling.
    "resnet18": resnet((*normalised(1, 64, 3), Relu()), basic, [(2, 64, 1), (2, 128, 2), (2, 256, 2), (2, 512, 2)]),
    "resnet50": resnet(LARGE_STEM, bottleneck, [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)]),
}
