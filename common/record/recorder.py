"""Records a run: reads the clock, fetches losses, and writes all that the run leaves but its checkpoints.

Who writes what, in the run's folder: `config.json`: run_folder.py, before the run. `metrics.jsonl`, `result.json`,
`model.safetensors`, `predictions.safetensors` and `first_batch.safetensors`: this file. `checkpoints/`: checkpoints.py.
`states/`, which are audited: audited_states.py. `profile.json` and `profile/`: profile.py. The sinks show the run on
the terminal (sinks.py) and log it to other tools (loggers.py).

This file is long because training loops record through this one class. Between two stops they only append to a list.
"""

import importlib.metadata
import math
import platform
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.ending import hold_signals
from common.platform.errors import DivergedError, StoppedAtCheckpoint, UserError
from common.platform.files import Arrays, arrays_sha256, write_json_model, write_safetensors
from common.platform.fork_server import is_forked
from common.platform.machine import code_sha256, describe_machine, git_state
from common.platform.processor import processor_note
from common.record.audited_states import AuditedStates
from common.record.checkpoints import Checkpoint, Checkpointer, checkpoint_dir, read_checkpoint, write_checkpoint
from common.record.loggers import LOGGERS
from common.record.monitor import MONITORED, Monitor
from common.record.predictions import Predictions
from common.record.profile import Profiler, ProfileTaker
from common.record.results import (
    FIRST_BATCH_FILE,
    RESULT_FILE,
    SCHEMA_VERSION,
    TRAINED_ON,
    WEIGHTS_FILE,
    EpochLine,
    MetricsFile,
    PlanLine,
    RunResult,
    TurnLine,
)
from common.record.sinks import Sink, TrainingProgressSink
from common.record.timeline import Phase, Timeline
from common.record.turns import Turn, Turns
from common.spec.networks import Weights
from common.spec.options import TrainConfig
from common.spec.state import TrainState

# Steps that images_per_second leaves out, since caches fill and allocators settle. In short runs: half of the steps.
WARMUP_STEPS = 10


