"""Inspection beside the training: the first batch layer by layer."""

import lightning.pytorch as pl

from common.record.recorder import Recorder
from pt_impl.inspection import watch_activations, write_first_batch
from pt_impl.precision import LossScaler


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
