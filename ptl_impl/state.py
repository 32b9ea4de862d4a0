"""The state of a training in Lightning: as in pt_impl, saved and restored in callbacks of the Trainer."""

from typing import Any

import lightning.pytorch as pl

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.state import TrainState
from pt_impl.precision import LossScaler
from pt_impl.state import get_state, set_state


class States(pl.Callback):
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
