"""A CNN on several devices in Lightning: the Trainer starts the processes and runs the epochs.

From the project's folder:
    python -m exercises.PTL_multiGPU                      one device
    python -m exercises.PTL_multiGPU --devices 2          two: GPUs, or processes on the CPU
    sbatch exercises/PTL_multiGPU.slurm                   a cluster

Compare it with PT_CNN_MultiGPU.py: which lines of that program are missing here, and what does their work instead?
"""

import argparse
import os
import time

import lightning.pytorch as pl
import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group is created, see PT_CNN_MultiGPU.py
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from common.platform.machine import num_cores
from exercises.data import NAMES, Examples, load_examples

parser = argparse.ArgumentParser(prog="PTL_multiGPU", description="A CNN on several devices in Lightning.")
parser.add_argument("--dataset", default="digits", choices=NAMES)
parser.add_argument("--data-dir", default="data", help="where data sets lie")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="of all devices together")
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--devices", type=int, default=1, help="on each node")
parser.add_argument("--nodes", type=int, default=1)

Loader = DataLoader[tuple[torch.Tensor, ...]]

# --- 1. Design the model: its layers, and what it does in a step ---


class Classifier(pl.LightningModule):
    def __init__(self, image_shape: tuple[int, ...], num_classes: int, learning_rate: float) -> None:
        super().__init__()
        height, width, channels = image_shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=3, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 128),
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
        self.learning_rate = learning_rate
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")  # sums over all processes, divided once

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.layers(images), labels)  # the Trainer does the rest of the step

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        images, labels = batch
        self.accuracy(self.layers(images), labels)
        self.log("test_accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


# --- 2. Set up the ranks: the Trainer does; see main ---

# --- 3. Read the data: the Trainer asks for it in every process ---


class Images(pl.LightningDataModule):
    def __init__(self, data: Examples, batch_size: int, seed: int) -> None:
        super().__init__()
        self.data, self.batch_size, self.seed = data, batch_size, seed

    def train_dataloader(self) -> Loader:
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        training = TensorDataset(channels_first(self.data.train_images), torch.from_numpy(self.data.train_labels))
        # The Trainer calls its set_epoch: every epoch has another order, which is the same in every process.
        sampler = DistributedSampler(training, world_size, rank, shuffle=True, seed=self.seed)
        return DataLoader(training, self.batch_size // world_size, sampler=sampler)

    def val_dataloader(self) -> Loader:
        # Every world_size-th example. A DistributedSampler would repeat some examples to make the shares equal.
        share = slice(self.trainer.global_rank, None, self.trainer.world_size)
        test_images, test_labels = self.data.test_images[share], self.data.test_labels[share]
        testing = TensorDataset(channels_first(test_images), torch.from_numpy(test_labels))
        return DataLoader(testing, batch_size=1000)


def channels_first(images) -> torch.Tensor:  # (N, H, W, C) to (N, C, H, W)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


# --- 4. and 5. Train and evaluate: the Trainer does. 6. Display the results: the Trainer calls these ---


class Report(pl.Callback):
    seconds = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.images_done, self.start = 0, clock(model.device)

    def on_train_batch_end(self, trainer: pl.Trainer, model: pl.LightningModule, outputs, batch, index: int) -> None:
        self.images_done += len(batch[1])
        if trainer.is_last_batch:
            self.epoch_seconds = clock(model.device) - self.start

    def on_validation_end(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        self.seconds += self.epoch_seconds
        self.accuracy = trainer.callback_metrics["test_accuracy"].item()
        self.speed = self.images_done * trainer.world_size / self.epoch_seconds
        if trainer.is_global_zero:
            epoch = trainer.current_epoch + 1
            print(f"epoch {epoch:2}: test accuracy {self.accuracy:.2%}, {self.speed:,.0f} images/s", flush=True)

    def on_fit_end(self, trainer: pl.Trainer, model: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            results = f"test accuracy {self.accuracy:.2%}, {self.speed:,.0f} images/s in the last epoch"
            print(f"{results}, {self.seconds:.1f} s of training")


def clock(device: torch.device) -> float:
    """Seconds, read after the device has finished all its work: a GPU works asynchronously to the program."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main() -> None:
    options = parser.parse_args()
    world_size = options.devices * options.nodes
    if options.batch_size % world_size:
        parser.error(f"--batch-size {options.batch_size}: must be a multiple of the {world_size} devices")
    gpu = torch.cuda.is_available()
    if not gpu and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, num_cores() // options.devices))  # an even share of the cores
    trainer = pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=options.devices,  # the Trainer starts this program again for each of them, unless Slurm has done so
        num_nodes=options.nodes,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=options.epochs,
        use_distributed_sampler=False,  # Images gives each process its share, and repeats nothing in evaluation
        callbacks=[Report()],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if trainer.is_global_zero:
        print(f"Lightning on {world_size} x {'cuda' if gpu else 'cpu'}, batches of {options.batch_size}", flush=True)
    data = load_examples(options.dataset, options.data_dir)
    pl.seed_everything(options.seed, verbose=False)
    model = Classifier(data.train_images.shape[1:], data.num_classes, options.learning_rate)
    trainer.fit(model, Images(data, options.batch_size, options.seed))
    if dist.is_initialized():  # otherwise Lightning keeps the group until Python ends
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
