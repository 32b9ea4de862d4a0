"""ptl_impl in tuned mode without one of its measures; see benchmarks.measures. pt_without has pt_impl's measures."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.profilers import PassThroughProfiler

import ptl_impl.launch
from benchmarks.loops.ptl_limit import make_bare
from benchmarks.without import replace, run_without
from common.experiment import Experiment
from common.platform.program import as_program
from common.record.recorder import Recorder
from pt_impl.data import Batch
from pt_impl.precision import LossScaler
from ptl_impl import tuning
from ptl_impl.train import Classifier, Recording

Outputs = dict[str, torch.Tensor]
Fetching = Iterator[tuple[Batch, int, int]]


class OptimizedByLightning(tuning.TunedClassifier):
    def __init__(self, experiment: Experiment, recorder: Recorder, scaler: LossScaler) -> None:
        super().__init__(experiment, recorder, scaler)
        self.automatic_optimization = True

    def training_step(self, dataloader_iter: Fetching) -> Outputs:
        batch, batch_idx, _ = next(dataloader_iter)
        return Classifier.training_step(self, batch, batch_idx)

    def on_train_batch_end(self, outputs: Outputs, batch: Batch, batch_idx: int) -> None:
        self.recorder.step(outputs["share"], outputs["correct"])
        super().on_train_batch_end(None, batch, batch_idx)


class FetchedByLightning(tuning.TunedClassifier):
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        super().training_step(iter([(batch, batch_idx, 0)]))


class Kept:
    """Replaces the recorder in the step, and keeps the step's numbers for the callback."""

    def __init__(self, recorder: Recorder) -> None:
        self.plan, self.recorder = recorder.plan, recorder

    @property
    def steps_done(self) -> int:
        return self.recorder.steps_done

    @property
    def checkpoint_due(self) -> bool:
        return self.recorder.checkpoint_due

    def step(self, share: torch.Tensor, correct: torch.Tensor) -> None:
        self.outputs = {"share": share, "correct": correct}


class RecordedByCallback(tuning.TunedClassifier):
    def __init__(self, experiment: Experiment, recorder: Recorder, scaler: LossScaler) -> None:
        super().__init__(experiment, Kept(recorder), scaler)
        self.callback = Recording(recorder)

    def configure_callbacks(self) -> list[Recording]:
        return [self.callback]

    def training_step(self, dataloader_iter: Fetching) -> Outputs:
        super().training_step(dataloader_iter)
        return self.recorder.outputs

    def nothing(self, *arguments: Any) -> None:
        """Does nothing: the callback does it."""

    on_train_epoch_start = on_train_batch_end = on_validation_start = on_validation_end = nothing


WITHOUT = {
    "manual-optimization": lambda: replace(tuning, TunedClassifier=OptimizedByLightning),
    "step-fetches": lambda: replace(tuning, TunedClassifier=FetchedByLightning),
    "no-profiler": lambda: replace(tuning, NoProfiler=PassThroughProfiler),
    "recording-hooks": lambda: replace(tuning, TunedClassifier=RecordedByCallback),
    "hook-names": lambda: delattr(tuning.TunedClassifier, "__setattr__"),
    "no-broadcast": lambda: replace(tuning, tune_trainer=lambda trainer: None),
}

if __name__ == "__main__":
    with as_program("ptl_without"):
        run_without("ptl", WITHOUT, make_bare, ptl_impl.launch)
