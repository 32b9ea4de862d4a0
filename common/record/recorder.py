"""Records a run. The training loops tell it where they are; it calls nothing of theirs but two functions.

It keeps the losses that are not fetched yet, tells the clock (clock.py), and passes on what it has to the sinks
(sinks.py). Between fetches the hot loop only appends to a list.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.errors import DivergedError
from common.platform.files import Arrays, write_arrays
from common.platform.machine import code_sha256, peak_memory_bytes
from common.record import facts
from common.record.clock import RunClock
from common.record.monitor import Monitor
from common.record.predictions import Predictions
from common.record.progress import TrainingProgress
from common.record.results import FIRST_BATCH_FILE, SCHEMA_VERSION, WEIGHTS_FILE, EpochLine, RunResult
from common.record.sinks import RunFiles, Sink
from common.record.timeline import Timeline
from common.spec.networks import Weights

# Steps left out of images_per_second: caches fill and allocators settle. Half the run where it is short.
WARMUP_STEPS = 10


class Recorder:
    """One for each process of a run; exactly one of them writes and prints.

    Args:
      implementation: name for the result, `pt`.
      title: name for people, `PyTorch`.
      experiment: its configuration resolved; in the process that writes, with the run folder in it.
      device_name: of the device trained on.
      timeline: begun with the process that the user started; start-up and memory count from it.
      writes: whether this is the process that writes and prints.
      fetch: from a list of this process's shares of steps, (loss, correct answers) as device scalars, to the
        global ones as numbers; with several processes they all call it at the same steps.
      synchronize: waits until the device has done what it was given.
      sinks: further ones, beside the run folder's files and the terminal.
    """

    def __init__(
        self,
        implementation: str,
        title: str,
        experiment: Experiment,
        *,
        device_name: str,
        timeline: Timeline,
        writes: bool,
        fetch: Callable[[list[tuple[Any, Any]]], Sequence[tuple[float, float]]],
        synchronize: Callable[[], None],
        sinks: Sequence[Sink] = (),
    ) -> None:
        config, plan = experiment.config, experiment.plan
        self.implementation, self.device_name = implementation, device_name
        self.experiment, self.config, self.plan = experiment, config, plan
        self.run_dir = config.run_dir or Path()
        self.timeline, self.writes, self.fetch = timeline, writes, fetch
        self.code_sha256 = code_sha256()  # now, and not when the run ends: it may be changed meanwhile
        self.monitor = Monitor(timeline.first_pid, config.num_gpus) if writes else None
        self.clock = RunClock(timeline, self.monitor, synchronize)
        own = [RunFiles(self.run_dir), TrainingProgress(title, device_name, plan)] if writes else []
        self.sinks: list[Sink] = [*own, *sinks]
        self.at_end = ExitStack()

        self.warmup_steps = min(WARMUP_STEPS, max(1, plan.total_steps // 2))
        self.steps_done = self.startup_steps = 0
        self.pending: list[tuple[Any, Any]] = []
        self.first_loss: float | None = None
        self.epoch_losses: list[float] = []
        self.epoch_correct = 0
        self.evaluation: dict[str, Any] | None = None

    def __enter__(self) -> "Recorder":
        self.timeline.enter("build")
        for sink in self.sinks:
            self.at_end.callback(sink.close)
            sink.start(self.experiment)
        return self

    def __exit__(self, *error: object) -> None:
        self.at_end.close()

    # --- Training ---

    def start_epoch(self) -> None:
        self.epoch_losses, self.epoch_correct = [], 0
        if self.steps_done:
            self.clock.start_epoch()

    def steps_to_go(self) -> int:
        """How many steps may be taken before it must be told: until it next reads the clock or fetches."""
        plan, done, every = self.plan, self.steps_done, self.config.log_every_n_steps
        stops = (1, self.warmup_steps, done // every * every + every, plan.last_step(plan.epoch_of(done + 1)))
        return min(stop for stop in stops if stop > done) - done

    def step(self, loss: Any, correct: Any, number: int = 1) -> None:
        """Takes this process's share of a step, without fetching it; or of the next `number` steps of an epoch.

        The clock is read and losses are fetched at the end of a call only: more steps than `steps_to_go` delay that.

        Args:
          loss: of the global batch's mean loss; a scalar on the device, or one of (number,).
          correct: answers, as they were before the update; alike.
        """
        done, every = self.steps_done, self.config.log_every_n_steps
        self.pending.append((loss, correct))
        self.steps_done += number
        if done == 0:
            self.startup_steps = number
            self.clock.end_startup()
        if done < self.warmup_steps <= self.steps_done:
            self.clock.end_warmup()
            self.warmup_steps = self.steps_done
        if self.steps_done // every > done // every:
            self._flush()

    def end_training(self) -> None:
        """After the last step of an epoch, before its evaluation."""
        self.clock.end_training(timed=self.steps_done > self.warmup_steps)
        self._flush()

    def _flush(self) -> None:
        """Fetches the losses that are pending, and passes them on."""
        if not self.pending:
            return
        losses, correct = zip(*self.fetch(self.pending), strict=True)
        if self.monitor:
            self.monitor.energy.update()
        first = self.steps_done - len(losses) + 1
        if first == 1:
            self.first_loss = losses[0]
        self.pending = []
        for step, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                raise DivergedError(
                    f"training diverged: the loss of step {step} is {loss};"
                    f" a smaller --learning-rate than {self.experiment.update_rule.learning_rates.max():g} may help"
                )
        self.epoch_losses += losses
        self.epoch_correct += int(sum(correct))
        epoch = self.plan.epoch_of(self.steps_done)
        images = self.plan.images((epoch - 1) * self.plan.steps_per_epoch + 1, self.steps_done)
        seconds = self.clock.seconds_in_epoch()
        for sink in self.sinks:
            sink.steps(self.steps_done, losses, images / seconds if seconds > 0 else None)

    # --- Evaluation ---

    def start_evaluation(self) -> None:
        self.clock.start_evaluation()

    def end_epoch(self, loss_sum: float, correct: int, count: int) -> None:
        """After an evaluation, with its sums over the whole test set, fetched from the device."""
        self.clock.end_evaluation(trained=self.steps_done == self.plan.total_steps)
        if not math.isfinite(loss_sum):
            raise DivergedError(f"training diverged: the test loss is {loss_sum} after step {self.steps_done}")
        test = {"test_loss": loss_sum / count, "test_accuracy": correct / count}
        self.evaluation = {**test, "test_correct": correct, "test_count": count}
        epoch, seconds = len(self.clock.epoch_train_seconds), self.clock.epoch_train_seconds[-1]
        counts = [self.plan.count(step) for step in self.plan.steps(epoch)]
        training = {
            "epoch": epoch,
            "train_loss": math.fsum(map(math.prod, zip(self.epoch_losses, counts, strict=True))) / sum(counts),
            "train_accuracy": self.epoch_correct / sum(counts),
            "train_seconds": seconds,
        }
        timed = sum(counts[self.startup_steps if epoch == 1 else 0 :])  # the first call counts as start-up
        speed = timed / seconds if timed and seconds > 0 else None
        line = EpochLine(kind="epoch", **training, **self.evaluation, eval_seconds=self.clock.eval_seconds[-1])
        for sink in self.sinks:
            sink.epoch(line, speed)

    # --- Result ---

    def save_first_batch(self, activations: Arrays, gradients: Arrays) -> None:
        """Writes canonical arrays: outputs of every layer and gradients of every parameter, on the first batch."""
        if self.writes:
            arrays = {f"activation.{name}": array for name, array in activations.items()}
            arrays |= {f"gradient.{name}": array for name, array in gradients.items()}
            write_arrays(self.run_dir / FIRST_BATCH_FILE, arrays)

    def save_predictions(self, logits: NDArray[Any]) -> None:
        """Takes the trained network's logits for the whole test set, float (n, classes), in its own order."""
        if self.writes:
            dataset = self.experiment.dataset
            Predictions.make(logits, dataset.test_labels, dataset.test_images).write(self.run_dir)

    def finish(
        self,
        weights: Weights,
        packages: tuple[str, ...],
        device_peak_memory_bytes: int | None,
        skipped_steps: int | None,
    ) -> None:
        """Writes the trained weights, canonical, and passes on the result, which then is written and shown.

        Args:
          skipped_steps: by the scaling of the loss (`common.spec.update_rule.LossScaling`); None where there is none.
        """
        if not self.writes:
            return
        assert self.evaluation is not None and self.monitor is not None and self.clock.startup_seconds is not None
        experiment, plan, clock, monitor = self.experiment, self.plan, self.clock, self.monitor
        names = {parameter.name for parameter in experiment.network.parameters}
        assert set(weights) == names, set(weights) ^ names
        write_arrays(self.run_dir / WEIGHTS_FILE, weights)
        joules, trained = monitor.energy.joules, plan.images(self.startup_steps + 1, plan.total_steps)
        timed_images = plan.images(self.warmup_steps + 1, plan.total_steps)
        result = RunResult(
            schema_version=SCHEMA_VERSION,
            implementation=self.implementation,
            **facts.of_experiment(experiment),
            num_steps=self.steps_done,
            skipped_steps=skipped_steps,
            first_loss_tolerance=facts.tolerance_of(experiment, self.first_loss),
            **self.evaluation,
            started=self.timeline.started,
            startup_seconds=clock.startup_seconds,
            epoch_train_seconds=clock.epoch_train_seconds,
            eval_seconds=clock.eval_seconds,
            wall_seconds=clock.end(),
            phase_seconds=self.timeline.seconds,
            warmup_steps=self.warmup_steps,
            images_per_second=timed_images / clock.timed_seconds if timed_images else None,
            peak_memory_bytes=peak_memory_bytes(self.timeline.first_pid),
            device_peak_memory_bytes=device_peak_memory_bytes,
            cpu_utilisation=monitor.cpu_utilisation,
            gpu_utilisation=monitor.gpu_utilisation,
            joules_per_image=joules / trained if joules is not None and trained else None,
            energy_source=monitor.energy.source,
            device_name=self.device_name,
            code_sha256=self.code_sha256,
            **facts.of_process(experiment, packages),
        )
        for sink in self.sinks:
            sink.finish(result)
