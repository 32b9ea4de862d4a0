"""Measures a run and writes its folder. The training loops call it; it calls nothing of theirs but two functions.

Clock: `time.perf_counter`, monotonic, read after the device has finished. Start-up lasts from the start of
the first process to the end of the first step (of the first call, where a call takes several); training and
evaluation are timed apart from it and from each other; timeline.py sees that every second counts once. Between
fetches the hot loop only appends to a list.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.errors import DivergedError
from common.platform.files import Arrays, arrays_sha256, write_arrays
from common.platform.machine import code_sha256, describe_machine, git_state, peak_memory_bytes, versions
from common.platform.probing import limit_in_force, processor_note
from common.record.monitor import Monitor
from common.record.predictions import Predictions
from common.record.progress import TrainingProgress
from common.record.results import (
    FIRST_BATCH_FILE,
    METRICS_FILE,
    SCHEMA_VERSION,
    WEIGHTS_FILE,
    RunResult,
    write_result,
)
from common.record.rounding import first_loss_tolerance
from common.record.timeline import Timeline
from common.resolve import describe_devices, describe_settings
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
    ) -> None:
        config, plan = experiment.config, experiment.plan
        self.implementation = implementation
        self.title = title
        self.experiment = experiment
        self.config = config
        self.plan = plan
        self.run_dir = config.run_dir or Path()
        self.device_name = device_name
        self.timeline = timeline
        self.writes = writes
        self.fetch = fetch
        self.synchronize = synchronize
        self.code_sha256 = code_sha256()  # now, and not when the run ends: it may be changed meanwhile
        self.warmup_steps = min(WARMUP_STEPS, max(1, plan.total_steps // 2)) if plan.total_steps else 0

        self.steps_done = self.startup_steps = 0
        self.pending: list[tuple[Any, Any]] = []
        self.first_loss: float | None = None
        self.epoch_losses: list[float] = []
        self.epoch_correct = 0
        self.startup_seconds: float | None = None
        self.epoch_train_seconds: list[float] = []
        self.eval_seconds: list[float] = []
        self.timed_seconds = 0.0
        self.segment_start = self.timed_start = math.nan
        self.evaluation: dict[str, float | int] | None = None
        assert config.devices != "auto"
        num_gpus = config.devices if config.accelerator == "gpu" else 0
        self.monitor = Monitor(timeline.first_pid, num_gpus) if writes else None

        self.progress = TrainingProgress(plan.total_steps, plan.num_epochs, shown=writes)
        self.metrics: TextIO | None = None
        self.at_end = ExitStack()

    def __enter__(self) -> "Recorder":
        self.timeline.enter("build")
        config, plan = self.config, self.plan
        self.at_end.enter_context(self.progress)
        if self.writes:
            assert config.run_dir is not None
            self.metrics = self.at_end.enter_context(open(self.run_dir / METRICS_FILE, "w"))
            steps = {"total_steps": plan.total_steps, "steps_per_epoch": plan.steps_per_epoch}
            self._write({"kind": "plan", **steps, "num_epochs": plan.num_epochs})
        self.progress.line(
            f"{self.title}: {config.model} on {config.dataset}, {plan.train_size:,} training and"
            f" {len(self.experiment.dataset.test_images):,} test images\n"
            f"batch {config.batch_size}, {describe_settings(config)}, {describe_devices(config, self.device_name)}"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.at_end.close()

    # --- Training ---

    def start_epoch(self) -> None:
        self.epoch_losses, self.epoch_correct = [], 0
        if self.steps_done:
            if self.monitor:
                self.monitor.energy.resume()
            self.segment_start = self.timed_start = self.timeline.enter("training")

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
            self.synchronize()
            if self.monitor:
                self.monitor.start()
                self.monitor.energy.resume()
            self.segment_start = self.timeline.enter("training")
            self.startup_seconds = self.segment_start - self.timeline.process_start
        if done < self.warmup_steps <= self.steps_done:
            self.synchronize()
            self.timed_start, self.warmup_steps = time.perf_counter(), self.steps_done
        if self.steps_done // every > done // every:
            self._flush()

    def end_training(self) -> None:
        """After the last step of an epoch, before its evaluation."""
        self.synchronize()
        now = self.timeline.enter("rest")
        if self.monitor:
            self.monitor.energy.pause()
        self.epoch_train_seconds.append(now - self.segment_start)
        if self.steps_done > self.warmup_steps:
            self.timed_seconds += now - self.timed_start
        self._flush()

    def _flush(self) -> None:
        """Fetches and writes the losses that are pending."""
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
                    f" a smaller --learning-rate than {self.config.learning_rate} may help"
                )
        self._write(*({"kind": "step", "step": step, "loss": loss} for step, loss in enumerate(losses, first)))
        self.epoch_losses += losses
        self.epoch_correct += int(sum(correct))
        epoch = self.plan.epoch_of(self.steps_done)
        seconds = time.perf_counter() - self.segment_start
        done = self.plan.images((epoch - 1) * self.plan.steps_per_epoch + 1, self.steps_done)
        self.progress.steps(self.steps_done, epoch, losses[-1], done / seconds if seconds > 0 else None)

    # --- Evaluation ---

    def start_evaluation(self) -> None:
        self.segment_start = self.timeline.enter("evaluation")

    def end_epoch(self, loss_sum: float, correct: int, count: int) -> None:
        """After an evaluation, with its sums over the whole test set, fetched from the device."""
        now = self.timeline.enter("rest")
        self.eval_seconds.append(now - self.segment_start)
        if self.monitor and 0 < self.steps_done == self.plan.total_steps:
            self.monitor.stop()
        if not math.isfinite(loss_sum):
            raise DivergedError(f"training diverged: the test loss is {loss_sum} after step {self.steps_done}")
        self.evaluation = {
            "test_loss": loss_sum / count,
            "test_accuracy": correct / count,
            "test_correct": correct,
            "test_count": count,
        }
        epoch, train_loss, train_accuracy, train_seconds, speed = 0, None, None, None, None
        if self.epoch_losses:
            epoch = len(self.epoch_train_seconds)
            first = (epoch - 1) * self.plan.steps_per_epoch + 1
            counts = [self.plan.count(step) for step in range(first, self.steps_done + 1)]
            train_loss = math.fsum(map(math.prod, zip(self.epoch_losses, counts, strict=True))) / sum(counts)
            train_accuracy = self.epoch_correct / sum(counts)
            train_seconds = self.epoch_train_seconds[-1]
            timed = sum(counts[self.startup_steps if first == 1 else 0 :])  # the first call counts as start-up
            speed = timed / train_seconds if timed and train_seconds > 0 else None
            self.progress.epoch(epoch, train_loss, train_accuracy, loss_sum / count, correct / count, speed)
        training = {"train_loss": train_loss, "train_accuracy": train_accuracy}
        seconds = {"train_seconds": train_seconds, "eval_seconds": self.eval_seconds[-1]}
        self._write({"kind": "epoch", "epoch": epoch, **training, **self.evaluation, **seconds})

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
        """Writes the trained weights, canonical, and the result, and says where they are.

        Args:
          skipped_steps: by the scaling of the loss (`common.spec.update_rule.LossScaling`); None where there is none.
        """
        if not self.writes:
            return
        assert self.evaluation is not None and self.monitor is not None
        experiment, config, plan = self.experiment, self.config, self.plan
        names = {parameter.name for parameter in experiment.network.parameters}
        assert set(weights) == names, set(weights) ^ names
        write_arrays(self.run_dir / WEIGHTS_FILE, weights)
        joules, trained = self.monitor.energy.joules, plan.images(self.startup_steps + 1, plan.total_steps)
        timed_images = plan.images(self.warmup_steps + 1, plan.total_steps)
        initial = {name: array.astype(np.float64) for name, array in experiment.initial_weights.items()}
        result = RunResult(
            schema_version=SCHEMA_VERSION,
            implementation=self.implementation,
            config=config,
            config_sha256=config.sha256(),
            data_sha256=experiment.dataset.sha256,
            initial_weights_sha256=arrays_sha256(initial),
            num_parameters=experiment.network.num_parameters,
            flops_per_image=experiment.network.flops_per_image,
            class_names=experiment.dataset.class_names,
            num_steps=self.steps_done,
            skipped_steps=skipped_steps,
            first_loss_tolerance=self._first_loss_tolerance(),
            train_count=plan.train_size,
            **self.evaluation,
            startup_seconds=self.startup_seconds,
            epoch_train_seconds=self.epoch_train_seconds,
            eval_seconds=self.eval_seconds,
            wall_seconds=self.timeline.enter("rest") - self.timeline.process_start,
            phase_seconds=self.timeline.seconds,
            warmup_steps=self.warmup_steps,
            images_per_second=timed_images / self.timed_seconds if timed_images else None,
            peak_memory_bytes=peak_memory_bytes(self.timeline.first_pid),
            device_peak_memory_bytes=device_peak_memory_bytes,
            cpu_utilisation=self.monitor.cpu_utilisation,
            gpu_utilisation=self.monitor.gpu_utilisation,
            joules_per_image=joules / trained if joules is not None and trained else None,
            energy_source=self.monitor.energy.source,
            accelerator=config.accelerator,
            devices=config.devices,
            threads_per_device=config.threads_per_device,
            device_name=self.device_name,
            cpu_instructions=limit_in_force() if config.accelerator == "cpu" else None,
            processor_note=processor_note() if config.accelerator == "cpu" else None,
            code_sha256=self.code_sha256,
            machine=describe_machine(),
            versions=versions("numpy", *packages),
            git=git_state(),
        )
        write_result(self.run_dir, result)
        self.progress.line(
            f"test accuracy {result.test_accuracy:.2%} ({result.test_correct:,} of {result.test_count:,}),"
            f" test loss {result.test_loss:.4f}"
        )
        if result.startup_seconds is not None:
            speed = "" if result.images_per_second is None else f", {result.images_per_second:,.0f} images/s"
            train_seconds = sum(result.epoch_train_seconds)
            self.progress.line(f"start-up {result.startup_seconds:.1f} s, training {train_seconds:.1f} s{speed}")
        self.progress.line(f"results: {self.run_dir}")

    def _first_loss_tolerance(self) -> float | None:
        experiment, config = self.experiment, self.config
        if self.first_loss is None or config.precision != "32" or config.tf32 is True:
            return None
        if config.initial_weights is not None:  # the size of the logits is known for weights that are drawn
            return None
        count = self.plan.count(1)
        return first_loss_tolerance(experiment.dataset, experiment.initial_weights, config.seed, count, self.first_loss)

    def _write(self, *lines: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write("".join(json.dumps(line) + "\n" for line in lines))
            self.metrics.flush()
