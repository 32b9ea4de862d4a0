"""Callbacks of the Trainer beside `Recording` (train.py): for the state of the training, and for the first batch."""

from typing import Any

import lightning.pytorch as pl

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.state import TrainState
from pt_impl.inspection import watch_activations, write_first_batch
from pt_impl.precision import LossScaler
from pt_impl.state import get_state, set_state


class StatesCallback(pl.Callback):
    """Offers the state to the recorder, and restores it. ModelCheckpoint's files only Lightning can read."""

    def __init__(self, experiment: Experiment, recorder: Recorder, scaler: LossScaler) -> None:
        self.experiment, self.recorder, self.scaler = experiment, recorder, scaler

    def on_fit_start(self, trainer: pl.Trainer, module: Any) -> None:
        if self.experiment.state is not None:
            set_state(self.experiment, module.network, trainer.optimizers[0], self.scaler)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *batch: Any) -> None:
        def state_after(step: int) -> TrainState:
            return get_state(self.experiment, module.network, trainer.optimizers[0], self.scaler, step)

        self.recorder.offer_state(state_after)

    on_train_epoch_end = on_train_batch_end


class FirstBatch(pl.Callback):
    """Writes every layer's output and every parameter's gradient of the first step."""

    def __init__(self, recorder: Recorder, scaler: LossScaler) -> None:
        self.recorder, self.scaler = recorder, scaler

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.outputs, self.hooks = watch_activations(module.network, module.experiment.network)

    def on_after_backward(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not self.hooks:
            return
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        # The loss has been scaled before, if it is scaled at all.
        scale, reduced = self.scaler.get_scale(), module.experiment.plan.batches_in(1) == 1
        write_first_batch(module.experiment, module.network, self.outputs, self.recorder, scale, reduced)
