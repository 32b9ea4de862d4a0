"""Training in Lightning; laid out like the train.py of the other implementations, to be read side by side."""

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from common.experiment import Experiment
from common.platform.ending import take_signals
from common.record.recorder import Recorder
from common.spec.batches import summed
from pt_impl.data import Batch
from pt_impl.inspection import predict
from pt_impl.networks import make_criterion
from pt_impl.optimizer import make_optimizer
from pt_impl.precision import LossScaler
from pt_impl.replicas import device_peak_memory_bytes
from pt_impl.weights import get_weights
from ptl_impl.data import ExampleDataModule
from ptl_impl.parallel import make_strategy
from ptl_impl.precision import PRECISIONS, make_precision_plugins
from ptl_impl.replicas import make_replica_environment, ranks_start


@dataclass(frozen=True)
class Parts:
    """What is trained and evaluated; made by `make_parts` (ptl_impl/parts.py) for each mode and strategy.

    Attributes:
      module: the network with its steps.
      data: the DataModule.
      callbacks: `Recording`, and those for checkpoints and compiling.
      trainer_options: more options for the Trainer.
    """

    device: torch.device
    module: "Classifier"
    data: ExampleDataModule
    scaler: LossScaler
    callbacks: list[pl.Callback]
    trainer_options: dict[str, Any]


# --- Steps: each runs in every process, on this rank's shard of the batch ---


class Classifier(pl.LightningModule):
    """The network with its training and evaluation steps; the Trainer calls them."""

    reduction = "sum"  # of the losses of a training step

    def __init__(self, network: nn.Module, experiment: Experiment, optimizer_options: dict[str, bool]) -> None:
        """`optimizer_options`: options of torch.optim."""
        super().__init__()
        self.network, self.experiment, self.optimizer_options = network, experiment, optimizer_options
        spec, smoothing = experiment.network, experiment.config.label_smoothing
        self.criterion = make_criterion(spec, self.reduction, smoothing)
        self.eval_criterion = make_criterion(spec, "none")

    def forward(self, inputs: Any) -> torch.Tensor:
        return self.network(inputs)

    def on_train_start(self) -> None:
        # Used instead of Lightning's signal handler. With that one, two replicas wait for each other, and one ends with
        # exit status 0.
        take_signals()

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, torch.Tensor]:
        inputs, labels, count = batch
        logits = self(inputs)
        # The sum over this shard, divided once by the size of the global batch, instead of the shard's mean.
        share = self.criterion(logits, labels) / count
        correct = (logits.detach().argmax(dim=1) == labels).sum()
        # The ddp strategy averages the replicas' gradients, and the Trainer those of accumulated batches. The average
        # times both numbers is their sum.
        factor = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return {"loss": share * factor, "share": share.detach(), "correct": correct}

    def on_validation_epoch_start(self) -> None:
        self.totals = torch.zeros(3, dtype=torch.float64, device=self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        inputs, labels, _ = batch
        logits = self(inputs)
        loss_sum = self.eval_criterion(logits, labels).double().sum()
        correct = (logits.argmax(dim=1) == labels).sum()
        # Sums in 64 bits, which weight all examples equally, instead of self.log: the mean of means in 32 bits.
        self.totals += torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])

    def on_validation_epoch_end(self) -> None:
        self.totals = self.trainer.strategy.reduce(self.totals, reduce_op="sum")

    def configure_optimizers(self) -> dict[str, Any]:
        rule, first_step = self.experiment.update_rule, self.experiment.plan.first_step
        optimizer, scheduler = make_optimizer(self.network, rule, first_step, **self.optimizer_options)
        # The rate changes after every step, not after every epoch.
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Recording(pl.Callback):
    """Reports steps and evaluations to the recorder; `StatesCallback` (callbacks.py) offers it the states."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.shares: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the batches of one step

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Classifier) -> None:
        self.recorder.start_epoch()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Classifier, outputs: dict[str, torch.Tensor], batch: Any, batch_idx: int
    ) -> None:
        self.shares.append((outputs["share"], outputs["correct"]))
        if len(self.shares) < self.recorder.plan.batches_in(self.recorder.steps_done + 1):
            return
        self.recorder.step(*summed(self.shares))
        self.shares.clear()
        # After the last step of the epoch (the plan counts epochs from 1), before Lightning waits for the other ranks.
        if self.recorder.steps_done == self.recorder.plan.last_step(trainer.current_epoch + 1):
            self.recorder.end_training()
            # --max-steps may end the last epoch early.
            trainer.should_stop = self.recorder.steps_done == self.recorder.plan.total_steps

    def on_validation_start(self, trainer: pl.Trainer, module: Classifier) -> None:
        self.recorder.start_evaluation()

    def on_validation_end(self, trainer: pl.Trainer, module: Classifier) -> None:
        loss_sum, correct, count = module.totals.tolist()
        self.recorder.end_epoch(loss_sum, int(correct), int(count))


# --- Loop: the Trainer's, which calls the methods above ---


def train(experiment: Experiment, parts: Parts, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    trainer = pl.Trainer(
        accelerator="gpu" if config.num_gpus == config.devices else "cpu",
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=make_strategy(config),
        precision=PRECISIONS[config.precision],
        # Who starts ranks; loss scaling.
        plugins=[*make_replica_environment(config), *make_precision_plugins(config, parts.scaler)],
        max_epochs=plan.num_epochs,
        reload_dataloaders_every_n_epochs=int(len(plan.epochs_alike) > 1),  # the first epoch has fewer batches
        callbacks=parts.callbacks,
        sync_batchnorm=False,  # the network has such layers already; Lightning's refuse the CPU
        use_distributed_sampler=False,  # the samplers know their rank; Lightning's sampler would pad
        num_sanity_val_steps=0,
        **parts.trainer_options,
    )
    # A run that resumes has some epochs behind it; fit counts on from here.
    done = dict.fromkeys(("ready", "started", "processed", "completed"), plan.epochs_done)
    trainer.fit_loop.epoch_progress.load_state_dict({"total": done, "current": done})
    with ranks_start():
        trainer.fit(parts.module, parts.data)

    memory = device_peak_memory_bytes(config, parts.device)
    weights = get_weights(parts.module.network, experiment.network)
    if recorder.writes:  # the first rank
        recorder.save_predictions(predict(experiment, weights, parts.device))
    skipped = parts.scaler.skipped_steps
    recorder.finish(weights, packages=("torch", "lightning"), peak_memory=memory, skipped_steps=skipped)
