"""The additions of `--mode tuned` in Lightning: the same training, but faster. train.py is complete without this file.

Each measure's gain is given with it: images per second with the measure, divided by those without it, for the cnn on
digits (batch size 32) and for lenet on MNIST (batch size 128). The gains were measured by
`python -m benchmarks.measures` on the machine of docs/performance.md. Two numbers are these two gains, in this order.

Network, data and optimizer are tuned as in pt_impl/tuning.py. Some measures use private parts of Lightning, and fit the
versions in constraints.txt.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.profilers import PassThroughProfiler
from torch import nn
from torch.optim.swa_utils import AveragedModel

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import summed
from pt_impl import tuning as pt_tuning
from pt_impl.optimizer import make_average
from pt_impl.parallel import shard, without_communication
from pt_impl.replicas import find_device, share_statistics
from ptl_impl.data import Batch, ExampleData
from ptl_impl.precision import LossScaler, make_autocast
from ptl_impl.state import get_state, set_average, set_state
from ptl_impl.train import Classifier


class TunedData(ExampleData):
    """pt_impl's tuned loaders: their batches are already on the device, and are not searched for tensors to move."""

    def setup(self, stage: str) -> None:
        device = find_device(self.experiment.config, self.trainer.local_rank)
        loaders = pt_tuning.make_loaders(self.experiment, self.trainer.global_rank, device)
        self.train_loader, self.test_loader = loaders


class TunedClassifier(Classifier):
    """The same steps with less of Lightning's code around them."""

    def __init__(self, experiment: Experiment, recorder: Recorder, scaler: LossScaler) -> None:
        super().__init__(experiment)
        # The step is written out: automatic optimization would call a dozen more hooks in each step. Gain: 1.08, 1.00.
        self.automatic_optimization = False
        self.recorder, self.scaler = recorder, scaler
        self.shares: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the batches of one step
        self.averages: list[AveragedModel] = []  # one or none; in a list, so that it is not a submodule
        self.network = pt_tuning.tune_network(self.network, experiment.config)
        self.trained_network: nn.Module = self.network
        if experiment.config.compile:
            self.trained_network = torch.compile(self.network, **pt_tuning.compile_options(experiment.config))

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets the name of the current hook some forty times a step. Each time nn.Module would check whether
        # the value is a parameter. Gain: 1.07, 0.97.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_model(self) -> None:
        if self.experiment.config.strategy == "fsdp":
            shard(self.network, self.trainer.strategy.root_device)

    def on_fit_start(self) -> None:
        # The optimizer as the Trainer has wrapped it: with the strategy and the precision around its step.
        self.optimizer, self.scheduler = self.optimizers(), self.lr_schedulers()
        average = make_average(self.network, self.experiment.update_rule)
        self.averages += [average.eval()] if average else []
        if self.experiment.state:
            set_state(self.experiment, self.network, self.trainer.optimizers[0], self.scaler)
            for average in self.averages:
                set_average(average, self.experiment)

    def on_train_start(self) -> None:
        super().on_train_start()
        config, loader = self.experiment.config, self.trainer.train_dataloader
        if config.compile:
            autocast = make_autocast(config.precision, self.device)
            pt_tuning.compile_ahead(self, autocast, loader, self.experiment.network.image_shape)

    def forward(self, inputs: Any) -> torch.Tensor:
        return (self.trained_network if self.training else self.evaluated)(inputs)

    @property
    def evaluated(self) -> nn.Module:
        return self.averages[0].module if self.averages else self.network

    @property
    def synchronised(self) -> nn.Module:
        """The module that adds up the replicas' gradients."""
        return self.network if self.experiment.config.strategy == "fsdp" else self.trainer.model

    def training_step(self, dataloader_iter: Iterator[tuple[Batch, int, int]]) -> None:
        # With an argument of this name, Lightning leaves fetching the batch to the step, and does not search the batch
        # for tensors. Gain: 1.16, 1.00.
        (inputs, labels, count), _, _ = next(dataloader_iter)
        if not self.shares:
            self.optimizer.zero_grad()
        left = self.recorder.plan.batches_in(self.recorder.steps_done + 1) - len(self.shares) - 1
        config = self.experiment.config
        with without_communication(self.synchronised, config) if left else contextlib.nullcontext():
            logits = self(inputs)
            smoothing = config.label_smoothing
            loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) / count
            self.manual_backward(loss * self.trainer.world_size)
        self.shares.append((loss.detach(), (logits.detach().argmax(dim=1) == labels).sum()))
        if not left:
            self.end_step()

    def end_step(self) -> None:
        """Ends a step when the gradients of all its batches are there."""
        self.optimizer.step()
        self.scheduler.step()
        for average in self.averages:
            average.update_parameters(self.network)
        self.recorder.step(*summed(self.shares))
        self.shares.clear()
        self.checkpoint()

    def checkpoint(self) -> None:
        if self.recorder.checkpoint_due:
            average = dict(self.evaluated.named_parameters()) if self.averages else {}
            optimizer, step = self.trainer.optimizers[0], self.recorder.steps_done
            state = get_state(self.experiment, self.network, optimizer, average, self.scaler, step)
            self.recorder.save_checkpoint(state)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.experiment.update_rule.largest_norm is not None:
            self.clip_gradients(optimizer, self.experiment.update_rule.largest_norm, "norm")

    # These hooks call the recorder. With a Callback, Lightning would go through all its hooks in every step.
    # Gain: 1.09, 0.98.

    def on_train_epoch_start(self) -> None:
        self.recorder.start_epoch()

    def on_train_batch_end(self, outputs: None, batch: Batch, batch_idx: int) -> None:
        if self.recorder.steps_done == self.recorder.plan.last_step(self.trainer.current_epoch + 1):
            self.recorder.end_training()
            self.trainer.should_stop = self.recorder.steps_done == self.recorder.plan.total_steps

    def on_validation_start(self) -> None:
        self.recorder.start_evaluation()
        share_statistics(self.evaluated)  # Lightning does so only if validation uses the wrapped module

    def on_validation_end(self) -> None:
        loss_sum, correct, count = self.totals.tolist()
        self.recorder.end_epoch(loss_sum, int(correct), int(count))

    def on_train_epoch_end(self) -> None:
        self.checkpoint()

    def on_train_end(self) -> None:
        self.network = self.evaluated


class NoProfiler(PassThroughProfiler):
    """Replaces Lightning's default one, which runs an empty generator some twenty times a step. Gain: 1.09, 0.97."""

    nothing = contextlib.nullcontext()

    def profile(self, action_name: str) -> contextlib.AbstractContextManager[None]:
        return self.nothing


def tune_trainer(trainer: pl.Trainer) -> None:
    """Turns off a broadcast: in every step Lightning asks whether a rank was told to end, and waits for the answer.

    No other implementation has this broadcast, and on a GPU it waits for the device. Here a signal goes to all ranks
    anyway. Gain, on one device: 1.05, 0.97.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    # Lightning's warning about a step that fetches its batch itself.
    warnings.filterwarnings("ignore", message=".*`dataloader_iter`.*")
