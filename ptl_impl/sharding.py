"""`--strategy fsdp` in Lightning: fully_shard, called in `configure_model`, as Lightning's documentation says."""

import torch

from pt_impl.data import Batch
from pt_impl.parallel import shard
from pt_impl.replicas import share_statistics
from ptl_impl.train import Classifier


class ShardedClassifier(Classifier):
    """The same steps for a network whose weights are sharded."""

    def configure_model(self) -> None:
        shard(self.network, self.trainer.strategy.root_device)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, torch.Tensor]:
        # With --accumulate-grad-batches, replicas add up their gradients with the last batch, not with each.
        # Lightning itself does so only for DistributedDataParallel.
        last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0 or self.trainer.is_last_batch
        self.network.set_requires_gradient_sync(last)
        return super().training_step(batch, batch_idx)

    def on_validation_epoch_start(self) -> None:
        super().on_validation_epoch_start()
        share_statistics(self.network)  # DistributedDataParallel does so itself, if validation uses it
