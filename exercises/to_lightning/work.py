"""From PyTorch to Lightning: the same training, with the loop handed over to the Trainer.

python to_lightning.py               one device
python to_lightning.py --devices 2   two
"""

import argparse

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group is created; see exercises/PT_CNN_MultiGPU.py
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from exercises.data import load_examples

EPOCHS, BATCH_SIZE, LEARNING_RATE, SEED = 5, 64, 0.05, 0
Batch = tuple[torch.Tensor, torch.Tensor]
Loader = DataLoader[tuple[torch.Tensor, ...]]


class Classifier(pl.LightningModule):
    def __init__(self, network: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.network = network
        # Gap 1: set self.accuracy to a metric of torchmetrics: right answers over all examples (see its `average`).
        ### BEGIN SOLUTION
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")
        ### END SOLUTION

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        # Instead of zero_grad(), backward(), step(): what does the Trainer need for them?
        # Gap 2: return it; the loss is the mean cross-entropy.
        ### BEGIN SOLUTION
        images, labels = batch
        return F.cross_entropy(self.network(images), labels)
        ### END SOLUTION

    def validation_step(self, batch: Batch, index: int) -> None:
        # Instead of eval(), inference_mode(), counting, and all_reduce.
        # Gap 3: update the metric, and log it as "test_accuracy".
        ### BEGIN SOLUTION
        images, labels = batch
        self.accuracy(self.network(images), labels)
        self.log("test_accuracy", self.accuracy)
        ### END SOLUTION

    def configure_optimizers(self):
        """SGD with momentum 0.9, and a cosine schedule from LEARNING_RATE in the first step to 0 after the last one."""
        optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        # Gap 4: return optimizer and schedule. How often does the Trainer step a schedule unless told otherwise?
        ### BEGIN SOLUTION
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]
        ### END SOLUTION


class Data(pl.LightningDataModule):
    """The examples for each process that the Trainer has started. `batch_size`: of all processes together."""

    def __init__(self, training: TensorDataset, testing: TensorDataset, batch_size: int) -> None:
        super().__init__()
        self.training, self.testing, self.batch_size = training, testing, batch_size

    def train_dataloader(self) -> Loader:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        # Gap 5: shuffled with SEED, as in the activity ddp. No example is left out; one may be dealt out twice.
        # A process's part of batch_size is rounded down. The Trainer calls set_epoch.
        ### BEGIN SOLUTION
        sampler = DistributedSampler(self.training, world_size, rank, shuffle=True, seed=SEED)
        return DataLoader(self.training, self.batch_size // world_size, sampler=sampler)
        ### END SOLUTION

    def val_dataloader(self) -> Loader:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        # Gap 6: this process's share of the test examples, in batches of any size. Each example is seen exactly once.
        ### BEGIN SOLUTION
        return DataLoader(Subset(self.testing, range(rank, len(self.testing), world_size)), self.batch_size)
        ### END SOLUTION


def make_trainer(epochs: int, devices: int) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=epochs,
        devices=devices,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        strategy="ddp" if devices > 1 else "auto",
        use_distributed_sampler=False,  # Data gives each process its share
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


class Report(pl.Callback):
    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            accuracy = trainer.callback_metrics["test_accuracy"].item()
            print(f"epoch {trainer.current_epoch + 1}: {trainer.world_size} device(s), test accuracy {accuracy:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    devices = parser.parse_args().devices
    data = load_examples()
    training = TensorDataset(torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels))
    testing = TensorDataset(torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels))
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = make_trainer(EPOCHS, devices)
    trainer.callbacks.append(Report())
    trainer.fit(Classifier(network, data.num_classes), Data(training, testing, BATCH_SIZE))
    if dist.is_initialized():  # otherwise Lightning keeps the group until Python ends
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
