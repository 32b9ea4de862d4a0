"""The networks in PyTorch, whose layouts are NCHW images, OIHW kernels, (out, in) dense."""

import math
from collections import OrderedDict

import torch
from torch import nn

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from common.spec.randomness import FIRST_DROPOUT, RESOLUTION, dropout_threshold
from pt_impl.precision import DTYPES
from pt_impl.randomness import philox
from pt_impl.replicas import SumOverReplicas

Norm = type[nn.Module]


def make_network(spec: NetworkSpec, config: TrainConfig) -> nn.Module:
    """The network of `spec`, from its inputs, see `Batch`, to logits (N, classes), in the run's precision."""
    make = {
        "cnn": make_cnn,
        "lenet": make_lenet,
        "mnist_dropout": MnistDropout,
        "resnet8": make_resnet8,
        "resnet18": make_resnet18,
        "resnet50": make_resnet50,
    }
    return spec.maker(make)(spec, config).to(DTYPES[config.precision])


def make_cnn(spec: NetworkSpec, config: TrainConfig) -> nn.Sequential:
    height, width, channels = spec.image_shape
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
            dense2=nn.Linear(128, spec.num_classes),
        )
    )


def make_lenet(spec: NetworkSpec, config: TrainConfig) -> nn.Sequential:
    height, width, channels = (((size - 4) // 2 - 4) // 2 for size in spec.image_shape)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(spec.image_shape[2], 20, 5, padding="valid"),
            conv1_relu=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5, padding="valid"),
            conv2_relu=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),  # channel, height, width
            dense1=nn.Linear(50 * height * width, 500),
            dense1_relu=nn.ReLU(),
            dense2=nn.Linear(500, spec.num_classes),
        )
    )


# --- Dropout ---


class Dropout(nn.Module):
    """Dropout with the random numbers of common/spec.

    Used instead of nn.Dropout, whose random numbers depend on the replica, the batch and all earlier draws.

    `stream`: 0 for a network's first dropout layer, 1 for its second.
    """

    def __init__(self, rate: float, seed: int, stream: int) -> None:
        super().__init__()
        self.threshold, self.seed, self.stream = dropout_threshold(rate), seed, FIRST_DROPOUT + stream
        self.scale = RESOLUTION / (RESOLUTION - self.threshold)

    def forward(self, x: torch.Tensor, visits: torch.Tensor | None) -> torch.Tensor:
        """x: (n, C, H, W) or (n, units); visits: int64 (n,), not used in evaluation."""
        if not self.training:
            return x
        shape = x.shape if x.ndim == 2 else x.permute(0, 2, 3, 1).shape
        kept = self.kept(visits, math.prod(shape[1:])).reshape(shape)
        return x * (kept if x.ndim == 2 else kept.permute(0, 3, 1, 2)) * self.scale

    def kept(self, visits: torch.Tensor, size: int) -> torch.Tensor:
        """bool (n, size), see `common.spec.randomness.kept`."""
        numbers = torch.arange(-(-size // 8), device=visits.device)
        words = philox(self.seed, visits[:, None], numbers, self.stream)
        halves = [half >= self.threshold for word in words for half in (word & (RESOLUTION - 1), word >> 16)]
        return torch.cat(halves, dim=1)[:, :size]


class MnistDropout(nn.Module):
    """The network of the usual course script. It takes images and their visits."""

    def __init__(self, spec: NetworkSpec, config: TrainConfig) -> None:
        super().__init__()
        height, width, channels = spec.image_shape
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv1_relu = nn.ReLU()
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.conv2_relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout1 = Dropout(0.25, config.seed, stream=0)
        self.flatten = nn.Flatten()  # channel, height, width
        self.dense1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dense1_relu = nn.ReLU()
        self.dropout2 = Dropout(0.5, config.seed, stream=1)
        self.dense2 = nn.Linear(128, spec.num_classes)

    def forward(self, inputs: tuple[torch.Tensor, torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """`inputs`: images and visits; in evaluation images are enough."""
        images, visits = inputs if isinstance(inputs, tuple | list) else (inputs, None)
        x = self.conv1_relu(self.conv1(images))
        x = self.pool(self.conv2_relu(self.conv2(x)))
        x = self.flatten(self.dropout1(x, visits))
        x = self.dense1_relu(self.dense1(x))
        return self.dense2(self.dropout2(x, visits))


# --- Residual networks: torchvision's. It is imported where it is needed, since that takes as long as torch itself ---


class SyncBatchNorm(nn.BatchNorm2d):
    """Batch normalisation over the batch of all replicas, for the CPU, which torch's SyncBatchNorm refuses."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(images)
        images, dtype = images.to(self.weight.dtype), images.dtype  # in half precision sums would overflow
        count = SumOverReplicas.apply(images.new_full((), images[:, 0].numel()))
        mean = SumOverReplicas.apply(images.sum((0, 2, 3))) / count
        centred = images - mean[:, None, None]
        variance = SumOverReplicas.apply(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        factor = self.weight / torch.sqrt(variance + self.eps)
        return (centred * factor[:, None, None] + self.bias[:, None, None]).to(dtype)


def norm_layer(config: TrainConfig) -> Norm:
    """The kind of batch normalisation."""
    if not config.sync_batchnorm or config.num_shards == 1:
        return nn.BatchNorm2d
    return nn.SyncBatchNorm if config.accelerator == "gpu" else SyncBatchNorm


def make_resnet8(spec: NetworkSpec, config: TrainConfig) -> nn.Sequential:
    from torchvision.models.resnet import BasicBlock

    norm = norm_layer(config)

    def projection(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=2, bias=False), norm(outputs))

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(spec.image_shape[2], 16, 3, padding=1, bias=False),
            bn1=norm(16),
            relu=nn.ReLU(inplace=True),
            layer1=nn.Sequential(BasicBlock(16, 16, norm_layer=norm)),
            layer2=nn.Sequential(BasicBlock(16, 32, stride=2, downsample=projection(16, 32), norm_layer=norm)),
            layer3=nn.Sequential(BasicBlock(32, 64, stride=2, downsample=projection(32, 64), norm_layer=norm)),
            avgpool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(64, spec.num_classes),
        )
    )


def make_resnet18(spec: NetworkSpec, config: TrainConfig) -> nn.Module:
    from torchvision.models import resnet18

    network = resnet18(num_classes=spec.num_classes, norm_layer=norm_layer(config))
    # As usual for images of 32 x 32: torchvision's first layers would reduce them to 8 x 8.
    network.conv1 = nn.Conv2d(spec.image_shape[2], 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def make_resnet50(spec: NetworkSpec, config: TrainConfig) -> nn.Module:
    from torchvision.models import resnet50

    network = resnet50(num_classes=spec.num_classes, norm_layer=norm_layer(config))
    if spec.image_shape[2] != 3:
        network.conv1 = nn.Conv2d(spec.image_shape[2], 64, 7, stride=2, padding=3, bias=False)
    return network
