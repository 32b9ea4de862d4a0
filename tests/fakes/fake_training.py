"""What fake implementations do (`FAKES` in conftest.py): they follow the contract without a framework, in a second."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.launch import Launch
from common.record import monitor
from common.record.recorder import Framework, Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.resolve import AutoSettings, resolve_devices, resolve_settings
from common.spec.options import TrainConfig

# Of a run. Without it nearly all of an epoch would be off the clock, and its share would depend on other tests.
TRAINING_SECONDS = 0.5


class Fake(Framework):
    title = ""  # replaced in __init__

    def __init__(self, name):
        self.name = self.title = name

    def device_name(self, config):
        return "none"

    def fetch(self, steps, numbers):
        return steps, numbers

    def synchronize(self):
        pass


def run(name, at_step=None, others=lambda config: 0.0):
    """Trains nothing: the losses fall by a formula.

    Args:
      at_step: the number of a step, and what happens after it.
      others: the share of the cores that other programs seem to use. The real share depends on other tests.
    """
    with as_program(f"python -m {name}_impl"):
        timeline = Timeline.begin(os.getpid())
        timeline.enter("data")
        num_gpus = int(os.environ.get(f"FAKE_GPUS_{name}", "0"))
        config = parse_options(TrainConfig, f"python -m {name}_impl", "fake")
        config = resolve_devices(config, name, num_gpus, Launch.read(), ("ddp",))
        experiment = with_run_dir(Experiment.make(resolve_settings(config, AutoSettings(compile=True))), name)
        if config.dry_run:
            return
        monitor.shares_of_cores = lambda _: (0.9, others(config))
        with Recorder(Fake(name), experiment, timeline, rank=0, measures=True) as recorder:
            step = 0
            count = len(experiment.dataset.test_images)
            for epoch in range(1, experiment.plan.num_epochs + 1):
                recorder.start_epoch()
                for _ in experiment.plan.steps(epoch):
                    step += 1
                    time.sleep(TRAINING_SECONDS / experiment.plan.schedule_steps)
                    recorder.step(2.3 * math.exp(-step / 100), 1)
                    if at_step and step == at_step[0]:
                        at_step[1]()
                recorder.end_training()
                recorder.start_evaluation()
                recorder.end_epoch(0.5 * count, count // 2, count)
            logits = np.eye(experiment.dataset.num_classes)[experiment.dataset.test_labels]
            logits[count // 2 :] = np.roll(logits[count // 2 :], 1, axis=1)  # the other half gets the next class
            recorder.save_predictions(logits)
            weights = {name: array.astype(np.float32) for name, array in experiment.initial_weights.items()}
            recorder.finish(weights, (), None, None)


def hang():
    """Starts a child process that ignores SIGTERM, writes both process ids to the run's file `pids`, and hangs."""
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", ignores])
    folder = Path(sys.argv[sys.argv.index("--run-dir") + 1])
    folder.joinpath("pids.tmp").write_text(f"{os.getpid()} {child.pid}")
    folder.joinpath("pids.tmp").rename(folder / "pids")
    time.sleep(600)
