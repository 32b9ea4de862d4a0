"""The contract of a framework: all that the rest of the program asks of it.

`NAME_impl/backend.py` has a subclass of `Backend` and its instance, `BACKEND`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from common.experiment import Experiment
from common.implementations import IMPLEMENTATIONS
from common.platform.errors import OutOfMemoryError, RunError
from common.platform.launch import Launch
from common.record.checkpoints import with_checkpoint
from common.record.recorder import Framework, Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.resolve import describe_devices
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.options import TrainConfig


class Backend(Framework):
    """A framework. What `join` sets up, such as a strategy, stays in the instance for the later calls."""

    @property
    def title(self) -> str:
        return IMPLEMENTATIONS[self.name].title

    # --- Before a training ---

    @abstractmethod
    def resolve(self, config: TrainConfig) -> TrainConfig:
        """`config` with its devices, threads and settings resolved. Raises UserError if they are not available."""

    @abstractmethod
    def join(self, experiment: Experiment, launch: Launch) -> None:
        """Sets this process up as a part of the run: devices, threads, strategy or process group."""

    # --- A training ---

    def run(self, config: TrainConfig) -> None:
        """One run, in a single process or as one of the processes that a launcher has started."""
        launch = Launch.read()
        timeline = Timeline.begin(launch.first_pid)
        timeline.enter("data")
        experiment = with_checkpoint(Experiment.make(self.resolve(config)))
        timeline.enter("build")
        self.join(experiment, launch)
        if launch.is_first:
            experiment = with_run_dir(experiment, self.name)
        if not config.dry_run:
            rank = launch.number(int(experiment.config.devices))
            self.run_process(experiment, timeline, rank, measures=launch.local_rank == 0)

    def run_process(self, experiment: Experiment, timeline: Timeline, rank: int, measures: bool) -> None:
        """This process's part of the run; see `Recorder`."""
        recorder = Recorder(self, experiment, timeline, rank=rank, measures=measures)
        with self.errors_in_one_line(experiment.config):
            with recorder:
                self.train(experiment, recorder)
            self.leave()

    @abstractmethod
    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        """Makes the parts of the training, and trains."""

    def leave(self) -> None:
        """Waits until all processes of the run have trained; the one that writes measures the others' memory before."""

    @abstractmethod
    def ran_out_of_memory(self, error: Exception) -> bool:
        """Whether an exception means that a device has no memory left."""

    def lost_another(self, error: Exception) -> bool:
        """Whether an exception means that another process of the run can't be reached any more."""
        return False

    @contextmanager
    def errors_in_one_line(self, config: TrainConfig, trains: bool = True) -> Iterator[None]:
        """Replaces the framework's errors of memory and of connections by lines that say what to do.

        Args:
          config: a resolved configuration.
          trains: True in a training; False if a trained network is only used.

        Raises:
          OutOfMemoryError: a device has no memory left.
          RunError: another process of the run can't be reached any more.
        """
        evaluated = f"{EVAL_BATCH_SIZE:,} images at a time"
        device = describe_devices(config, self.device_name(config))  # now, while there is memory
        try:
            yield
        except Exception as error:
            if self.lost_another(error):
                raise RunError(
                    "another process of this run has ended or can't be reached; its own output, or its node, may say"
                    " why"
                ) from None
            if not self.ran_out_of_memory(error):
                raise
            if not trains:
                raise OutOfMemoryError(f"out of memory with {evaluated} on {device}; use fewer images") from None
            raise OutOfMemoryError(
                f"out of memory with --batch-size {config.batch_size} (evaluation: {evaluated}) on {device}; use a"
                " smaller --batch-size; --accumulate-grad-batches K (not in Keras) makes one step of K batches"
            ) from None

    # --- A trained network ---

    @abstractmethod
    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        """float (n, classes): logits of the network with the initial weights for the test images, on one device."""
