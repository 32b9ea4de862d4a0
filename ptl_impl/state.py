"""The state of a training in Lightning: as in pt_impl, saved and restored in callbacks of the Trainer."""

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.state import TrainState
from pt_impl.precision import LossScaler
from pt_impl.state import get_state, native_average, set_state

PREFIX = "network."  # of parameters' names in a Classifier


class States(pl.Callback):
    """Offers the state to the recorder, and restores it. ModelCheckpoint's files only Lightning can read."""

    def __init__(
        self, experiment: Experiment, recorder: Recorder, scaler: LossScaler, averaging: list[EMAWeightAveraging]
    ) -> None:
        """`averaging`: the callback for averages in a list, or an empty list."""
        self.experiment, self.recorder, self.scaler, self.averaging = experiment, recorder, scaler, averaging

    def on_fit_start(self, trainer: pl.Trainer, module: Any) -> None:
        if self.experiment.state is None:
            return
        set_state(self.experiment, module.network, trainer.optimizers[0], self.scaler)
        for averaging in self.averaging:
            own = module.state_dict()
            averages = native_average(self.experiment, module.network)
            average = {f"{PREFIX}{name}": tensor for name, tensor in averages.items()}
            counted = {"n_averaged": torch.tensor(self.experiment.state.step)}
            stored = {"state_dict": {**own, **average}, "averaging_state": counted, "current_model_state": own}
            averaging.on_load_checkpoint(trainer, module, stored)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *batch: Any) -> None:
        self.recorder.offer_state(lambda step: self.get_state(trainer, module, step))

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        self.recorder.offer_state(lambda step: self.get_state(trainer, module, step))

    def get_state(self, trainer: pl.Trainer, module: Any, step: int) -> TrainState:
        average = {}
        for averaging in self.averaging:
            stored = {"state_dict": module.state_dict()}
            averaging.on_save_checkpoint(trainer, module, stored)
            average = {name.removeprefix(PREFIX): tensor for name, tensor in stored["state_dict"].items()}
        return get_state(self.experiment, module.network, trainer.optimizers[0], average, self.scaler, step)
