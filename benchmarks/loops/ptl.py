"""Lightning's loops; see benchmarks.loops. PyTorch's bare loop is the limit of both."""

import time
from typing import Any

import lightning.pytorch as pl
import rich
import torch
import torch.nn.functional as F

from benchmarks.loops import pt
from benchmarks.within_a_run import Loop, in_a_thread
from common.experiment import Experiment
from pt_impl.networks import make_network

make_limit = in_a_thread(pt.make_limit)


class Model(pl.LightningModule):
    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self.rule = {"lr": experiment.config.learning_rate, "momentum": experiment.config.momentum}
        self.network = make_network(experiment.network, experiment.config).to(memory_format=torch.contiguous_format)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), **self.rule)


class Clock(pl.Callback):
    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, *args: Any) -> None:
        self.seconds = time.perf_counter() - self.start


@in_a_thread
def make_usual(experiment: Experiment) -> Loop:
    """A module that logs, PyTorch's usual DataLoader, a Trainer with its defaults."""
    loader, model, folder = pt.make_loader(experiment.config), Model(experiment), experiment.config.run_dir

    def loop(steps: int) -> float:
        console, kept, clock = rich.get_console(), rich.get_console().__dict__, Clock()
        pl.Trainer(max_steps=steps, accelerator="cpu", default_root_dir=folder, callbacks=clock).fit(model, loader)
        console.__dict__ = kept  # with the run's progress bar, which this one has replaced
        return clock.seconds

    return loop
