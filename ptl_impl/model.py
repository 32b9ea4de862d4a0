"""The network in Lightning: pt_impl's, with its training and evaluation steps as methods."""

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn

from common.experiment import Experiment
from common.recorder import Recorder
from pt_impl.data import Batch, to_device
from pt_impl.devices import sum_over_replicas
from pt_impl.model import Normalise, compile_ahead, compiled, load_weights, make_model
from ptl_impl.optimizer import OptimizerAndScheduler, make_optimizer


class Classifier(pl.LightningModule):
    """What `train_step` and `eval_step` are in the other implementations."""

    def __init__(self, experiment: Experiment, recorder: Recorder) -> None:
        super().__init__()
        # The step is written out: with Lightning's own around it, each would pass a dozen hooks more.
        self.automatic_optimization = False
        self.experiment, self.recorder = experiment, recorder
        self.network: nn.Sequential = make_model(experiment.model, experiment.config.precision)
        load_weights(self.network, experiment.model, experiment.initial_weights)
        self.trained_network: nn.Module = self.network

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes which hook it is in some forty times a step; nn.Module would look for parameters each time.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def setup(self, stage: str) -> None:
        dataset, precision = self.experiment.dataset, self.experiment.config.precision
        device = self.trainer.strategy.root_device
        self.normalise = Normalise(dataset, precision, device)
        if self.experiment.config.compile:
            self.trained_network = compiled(self.network, device)

    def on_fit_start(self) -> None:
        # As the Trainer has wrapped it: with the strategy and the precision around its step.
        self.optimizer, self.scheduler = self.optimizers(), self.lr_schedulers()

    def on_train_start(self) -> None:
        if self.experiment.config.compile:
            with self.trainer.precision_plugin.forward_context():
                compile_ahead(
                    self, self.experiment.model, self.trainer.train_dataloader.sampler, self.optimizer.zero_grad
                )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Under autocast, where the Trainer's precision says so.
        network = self.trained_network if self.training else self.network
        return network(self.normalise(images)).to(self.normalise.dtype)

    def training_step(self, dataloader_iter: Iterator[tuple[Batch, int, int]]) -> None:
        # An argument of this name is how Lightning leaves fetching to the step, which then looks for no tensors in
        # whatever a batch might be.
        batch, _, _ = next(dataloader_iter)
        images, labels, count = to_device(batch, self.device)
        self.optimizer.zero_grad(set_to_none=True)
        logits = self(images)
        loss = loss_of(logits, labels, count)
        # The ddp strategy averages the gradients over the replicas: times their number it is the sum.
        self.manual_backward(loss * self.trainer.world_size)
        self.optimizer.step()
        self.scheduler.step()
        self.recorder.step(loss.detach(), (logits.detach().argmax(dim=1) == labels).sum())

    # The recorder is told here what the written-out loops of the other implementations tell it. Not in a
    # Callback: Lightning would go through all of its hooks in every step.

    def on_train_epoch_start(self) -> None:
        self.recorder.start_epoch()

    def on_train_batch_end(self, outputs: None, batch: Batch, batch_index: int) -> None:
        # Here, and not when evaluation starts: before that Lightning makes a new loader and waits for all ranks.
        if batch_index + 1 == self.recorder.plan.steps_in_epoch(self.trainer.current_epoch + 1):
            self.recorder.end_training()

    def on_validation_start(self) -> None:
        self.recorder.start_evaluation()
        self.totals = torch.zeros(3, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        images, labels, _ = batch
        logits = self(images)
        loss_sum = F.cross_entropy(logits, labels, reduction="none").double().sum()
        correct = (logits.argmax(dim=1) == labels).sum()
        # Instead of self.log, which would average the replicas' averages.
        self.totals += torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])

    def on_validation_end(self) -> None:
        loss_sum, correct, count = sum_over_replicas(self.totals).tolist()
        self.recorder.end_epoch(loss_sum, int(correct), int(count))

    def configure_optimizers(self) -> OptimizerAndScheduler:
        return make_optimizer(self.network, self.experiment.update_rule)


def loss_of(logits: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """This replica's share of the global batch's mean cross-entropy: its sum, divided once by the global count."""
    return F.cross_entropy(logits, labels, reduction="sum") / count
