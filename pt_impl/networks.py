"""The networks in PyTorch, whose layouts are NCHW images, OIHW kernels, (out, in) dense.

A network is made by `pt.py` of its folder in networks/. For the lockstep some of its layers are replaced here.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.nn.functional import all_reduce

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from common.spec.randomness import FIRST_DROPOUT, RATE_RESOLUTION, dropout_threshold
from pt_impl.precision import DTYPES
from pt_impl.randomness import philox

Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of logits (n, classes) and labels (n,)
DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout


def make_network(spec: NetworkSpec, config: TrainConfig) -> nn.Module:
    """The network of `spec`, from its inputs, see `Batch`, to logits (N, classes), in the run's precision."""
    if spec.is_own:
        torch.manual_seed(config.seed)  # for its own dropout
    network: nn.Module = spec.make_in("pt")
    if spec.is_own and config.verify_steps is not None:  # a proof
        drop_nothing(network)
    if spec.drops:
        replace_dropout(network, config.seed)
    if config.sync_batchnorm and config.num_shards > 1:
        network = synchronize(network, config)
    return network.to(DTYPES[config.precision])


def make_criterion(spec: NetworkSpec, reduction: str, smoothing: float = 0.0) -> Criterion:
    """The cross-entropy, or the loss of a user's network: of each example (`none`), or their `sum` or `mean`."""
    own: Criterion | None = spec.loss_in("pt")
    if own is None:
        return nn.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)
    return own if reduction == "none" else lambda logits, labels: getattr(own(logits, labels), reduction)()


# --- Dropout ---


def replace_dropout(network: nn.Module, seed: int) -> None:
    """Replaces the layers of dropout by ones that draw the random numbers of common/spec."""
    dropouts = [name for name, layer in network.named_modules() if isinstance(layer, nn.Dropout)]
    for stream, name in enumerate(dropouts):
        network.set_submodule(name, Dropout(network.get_submodule(name).p, seed, stream))
    network.register_forward_pre_hook(give_visits)


def drop_nothing(network: nn.Module) -> None:
    """Switches dropout off: in a network of the user's, each framework draws numbers of its own for it."""
    for layer in network.modules():
        if isinstance(layer, DROPOUTS):
            layer.p = 0.0
        elif isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0


def give_visits(network: nn.Module, args: tuple[Any, ...]) -> tuple[torch.Tensor] | None:
    """Of a network's inputs, images and visits, gives the visits to dropout and the images to the network.

    In evaluation images are enough.
    """
    if isinstance(args[0], torch.Tensor):
        return None
    images, visits = args[0]
    for layer in network.modules():
        if isinstance(layer, Dropout):
            layer.visits = visits
    return (images,)


class Dropout(nn.Module):
    """Dropout with the random numbers of common/spec.

    Used instead of nn.Dropout, whose random numbers depend on the replica, the batch and all earlier draws.

    `stream`: 0 for a network's first dropout layer, 1 for its second.
    `visits`: int64 (n,), of the images that come next; in evaluation they are not used.
    """

    visits: torch.Tensor | None = None

    def __init__(self, rate: float, seed: int, stream: int) -> None:
        super().__init__()
        self.threshold, self.seed, self.stream = dropout_threshold(rate), seed, FIRST_DROPOUT + stream
        self.scale = RATE_RESOLUTION / (RATE_RESOLUTION - self.threshold)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (n, C, H, W) or (n, units)."""
        if not self.training:
            return x
        shape = x.shape if x.ndim == 2 else x.permute(0, 2, 3, 1).shape
        kept = self.kept(self.visits, math.prod(shape[1:])).reshape(shape)
        return x * (kept if x.ndim == 2 else kept.permute(0, 3, 1, 2)) * self.scale

    def kept(self, visits: torch.Tensor, size: int) -> torch.Tensor:
        """bool (n, size), see `common.spec.randomness.kept_by_dropout`."""
        numbers = torch.arange(-(-size // 8), device=visits.device)
        words = philox(self.seed, visits[:, None], numbers, self.stream)
        halves = [half >= self.threshold for word in words for half in (word & (RATE_RESOLUTION - 1), word >> 16)]
        return torch.cat(halves, dim=1)[:, :size]


# --- Batch normalisation ---


def synchronize(network: nn.Module, config: TrainConfig) -> nn.Module:
    """The network with batch normalisation over the batch of all replicas."""
    if config.accelerator == "gpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)
    for name, layer in list(network.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            network.set_submodule(name, SyncBatchNorm(layer.num_features, layer.eps, layer.momentum))
    return network


class SyncBatchNorm(nn.BatchNorm2d):
    """Batch normalisation over the batch of all replicas, for the CPU, which torch's SyncBatchNorm refuses."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(images)
        images, dtype = images.to(self.weight.dtype), images.dtype  # in half precision sums would overflow
        count = all_reduce(images.new_full((), images[:, 0].numel()))
        mean = all_reduce(images.sum((0, 2, 3))) / count
        centred = images - mean[:, None, None]
        variance = all_reduce(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        factor = self.weight / torch.sqrt(variance + self.eps)
        return (centred * factor[:, None, None] + self.bias[:, None, None]).to(dtype)
