"""Pairs of times within a run: after each epoch the bare loop takes as many steps, in the same process.

Two processes would be some seconds apart. In that time the speed of a shared machine changes by more than the
differences that are measured here.
"""

import json
from collections.abc import Callable

import numpy as np

from common.backend import Backend
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.files import write_text
from common.record.results import EpochLine, RunResult
from common.record.sinks import Sink
from common.spec.options import TrainConfig

SPEED_FILE = "speed.json"
BareLoop = Callable[[int], float]  # number of steps -> seconds
MakeBare = Callable[[Experiment], BareLoop]


class BesideBare(Sink):
    """Runs the bare loop after each epoch, in every process of the run.

    Args:
      make_bare: makes the bare loop of a framework.
    """

    def __init__(self, make_bare: MakeBare) -> None:
        self.make_bare = make_bare
        self.pairs: list[tuple[float, float]] = []
        self.bare: BareLoop | None = None

    def start(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        steps = self.experiment.plan.steps_per_epoch
        if self.bare is None:  # the first epoch and the first bare loop warm up
            self.bare = self.make_bare(self.experiment)
            self.bare(steps)
            return
        self.pairs.append((epoch.train_seconds, self.bare(steps)))

    def finish(self, result: RunResult) -> None:
        ours, bare = np.array(self.pairs).T
        images = result.train_count
        assert result.config.run_dir is not None
        measured = {
            "efficiency": np.median(bare / ours),
            "images_per_second": images / np.median(ours),
            "bare_images_per_second": images / np.median(bare),
        }
        write_text(result.config.run_dir / SPEED_FILE, json.dumps(measured) + "\n")


def train_beside(make_bare: MakeBare, backend: Backend, program: str) -> None:
    """A run of `python -m <program>` with the options of a run, in turns with the bare loop."""
    with as_program(program):
        backend.sinks = [BesideBare(make_bare)]
        backend.run(parse_options(TrainConfig, f"python -m {program}", "A run in turns with a bare loop."))