def num_warmup_steps(steps: int) -> int:
    """How many of the steps that a run takes are its warm-up."""
    return min(WARMUP_STEPS, max(1, steps // 2))


class Framework(ABC):
    """What the recorder asks of a framework; `common.backend` has the rest of the contract.

    Attributes:
      name: name of the implementation in the result, such as `pt`.
      profiler: the framework's own profiler, for `--profile`; None: it has none.
      sinks: further sinks of runs, in addition to the terminal and those that `--logger` names.
    """

    name: str
    profiler: Profiler | None = None
    sinks: Sequence[Sink] = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the framework to display, such as `PyTorch`."""

    @abstractmethod
    def device_name(self, config: TrainConfig) -> str:
        """Name of the processor or GPU that trains."""

    @abstractmethod
    def fetch(
        self, steps: list[tuple[Any, Any]], numbers: list[float]
    ) -> tuple[Sequence[tuple[float, float]], list[float]]:
        """The whole loss and all correct answers of each step, and other numbers, summed over all processes.

        All processes call it after the same steps.

        Args:
          steps: what this process has of (loss, correct answers): the share of its replica (PyTorch), or the whole
            (TensorFlow, JAX); as device scalars, or as arrays of a call that has taken several steps.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until this process's devices have finished their work."""


def names_that_differ(own: Mapping[str, float], sums: Sequence[float]) -> list[str]:
    """Names of the numbers that are not the same in all processes.

    Args:
      own: this process's numbers; the first is a 1, whose sum counts the processes.
      sums: over all processes; maybe followed by others.
    """
    return [name for name, total in zip(own, sums, strict=False) if total != sums[0] * own[name]]


class Recorder:
    """Each process of a run has one; exactly one of them writes and prints.

    Args:
      framework: it has joined the run.
      experiment: its configuration is resolved; in the process that writes it contains the run folder.
      timeline: began with the process that the user started; start-up time and memory are counted from that process.
      rank: number of this process in the run; 0 is the process that writes and prints.
      measures: whether this is the first process of its node, which measures memory and energy.

    Attributes:
      steps_done: number of the latest step.
      losses: of all steps that are fetched.
      epochs: the finished epochs.
      epoch_correct: number of correct answers in the fetched steps of the unfinished epoch.
    """

    def __init__(
        self, framework: Framework, experiment: Experiment, timeline: Timeline, *, rank: int, measures: bool
    ) -> None:
        config, plan = experiment.config, experiment.plan
        self.framework, self.experiment, self.config, self.plan = framework, experiment, config, plan
        self.device_name = framework.device_name(config)
        self.run_dir = config.run_dir or Path()
        self.timeline, self.writes = timeline, rank == 0
        self.code_sha256 = code_sha256()  # now, since the code may change before the run ends
        self.monitor = Monitor(timeline.first_pid, config.num_gpus) if measures else None
        self.sinks: list[Sink] = [*framework.sinks]
        if self.writes:
            terminal = TrainingProgressSink(framework.title, self.device_name, plan)
            loggers = [LOGGERS[name](framework.name, self.run_dir) for name in config.logger]
            self.sinks = [terminal, *loggers, *framework.sinks]
        self.at_end = ExitStack()
        self.turns = Turns()
        self.at_end.callback(self.turns.close)

        self.losses = array("d")
        self.epochs: list[EpochLine] = []
        self.epoch_correct = 0
        self.pending: list[tuple[Any, Any]] = []  # shares of the steps that are not fetched yet
        self.latest: list[tuple[Any, Any]] = []  # the share of the latest fetched step; empty until losses are fetched
        self.steps_done = self.startup_end = plan.first_step - 1
        self.startup_seconds = math.nan
        # Seconds in training before the current epoch, and in evaluation before the latest evaluation.
        self.trained_before = self.evaluated_before = 0.0
        self.warmup_steps = self.steps_done + num_warmup_steps(plan.total_steps - self.steps_done)
        first_stop = plan.first_step if self.turns.are_taken else self.warmup_steps  # see comparison/run/turns.py
        self.turn = Turn(0, first_stop, first_stop)
        self.timed_after: tuple[int, float] | None = None  # steps after this one are timed; the training seconds then
        self.timed_images, self.timed_seconds = 0, 0.0
        self.steps_per_call = 1  # see `Turns.wait`
        self.waited_after = self.steps_done, 0.0  # the step and the training seconds before the last wait
        profiler = framework.profiler if self.writes else None
        self.profile = ProfileTaker(profiler, plan, self.warmup_steps, config.profile)
        self.checkpointer = Checkpointer(config, plan, self.writes)
        self.audited = AuditedStates(plan, self.run_dir, self.writes)
        self.has_replicas = config.num_shards > 1
        self.compared_after = self.steps_done  # the step after which replicas were compared; before the first: none
        self.replicas_differ: str | None = None

    def __enter__(self) -> "Recorder":
        self._enter("build")
        if self.writes:
            self.metrics = MetricsFile(self.run_dir)
            self.at_end.callback(self.metrics.close)
            self.metrics.write(PlanLine(kind="plan", implementation=self.framework.name, **vars(self.plan)))
        for sink in self.sinks:
            sink.start(self.experiment)
            self.at_end.callback(sink.close)
        if self.experiment.state:
            self._go_on()
        self.next_stop = self._next_stop()
        return self

    def __exit__(self, *error: Any) -> None:
        self.at_end.__exit__(*error)

    def _go_on(self) -> None:
        """Continues from what was recorded until the checkpoint, and writes and shows it again, without speeds."""
        assert isinstance(self.config.resume, Path)
        checkpoint, losses = read_checkpoint(self.config.resume)
        for line in checkpoint.epochs:
            self._add_steps(losses[len(self.losses) : self.plan.last_step(line.epoch)], None)
            self._add_epoch(line, None)
        if losses[len(self.losses) :]:
            self._add_steps(losses[len(self.losses) :], None)
        self.epoch_correct, self.trained_before = checkpoint.epoch_correct, -checkpoint.epoch_seconds

    # --- What is written during training ---

    def _add_steps(self, losses: Sequence[float], images_per_second: float | None) -> None:
        """Adds steps that follow the latest ones; writes and shows them."""
        if self.writes:
            self.metrics.write_steps(len(self.losses) + 1, losses)
        self.losses.extend(losses)
        for sink in self.sinks:
            sink.steps(len(self.losses), losses, images_per_second)

    def _add_epoch(self, line: EpochLine, images_per_second: float | None) -> None:
        """Adds an epoch that has been evaluated; writes and shows it."""
        self.epochs.append(line)
        self.epoch_correct = 0
        if self.writes:
            self.metrics.write(line)
        for sink in self.sinks:
            sink.epoch(line, images_per_second)

    # --- The clock ---

    def _enter(self, phase: Phase) -> None:
        """Begins a phase. Load is measured while steps and evaluations are computed, energy while steps are."""
        monitor = self.monitor
        if monitor and phase in ("training", "evaluation", "between"):
            monitor.resume()
        if monitor and phase == "training":
            monitor.energy.resume()
        self.timeline.enter(phase)
        if monitor and phase != "training":
            monitor.energy.pause()
        if monitor and phase not in ("training", "evaluation", "between"):
            monitor.pause()

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        """Within it no time counts as training; entered after a step or after an evaluation."""
        self.framework.synchronize()
        phase = self.timeline.phase
        self._enter("waiting")
        yield
        self._enter(phase)

    def _start_timing(self) -> None:
        """Called between two steps."""
        self.framework.synchronize()
        self.timed_after = self.steps_done, self.timeline.seconds_until_now("training")

    def _end_timing(self) -> tuple[int, int, float]:
        """The first of the timed steps, the number of images in them, and their seconds; called outside training."""
        after, self.timed_after = self.timed_after, None
        if after is None or after[0] == self.steps_done:
            return self.steps_done, 0, 0.0
        images, seconds = self.plan.images(after[0] + 1, self.steps_done), self.timeline.seconds["training"] - after[1]
        self.timed_images, self.timed_seconds = self.timed_images + images, self.timed_seconds + seconds
        return after[0] + 1, images, seconds

    def _epoch_seconds(self) -> float:
        """Training seconds of the current epoch so far, without the first call."""
        return self.timeline.seconds_until_now("training") - self.trained_before

    # --- Training ---

    def start_epoch(self) -> None:
        if self.steps_done >= self.plan.first_step:  # until the end of the first step, the run starts up
            self.trained_before = self.timeline.seconds["training"]
            self._enter("training")

    def steps_to_go(self) -> int:
        """Number of steps until the recorder next reads the clock or fetches losses."""
        return self.next_stop - self.steps_done

    def _next_stop(self) -> int:
        plan, done, every = self.plan, self.steps_done, self.config.log_every_n_steps
        stops = [
            plan.first_step,
            self.warmup_steps,
            self.turn.timed_after,
            done // every * every + every,
            plan.last_step(plan.epoch_of(done + 1)),
            *self.checkpointer.stops(done),
            *self.profile.stops(),
            *self.audited.stops(),
        ]
        if self.turns.are_taken:
            stops.append(max(done + 1, self.turn.until))
        return min(stop for stop in stops if stop > done)

    def step(self, loss: Any, correct: Any, number: int = 1) -> None:
        """Records this process's share of a step, or of the next `number` steps of an epoch, without fetching it.

        The clock is read and losses are fetched only at the end of a call. More steps than `steps_to_go` delay both.

        Args:
          loss: share of the global batch's mean loss; a scalar on the device, or an array (number,).
          correct: share of the number of correct answers before the update; of the same shape.
        """
        self.pending.append((loss, correct))
        self.steps_done += number
        self.audited.look(self.steps_done, number)
        if self.steps_done >= self.next_stop:
            self._stop(number)

    def _stop(self, number: int) -> None:
        """What is due after a call of `number` steps: reads the clock, fetches losses, waits for the next turn."""
        plan, done = self.plan, self.steps_done - number
        if self.steps_done > self.next_stop:
            self.steps_per_call = max(self.steps_per_call, number)
        if done < plan.first_step:
            self._end_startup()
        if done < self.warmup_steps <= self.steps_done:
            self.warmup_steps = self.steps_done
        if done < self.turn.timed_after <= self.steps_done:
            self._start_timing()
        self.profile.look(self.steps_done, self.run_dir, self.framework.name, self.framework.synchronize)
        every = self.config.log_every_n_steps
        if self.steps_done // every > done // every or self.checkpointer.every is not None:
            self._flush()
            self.checkpointer.look(self.steps_done)
        ends_epoch = self.steps_done == plan.last_step(plan.epoch_of(self.steps_done))
        if self.turns.are_taken and self.steps_done >= self.turn.until and not ends_epoch:
            self._flush()
            self._wait_for_turn()
        self.next_stop = self._next_stop()

    def _end_startup(self) -> None:
        self.framework.synchronize()
        self._enter("training")
        self.startup_seconds = self.timeline.since - self.timeline.process_start
        self.startup_end = self.steps_done
        self.waited_after = self.steps_done, 0.0
        if self.config.checkpoint_every is not None:
            # Not earlier: there is no state for a checkpoint yet, and other processes may still be starting.
            self.checkpointer.held = self.at_end.enter_context(hold_signals())

    def _fetch(self) -> Sequence[tuple[float, float]]:
        """Global losses and correct answers of the pending steps or, if none are pending, of the latest again.

        In the same exchange the processes agree on when to write a checkpoint.
        """
        steps, own = self.pending or self.latest, {} if self.latest else self._digests()
        numbers, sums = self.framework.fetch(steps, [*own.values(), *self.checkpointer.votes(self.steps_done)])
        if differ := names_that_differ(own, sums):
            raise UserError(f"the processes of this run differ in {' and '.join(differ)}: all nodes need the same")
        self.pending, self.latest = [], steps[-1:]
        self.checkpointer.agree(self.steps_done, sums[len(own) :])
        return numbers

    def _digests(self) -> dict[str, float]:
        """What all processes of a run must have in common -> 32 bits of its digest; first a 1, whose sum counts them.

        Each node that a launcher uses has a checkout, data and a command line of its own.
        """
        digests = {"code": self.code_sha256, "data": self.experiment.dataset.sha256, "options": self.config.sha256()}
        numbers = {name: float(int(digest[:8] or "0", 16)) for name, digest in digests.items()}
        return {"count": 1.0, **numbers, "checkpoint": float(self.plan.first_step)}

    def _flush(self) -> None:
        """Fetches, writes and shows the pending losses. Raises DivergedError for a loss that is not finite."""
        if not self.pending:
            return
        losses, correct = zip(*self._fetch(), strict=True)
        for step, loss in enumerate(losses, len(self.losses) + 1):
            if not math.isfinite(loss):
                raise DivergedError(
                    f"training diverged: the loss of step {step} is {loss}; a smaller --learning-rate than"
                    f" {self.experiment.update_rule.learning_rates.max():g} may help"
                )
        self.epoch_correct += int(sum(correct))
        images = self.plan.images(self.plan.all_steps(self.plan.epoch_of(self.steps_done)).start, self.steps_done)
        seconds = self._epoch_seconds()
        self._add_steps(losses, images / seconds if seconds > 0 else None)

    def end_training(self) -> None:
        """Called after the last step of an epoch, before its evaluation."""
        self.framework.synchronize()
        self._enter("between")
        self._flush()
        if self.turns.are_taken and self.steps_done >= self.turn.until:
            self._wait_for_turn()

    # --- Evaluation ---

    def start_evaluation(self) -> None:
        self.evaluated_before = self.timeline.seconds["evaluation"]
        self._enter("evaluation")

    def end_epoch(self, loss_sum: float, correct: int, count: int) -> None:
        """Called after an evaluation, with its sums over the whole test set, fetched from the device."""
        self._enter("rest" if self.steps_done == self.plan.total_steps else "between")
        if not math.isfinite(loss_sum):
            raise DivergedError(f"training diverged: the test loss is {loss_sum} after step {self.steps_done}")
        epoch = len(self.epochs) + 1
        steps = self.plan.all_steps(epoch)
        counts = np.array([self.plan.count(step) for step in steps])
        examples, seconds = int(counts.sum()), self._epoch_seconds()
        scores_classes = self.experiment.network.scores_classes
        line = EpochLine(
            kind="epoch",
            epoch=epoch,
            train_loss=math.fsum(counts * self.losses[steps.start - 1 :]) / examples,
            train_accuracy=self.epoch_correct / examples if scores_classes else None,
            train_seconds=seconds,
            test_loss=loss_sum / count,
            test_accuracy=correct / count if scores_classes else None,
            test_correct=correct,
            test_count=count,
            eval_seconds=self.timeline.seconds["evaluation"] - self.evaluated_before,
        )
        timed = self.plan.images(max(steps.start, self.startup_end + 1), steps[-1])  # the first call counts as start-up
        self._add_epoch(line, timed / seconds if timed > 0 and seconds > 0 else None)
        if self.checkpointer.every is not None:
            self._fetch()
            self.checkpointer.look(self.steps_done, evaluated=True)
        self.next_stop = self._next_stop()

    # --- Turns ---

    def _wait_for_turn(self) -> None:
        """Ends a turn, start-up or warm-up, and waits for the next turn.

        All processes of the run call it after the same step. If that step ends an epoch, it is before the evaluation,
        so that no iterator over an epoch's batches lives on during the wait, and the evaluation wakes up the threads.
        """
        with self._clock_stopped():
            first_step, images, timed = self._end_timing()
            if images and self.writes:
                assert self.monitor is not None
                line = TurnLine(
                    kind="turn",
                    cycle=self.turn.cycle,
                    first_step=first_step,
                    last_step=self.steps_done,
                    images=images,
                    seconds=timed,
                    ended=self.timeline.since,
                    own_load=self.monitor.own_load,
                    other_load=self.monitor.other_load,
                )
                self.metrics.write(line)
            steps, seconds = self.steps_done, self.timeline.seconds["training"]
            trained = steps - self.waited_after[0]
            seconds_per_step = (seconds - self.waited_after[1]) / trained if trained else None
            self.waited_after = steps, seconds
            self.turn = self.turns.wait(steps, seconds_per_step, self.steps_per_call) or self.turn
        if self.turn.timed_after == self.steps_done < self.turn.until:  # without steps that only wake up threads
            self._start_timing()

    # --- States: for checkpoints and for audits ---

    @property
    def keeps_states(self) -> bool:
        """Whether any state of this training will be kept or compared."""
        return self.checkpointer.every is not None or bool(self.audited.steps) or self.has_replicas

    def offer_state(self, get_state: Callable[[int], TrainState]) -> None:
        """The loop calls it after each step and each evaluation, in all processes. Keeps the state if it is due.

        After the first call and after the last step, the replicas' weights are compared. Neither this nor an audit
        costs measured time, since the clock stands still. Writing a checkpoint counts as training time.

        Args:
          get_state: number of steps -> the state after them; its arrays must not be changed later.

        Raises:
          StoppedAtCheckpoint: a signal has asked the run to end.
          FileError: a state could not be written.
        """
        compares = self.has_replicas and self.steps_done != self.compared_after
        compares = compares and self.steps_done in (self.startup_end, self.plan.total_steps)
        if self.audited.due or compares:
            with self._clock_stopped():
                state = get_state(self.steps_done)
                if compares:
                    self._compare_replicas(state)
                if self.audited.due:
                    self.audited.keep(state)
        if self.checkpointer.due:
            self._save_checkpoint(get_state(self.steps_done))

    def _compare_replicas(self, state: TrainState) -> None:
        """Notes in which trained parameters the replicas have different values: in each process, and between them."""
        self.compared_after = state.step
        names = self.experiment.network.trained
        digests = {name: float(zlib.crc32(state.weights[name].tobytes())) for name in names}
        # Not a number: then the sum is no number either, in every process.
        own = {"count": 1.0} | digests | dict.fromkeys(state.differ, math.nan)
        wrong = names_that_differ(own, self.framework.fetch(self.pending[-1:] or self.latest, [*own.values()])[1])
        if wrong and not self.replicas_differ:
            more = f" and {len(wrong) - 1} others" if wrong[1:] else ""
            self.replicas_differ = f"after step {state.step}, replicas have different weights in {wrong[0]}{more}"

    def _save_checkpoint(self, state: TrainState) -> None:
        """Writes a checkpoint; if a signal has asked the run to end, ends it afterwards."""
        self.checkpointer.due = False
        if self.writes:
            checkpoint = Checkpoint(
                implementation=self.framework.name,
                config=self.config,
                data_sha256=self.experiment.dataset.sha256,
                step=len(self.losses),
                epochs=self.epochs,
                epoch_correct=self.epoch_correct,
                epoch_seconds=self._epoch_seconds() if self.steps_done % self.plan.steps_per_epoch else 0.0,
            )
            write_checkpoint(self.run_dir, checkpoint, self.losses, state)
        if self.checkpointer.signal and self.steps_done < self.plan.total_steps:
            self._fetch()  # all processes wait for the writing: the first one to end would end the others
            raise StoppedAtCheckpoint(self.checkpointer.signal, checkpoint_dir(self.run_dir, self.steps_done))

    # --- Result ---

    def save_first_batch(self, activations: Arrays, gradients: Arrays) -> None:
        """Writes canonical arrays on the first batch: its images as the network gets them, under the name `input`;
        outputs of every layer; gradients of every parameter.
        """
        if self.writes:
            arrays = {f"activation.{name}": array for name, array in activations.items()}
            arrays |= {f"gradient.{name}": array for name, array in gradients.items()}
            write_safetensors(self.run_dir / FIRST_BATCH_FILE, arrays)

    def save_predictions(self, logits: NDArray[Any]) -> None:
        """Writes predictions, made from the trained network's logits for the whole test set, float (n, classes)."""
        if self.writes:
            dataset = self.experiment.dataset
            Predictions.make(logits, dataset.test_labels, dataset.test_images).write(self.run_dir)

    def finish(
        self, weights: Weights, packages: tuple[str, ...], peak_memory: int | None, skipped_steps: int | None
    ) -> None:
        """Writes the trained weights in canonical layout, and the result; the sinks show it.

        Args:
          packages: those whose versions the result has.
          peak_memory: bytes that the devices' allocator held at most; None if unknown.
          skipped_steps: number of steps that `common.spec.update_rule.LossScaling` skipped; None without loss scaling.
        """
        measured = self._measured()
        if not self.writes:
            return
        experiment, config, plan = self.experiment, self.config, self.plan
        assert self.monitor is not None
        assert set(weights) == {parameter.name for parameter in experiment.network.parameters}
        write_safetensors(self.run_dir / WEIGHTS_FILE, weights, {TRAINED_ON: experiment.dataset.spec.model_dump_json()})
        initial = {name: array.astype(np.float64) for name, array in experiment.initial_weights.items()}
        if not self.timed_images:  # the run had no turns
            self._end_timing()
        images, joules = plan.images(self.startup_end + 1, plan.total_steps), measured.pop("joules")
        versions = {name: importlib.metadata.version(name) for name in ("numpy", *packages)}
        git, machine = git_state(), describe_machine()
        self._enter("rest")  # the end of `phase_seconds`
        result = RunResult(
            schema_version=SCHEMA_VERSION,
            implementation=self.framework.name,
            config=config,
            data_sha256=experiment.dataset.sha256,
            initial_weights_sha256=arrays_sha256(initial),
            num_parameters=experiment.network.num_parameters,
            flops_per_image=experiment.network.flops_per_image,
            class_names=experiment.dataset.class_names,
            num_steps=self.steps_done,
            skipped_steps=skipped_steps,
            replicas_differ=self.replicas_differ,
            train_count=plan.train_size,
            **self.epochs[-1].model_dump(include={"test_loss", "test_accuracy", "test_correct", "test_count"}),
            resumed_from=plan.first_step - 1 if experiment.state else None,
            started=self.timeline.started,
            startup_seconds=None if is_forked() else self.startup_seconds,
            epoch_train_seconds=[line.train_seconds for line in self.epochs],
            eval_seconds=[line.eval_seconds for line in self.epochs],
            wall_seconds=self.timeline.since - self.timeline.process_start,
            warmup_steps=self.warmup_steps,
            images_per_second=self.timed_images / self.timed_seconds if self.timed_images else None,
            phase_seconds=self.timeline.seconds,
            device_peak_memory_bytes=peak_memory,
            joules_per_image=joules / images if joules is not None and images else None,
            accelerator=config.accelerator,
            devices=config.all_devices,
            threads_per_device=config.threads_per_device,
            device_name=self.device_name,
            processor_note=processor_note() if config.accelerator == "cpu" else None,
            machine=machine,
            versions={"python": platform.python_version(), "platform": platform.platform(), **versions},
            code_sha256=self.code_sha256,
            git=git,
            **measured,
        )
        write_json_model(self.run_dir / RESULT_FILE, result)
        for sink in self.sinks:
            sink.finish(result)

    def _measured(self) -> dict[str, Any]:
        """MONITORED -> its value on this node or on all nodes: total memory and energy, the mean of each share."""
        own = self.monitor.measured() if self.monitor else dict.fromkeys(MONITORED, 0.0)  # adds nothing
        if self.config.nodes == 1:
            return own
        # Not a number: what one node does not know is unknown of all.
        known = [math.nan if value is None else float(value) for value in own.values()]
        peak, joules, *shares = self.framework.fetch(self.latest, known)[1]
        values = [round(peak), joules, *(share / self.config.nodes for share in shares)]
        return {name: None if math.isnan(value) else value for name, value in zip(MONITORED, values, strict=True)}
