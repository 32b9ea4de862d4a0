"""MNIST in Lightning as its tutorials train it: a module that logs, PyTorch's usual DataLoader, a plain Trainer."""

from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F

from benchmarks.loops.pt_usual import make_loader
from benchmarks.loops.timed import TimedSteps
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from pt_impl.networks import make_network
from ptl_impl.backend import BACKEND


class Model(pl.LightningModule):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.config = config
        network = make_network(NetworkSpec.make(config.model, (28, 28, 1), 10), config)
        self.network = network.to(memory_format=torch.contiguous_format)  # PyTorch's default memory layout

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.config.learning_rate, momentum=self.config.momentum)


class Clock(pl.Callback):
    def __init__(self, config: TrainConfig) -> None:
        self.timed = TimedSteps(config)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        self.timed.step()


def main() -> None:
    config = BACKEND.resolve(
        parse_options(TrainConfig, "python -m benchmarks.loops.ptl_usual", "Lightning as in tutorials.")
    )
    trainer = pl.Trainer(
        max_steps=config.max_steps,
        accelerator=config.accelerator,
        default_root_dir=config.run_dir,
        callbacks=[Clock(config)],
    )
    trainer.fit(Model(config), make_loader(config))


if __name__ == "__main__":
    with as_program("ptl_usual"):
        main()
