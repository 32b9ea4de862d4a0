"""Pairs from inside a run: after each of its epochs the bare loop takes as many steps, in the same process.

Pairs of two processes are some seconds apart, in which a shared machine changes more than what is measured here.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.paired import write_speed
from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.options import TrainConfig

BareLoop = Callable[[int], float]  # number of steps -> seconds
MakeBare = Callable[[Experiment], BareLoop]


class PairedRecorder(Recorder):
    """Takes the place of the recorder in an implementation's launch.py, which sees no difference.

    Attributes:
      make_bare: makes the bare loop of a framework; called in every process of the run.
    """

    make_bare: MakeBare

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pairs: list[tuple[float, float]] = []
        self.bare: BareLoop | None = None

    def end_epoch(self, loss_sum: float, correct: int, count: int) -> None:
        super().end_epoch(loss_sum, correct, count)
        steps = self.plan.steps_per_epoch
        if self.bare is None:  # the first epoch and the first bare loop warm up
            self.bare = type(self).make_bare(self.experiment)
            self.bare(steps)
            return
        self.pairs.append((self.epoch_train_seconds[-1], self.bare(steps)))

    def finish(self, *arguments: Any) -> None:
        super().finish(*arguments)
        if self.writes:
            ours, bare = np.array(self.pairs).T
            images = self.plan.train_size
            write_speed(
                self.config.run_dir,
                efficiency=float(np.median(bare / ours)),
                images_per_second=float(images / np.median(ours)),
                bare_images_per_second=float(images / np.median(bare)),
            )


def train_beside(make_bare: MakeBare, launch: ModuleType, config: TrainConfig) -> None:
    """A run beside the bare loop; `launch`: of the implementation."""
    PairedRecorder.make_bare = staticmethod(make_bare)
    launch.Recorder = PairedRecorder
    launch.main(config)
