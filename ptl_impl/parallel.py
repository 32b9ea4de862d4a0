"""How replicas work together in Lightning: what `--strategy` names."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import nn

from common.spec.options import TrainConfig
from pt_impl.parallel import shard


def make_strategy(config: TrainConfig) -> str | Strategy:
    """The Trainer's argument."""
    match config.strategy:
        case "single_device":
            return "auto"
        case "fsdp":
            # Instead of Lightning's "fsdp", torch's first one, which refuses the CPU: fully_shard, called below.
            return ModelParallelStrategy(data_parallel_size=config.devices, tensor_parallel_size=1)
        case "pipeline":
            # Lightning has none of its own: of this strategy only the processes are used.
            return ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=config.devices)
    return config.strategy


def parallelize(network: nn.Module, config: TrainConfig, device: torch.device) -> None:
    """For `configure_model`, which Lightning calls once the replicas have found each other, and maybe again."""
    if config.strategy == "fsdp" and not hasattr(network, "set_requires_gradient_sync"):
        shard(network, device)


class SumWithLastBatch(pl.Callback):
    """With --accumulate-grad-batches: replicas add their gradients up with the last batch, not with each.

    Lightning does so for DistributedDataParallel alone.
    """

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        last = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        module.network.set_requires_gradient_sync(last)
