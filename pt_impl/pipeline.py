"""`--strategy pipeline` in PyTorch: a network in two stages, one process for each (torch.distributed.pipelining)."""

import functools
from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.data import Batch
from pt_impl.networks import Dropout
from pt_impl.train import eval_step


class LayersOfStage(nn.Sequential):
    """Layers one after the other; dropout layers get the visits of their images."""

    def forward(self, x: torch.Tensor, visits: torch.Tensor | None = None) -> torch.Tensor:
        for layer in self:
            if isinstance(layer, Dropout):
                layer.visits = visits
            x = layer(x)
        return x


def take_stage(network: nn.Module, spec: NetworkSpec, rank: int) -> LayersOfStage:
    """The layers of this rank's stage, with their names in the network."""
    layers = dict(network.named_children())
    if "flatten" not in layers:  # torchvision's networks have no layer for it
        layers |= {"flatten": nn.Flatten(), "fc": layers.pop("fc")}
    names = list(layers)
    last, _, block = spec.end_of_first_stage.partition(".")
    assert not block or int(block) == len(layers[last]) - 1, "a cut inside of a layer"
    cut = names.index(last) + 1
    return LayersOfStage(OrderedDict((name, layers[name]) for name in (names[:cut], names[cut:])[rank]))


class Pipeline(nn.Module):
    """Passes batches through both stages; every rank calls it with the same batches.

    The first rank uses their images, the last rank their labels, and both ranks their visits.
    """

    def __init__(self, stage: LayersOfStage, rank: int, config: TrainConfig, autocast: torch.autocast) -> None:
        super().__init__()
        self.stage, self.rank, self.config, self.autocast = stage, rank, config, autocast
        self.device = next(stage.parameters()).device
        # Between a CPU and a GPU, tensors are sent through the host.
        self.sends_from = self.device if len(set(config.stages_on)) == 1 else torch.device("cpu")
        self.schedule = functools.cache(self.make_schedule)

    def forward(self, x: torch.Tensor, visits: torch.Tensor | None = None) -> torch.Tensor:
        """This rank's stage, with the transfers to and from its device."""
        with self.autocast:
            x = self.stage(x.to(self.device), visits)
        return x if self.rank == 1 else x.to(self.sends_from).contiguous()

    def make_schedule(self, number: int, training: bool) -> ScheduleGPipe:
        """The schedule for batches of `number` examples. A schedule sends tensors of one shape only."""
        stage = PipelineStage(self, self.rank, 2, self.sends_from)
        parts = self.config.microbatches if number % self.config.microbatches == 0 else 1
        # The sum over the parts, instead of their mean.
        return ScheduleGPipe(stage, parts, loss_fn=self.loss if training else None, scale_grads=False)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self.autocast:
            smoothing = self.config.label_smoothing
            return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) / self.count

    def pass_on(self, batch: Batch, training: bool, **options: Any) -> torch.Tensor | None:
        """The logits in the last rank; None in the first."""
        inputs, visits = batch.inputs, {}
        if isinstance(inputs, tuple | list):
            inputs, visits = inputs[0], {"visits": inputs[1]}
        images = (inputs,) if self.rank == 0 else ()
        return self.schedule(len(batch.labels), training).step(*images, **visits, **options)

    def forward_backward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds to this stage's gradients; returns the loss and number of correct answers; zeros in the first rank."""
        self.count, losses = batch.count, []
        if self.rank == 0:
            self.pass_on(batch, training=True)
            return (zero := torch.zeros((), device=self.device)), zero
        logits = self.pass_on(batch, training=True, target=batch.labels, losses=losses)
        return torch.stack(losses).sum().detach(), (logits.detach().argmax(dim=1) == batch.labels).sum()

    def eval_step(self, batch: Batch) -> torch.Tensor:
        """float64 (3,): sum of losses, number of correct answers, number of examples; zeros in the first rank."""
        logits = self.pass_on(batch, training=False)
        if logits is None:
            return torch.zeros(3, dtype=torch.float64, device=self.device)
        return eval_step(lambda inputs: logits, nn.CrossEntropyLoss(reduction="none"), self.autocast, batch)
