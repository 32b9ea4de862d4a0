"""A run in turns with another loop of its framework, which takes as many steps after each epoch, in the same process.

The speed of a shared machine changes within seconds by more than the differences that are measured here.

    python -m benchmarks.within_a_run {limit,usual} NAME OPTIONS      # OPTIONS: those of `python -m NAME_impl`
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import numpy as np

from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.files import write_text
from common.record.results import EpochLine, RunResult
from common.record.sinks import Sink
from common.spec.options import TrainConfig

SPEED_FILE = "speed.json"
Loop = Callable[[int], float]  # number of steps -> seconds
MakeLoop = Callable[[Experiment], Loop]


class Beside(Sink):
    """Runs the other loop after each epoch. The first epoch and the first loop warm up."""

    def __init__(self, make_loop: MakeLoop) -> None:
        self.make_loop = make_loop
        self.pairs: list[tuple[float, float]] = []

    def start(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def epoch(self, epoch: EpochLine, images_per_second: float | None) -> None:
        if epoch.epoch == 1:
            self.loop = self.make_loop(self.experiment)
        self.pairs.append((epoch.train_seconds, self.loop(self.experiment.plan.steps_per_epoch)))

    def finish(self, result: RunResult) -> None:
        ours, other = np.array(self.pairs[1:]).T
        speeds = {"images_per_second": result.train_count / np.median(ours), "ratio": np.median(other / ours)}
        assert result.config.run_dir is not None
        write_text(result.config.run_dir / SPEED_FILE, json.dumps(speeds) + "\n")


def timed(step: Callable[[], object], synchronize: Callable[[], object]) -> Loop:
    """A loop of nothing but this step. `synchronize` waits until the device has finished."""

    def loop(steps: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize()
        return time.perf_counter() - start

    return loop


def in_a_thread(make_loop: MakeLoop) -> MakeLoop:
    """The same loop in a thread of its own, where no strategy's scope and no inference mode of the run applies."""

    def make(experiment: Experiment) -> Loop:
        thread = ThreadPoolExecutor(max_workers=1)
        loop = thread.submit(make_loop, experiment).result()
        return lambda steps: thread.submit(loop, steps).result()

    return make


if __name__ == "__main__":
    kind, name, *options = sys.argv[1:]
    with as_program("within_a_run"):
        config = parse_options(TrainConfig, "within_a_run", "A run in turns with another loop.", options)
        make_loop = getattr(import_module(f"benchmarks.loops.{name}"), f"make_{kind}")
        backend = import_module(f"{name}_impl.backend").BACKEND
        backend.sinks = [Beside(make_loop)]
        backend.run(config)
