"""`--strategy pipeline` in Lightning: pt_impl's pipeline with manual optimization, since Lightning has none."""

from typing import Any

import torch

from pt_impl.data import Batch, to_device
from pt_impl.parallel import clip_gradients
from pt_impl.pipeline import LayersOfStage, Pipeline, take_stage
from pt_impl.precision import make_autocast
from pt_impl.replicas import find_replica_device
from ptl_impl.train import Classifier


class PipelinedClassifier(Classifier):
    """One stage of the network with its steps, in both modes."""

    automatic_optimization = False

    def configure_model(self) -> None:
        """Takes this rank's stage, the first time that Lightning calls it."""
        if not isinstance(self.network, LayersOfStage):
            self.network = take_stage(self.network, self.experiment.network, self.trainer.global_rank)
            self.stage_device = find_replica_device(self.experiment.config, self.trainer.global_rank)

    def configure_optimizers(self) -> dict[str, Any]:
        self.network.to(self.stage_device)  # the Trainer moves all stages to devices of one kind
        return super().configure_optimizers()

    def on_fit_start(self) -> None:
        autocast = make_autocast(self.experiment.config.precision, self.stage_device)
        self.pipeline = Pipeline(self.network, self.trainer.global_rank, self.experiment.config, autocast)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, torch.Tensor]:
        optimizer, number = self.optimizers(), self.experiment.config.accumulate_grad_batches
        if batch_idx % number == 0:
            optimizer.zero_grad()
        loss, correct = self.pipeline.forward_backward(to_device(batch, self.stage_device))
        if (batch_idx + 1) % number == 0 or self.trainer.is_last_batch:
            largest_norm = self.experiment.update_rule.largest_norm
            if largest_norm is not None:
                clip_gradients(self.network, largest_norm, self.experiment.config)
            optimizer.step()
            self.lr_schedulers().step()
        return {"share": loss, "correct": correct}

    def on_validation_epoch_start(self) -> None:
        self.totals = torch.zeros(3, dtype=torch.float64, device=self.stage_device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.totals += self.pipeline.eval_step(to_device(batch, self.stage_device))
