"""Records a run. Long: training loops use only this class for recording; it calls only two of their functions.

It stores the losses that are not fetched yet, calls the clock (clock.py), and passes results to the sinks (sinks.py).
Between fetches the training loop only appends to a list.
"""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.ending import hold_signals
from common.platform.errors import DivergedError, StoppedAtCheckpoint, UserError
from common.platform.files import Arrays, write_safetensors
from common.platform.machine import code_sha256
from common.record import facts
from common.record.audited_states import AuditedStates
from common.record.checkpoints import Checkpointer, checkpoint_dir, read_checkpoint
from common.record.clock import RunClock
from common.record.history import History
from common.record.loggers import LOGGERS
from common.record.monitor import NOTHING_MEASURED, Measured, Monitor
from common.record.predictions import Predictions
from common.record.profile import Profiler, ProfileTaker
from common.record.results import FIRST_BATCH_FILE, SCHEMA_VERSION, TRAINED_ON, WEIGHTS_FILE, RunResult, TurnLine
from common.record.sinks import RunFilesSink, Sink, TrainingProgressSink
from common.record.timeline import Timeline
from common.record.turns import Turn, Turns
from common.spec.networks import Weights
from common.spec.options import TrainConfig
from common.spec.state import TrainState

# Steps that images_per_second leaves out, since caches fill and allocators settle. In short runs: half of the steps.
WARMUP_STEPS = 10


class Framework(ABC):
    """What the recorder asks of a framework; `common.backend` has the rest of the contract.

    Attributes:
      name: name of the implementation in the result, such as `pt`.
      profiler: the framework's own profiler, for `--profile`; None: it has none.
      sinks: further sinks of runs, in addition to the run folder's files and the terminal.
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
        """Losses and correct answers of each step, and other numbers, summed over all processes.

        All processes call it after the same steps.

        Args:
          steps: this process's shares, (loss, correct answers), as device scalars, or as arrays of a call that has
            taken several steps.
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
    """

    def __init__(
        self, framework: Framework, experiment: Experiment, timeline: Timeline, *, rank: int, measures: bool
    ) -> None:
        config, plan = experiment.config, experiment.plan
        self.implementation, self.device_name = framework.name, framework.device_name(config)
        self.experiment, self.config, self.plan = experiment, config, plan
        self.run_dir = config.run_dir or Path()
        self.timeline, self.rank, self.fetch = timeline, rank, framework.fetch
        self.writes = writes = rank == 0
        self.code_sha256 = code_sha256()  # now, since the code may change before the run ends
        self.have_agreed = False
        self.monitor = Monitor(timeline.first_pid, config.num_gpus) if measures else None
        self.clock = RunClock(timeline, self.monitor, framework.synchronize)
        self.sinks: list[Sink] = [*framework.sinks]
        if writes:
            logged = [LOGGERS[name](self.implementation, self.run_dir) for name in config.logger]
            files = RunFilesSink(self.run_dir, self.implementation)
            self.sinks = [
                files,
                TrainingProgressSink(framework.title, self.device_name, plan),
                *logged,
                *framework.sinks,
            ]
        self.at_end = ExitStack()
        self.turns = Turns()
        self.at_end.callback(self.turns.close)

        self.steps_done = self.startup_end = plan.first_step - 1
        self.warmup_steps = self.steps_done + min(WARMUP_STEPS, max(1, (plan.total_steps - self.steps_done) // 2))
        profiler = framework.profiler if writes else None
        self.profile = ProfileTaker(
            self.implementation, profiler, plan, self.warmup_steps, config.profile, framework.synchronize
        )
        self.turn = Turn(0, self.warmup_steps, self.warmup_steps)
        self.timed_from: int | None = None  # the turn times the steps after this one; None: none so far
        self.timed_images, self.timed_seconds = 0, 0.0
        self.steps_per_call = 1  # see `Turns.wait`
        self.waited_after = self.steps_done, 0.0  # the step and the training seconds before the last wait
        self.pending: list[tuple[Any, Any]] = []
        self.latest: list[tuple[Any, Any]] = []
        self.history = History(plan)
        self.checkpointer = Checkpointer(config, plan, writes)
        self.audited = AuditedStates(plan, self.run_dir, writes)
        self.compared_after = self.steps_done  # the step after which replicas were compared; before the first: none
        self.replicas_differ: str | None = None

    def __enter__(self) -> "Recorder":
        self.timeline.enter("build")
        if self.config.checkpoint_every is not None:
            self.at_end.callback(self.checkpointer.close)
        for sink in self.sinks:
            self.at_end.callback(sink.close)
            sink.start(self.experiment)
        if self.experiment.state:
            self._go_on()
        return self

    def __exit__(self, *error: Any) -> None:
        self.at_end.__exit__(*error)

    def _go_on(self) -> None:
        """Continues from what was recorded until the checkpoint, and sends it to the sinks again."""
        assert isinstance(self.config.resume, Path)
        checkpoint, losses = read_checkpoint(self.config.resume)
        self.history.go_on(checkpoint, losses)
        self.clock.go_on(checkpoint.epochs, checkpoint.epoch_seconds)
        for sink in self.sinks:
            self.history.tell(sink)

    # --- Training ---

    def start_epoch(self) -> None:
        if self.steps_done >= self.plan.first_step:
            self.clock.start_epoch()

    def steps_to_go(self) -> int:
        """Number of steps until the recorder next reads the clock or fetches losses."""
        plan, done, every = self.plan, self.steps_done, self.config.log_every_n_steps
        stops = (
            plan.first_step,
            self.warmup_steps,
            self.turn.timed_after,
            self.turn.until,
            done // every * every + every,
            plan.last_step(plan.epoch_of(done + 1)),
        )
        more = (*self.checkpointer.stops(done), *self.profile.stops(), *self.audited.stops())
        return min(stop for stop in (*stops, *more) if stop > done) - done

    def step(self, loss: Any, correct: Any, number: int = 1) -> None:
        """Records this process's share of a step, or of the next `number` steps of an epoch, without fetching it.

        The clock is read and losses are fetched only at the end of a call. More steps than `steps_to_go` delay both.

        Args:
          loss: share of the global batch's mean loss; a scalar on the device, or an array (number,).
          correct: share of the number of correct answers before the update; of the same shape.
        """
        done, every = self.steps_done, self.config.log_every_n_steps
        if number > 1 and number > self.steps_to_go():  # not in every single step, which would cost time
            self.steps_per_call = max(self.steps_per_call, number)
        self.pending.append((loss, correct))
        self.steps_done += number
        self.audited.look(self.steps_done, number)
        if done < self.plan.first_step:
            self.startup_end = self.steps_done
            self.waited_after = self.steps_done, 0.0
            self.clock.end_startup()
            if self.config.checkpoint_every is not None:
                # Not earlier: there is no state for a checkpoint yet, and other processes may still be starting.
                self.checkpointer.held = self.at_end.enter_context(hold_signals())
        if done < self.warmup_steps <= self.steps_done:
            self.warmup_steps = self.steps_done
        if done < self.turn.timed_after <= self.steps_done:
            self._start_timing()
        self.profile.look(self.steps_done, self.run_dir)
        if self.steps_done // every > done // every or self.checkpointer.needs_losses(self.steps_done):
            self._flush()
            self.checkpointer.look(self.steps_done)
        if self.turns.are_taken and self.steps_done >= self.turn.until and not self._ends_epoch():
            self._flush()
            self._wait_for_turn()

    def _ends_epoch(self) -> bool:
        return self.steps_done == self.plan.last_step(self.plan.epoch_of(self.steps_done))

    def _fetch(self) -> Sequence[tuple[float, float]]:
        """Global losses and correct answers of the pending steps, or again of the latest; the processes also vote."""
        steps, own = self.pending or self.latest, {} if self.have_agreed else self._digests()
        numbers, sums = self.fetch(steps, [*own.values(), *self.checkpointer.votes(self.steps_done)])
        if differ := names_that_differ(own, sums):
            raise UserError(f"the processes of this run differ in {' and '.join(differ)}: all nodes need the same")
        self.latest, self.have_agreed, votes = steps[-1:], True, sums[len(own) :]
        self.checkpointer.agree(self.steps_done, votes)
        return numbers

    def _digests(self) -> dict[str, float]:
        """What all processes of a run must have in common -> 32 bits of its digest; first a 1, whose sum counts them.

        Each node that a launcher uses has a checkout, data and a command line of its own.
        """
        digests = {"code": self.code_sha256, "data": self.experiment.dataset.sha256, "options": self.config.sha256()}
        return {"count": 1.0} | {name: float(int(digest[:8] or "0", 16)) for name, digest in digests.items()}

    def end_training(self) -> None:
        """Called after the last step of an epoch, before its evaluation."""
        self.clock.end_training()
        self._flush()
        if self.turns.are_taken and self.steps_done >= self.turn.until:
            self._wait_for_turn()

    def _flush(self) -> None:
        """Fetches the pending losses and passes them to the sinks."""
        if not self.pending:
            return
        losses, correct = zip(*self._fetch(), strict=True)
        if self.monitor:
            self.monitor.energy.update()
        self.pending = []
        self.history.add_steps(losses, correct, self.experiment.update_rule.learning_rates.max())
        epoch = self.plan.epoch_of(self.steps_done)
        images = self.plan.images((epoch - 1) * self.plan.steps_per_epoch + 1, self.steps_done)
        seconds = self.clock.seconds_in_epoch()
        for sink in self.sinks:
            sink.steps(self.steps_done, losses, images / seconds if seconds > 0 else None)

    # --- Evaluation ---

    def start_evaluation(self) -> None:
        self.clock.start_evaluation()

    def end_epoch(self, loss_sum: float, correct: int, count: int) -> None:
        """Called after an evaluation, with its sums over the whole test set, fetched from the device."""
        self.clock.end_evaluation(trained=self.steps_done == self.plan.total_steps)
        if not math.isfinite(loss_sum):
            raise DivergedError(f"training diverged: the test loss is {loss_sum} after step {self.steps_done}")
        seconds = self.clock.epoch_train_seconds[-1]
        line = self.history.add_epoch(loss_sum / count, correct, count, seconds, self.clock.eval_seconds[-1])
        steps = self.plan.all_steps(line.epoch)
        timed = self.plan.images(max(steps.start, self.startup_end + 1), steps[-1])  # the first call counts as start-up
        for sink in self.sinks:
            sink.epoch(line, timed / seconds if timed > 0 and seconds > 0 else None)
        if self.checkpointer.every is not None:
            self._fetch()
            self.checkpointer.look(self.steps_done, evaluated=True)

    # --- Turns ---

    def _wait_for_turn(self) -> None:
        """Ends a turn, or the warm-up before the first one, and waits for the next.

        All processes of the run call it after the same step. If that step ends an epoch, it is before the evaluation,
        so that no iterator over an epoch's batches lives on during the wait, and the evaluation wakes up the threads.
        """
        self.clock.start_waiting()
        if self.timed_from is not None and self.steps_done > self.timed_from:
            self._end_turn(self.timed_from + 1)
        self.timed_from = None
        steps, seconds = self.steps_done, self.timeline.seconds["training"]
        trained = steps - self.waited_after[0]
        seconds_per_step = (seconds - self.waited_after[1]) / trained if trained else None
        self.waited_after = steps, seconds
        self.turn = self.turns.wait(steps, seconds_per_step, self.steps_per_call) or self.turn
        self.clock.end_waiting()
        if self.turn.timed_after == self.steps_done < self.turn.until:  # without steps that only wake up threads
            self._start_timing()

    def _start_timing(self) -> None:
        self.timed_from = self.steps_done
        self.clock.start_timing()

    def _end_turn(self, first_step: int) -> None:
        """Passes what a turn has measured, from `first_step` on, to the sinks."""
        images = self.plan.images(first_step, self.steps_done)
        self.timed_images += images
        self.timed_seconds += self.clock.turn_seconds
        if self.monitor is None:
            return
        line = TurnLine(
            kind="turn",
            cycle=self.turn.cycle,
            first_step=first_step,
            last_step=self.steps_done,
            images=images,
            seconds=self.clock.turn_seconds,
            ended=self.clock.waiting_since,
            own_load=self.monitor.latest.own,
            other_load=self.monitor.latest.other,
        )
        for sink in self.sinks:
            sink.turn(line)

    # --- States: for checkpoints and for audits ---

    @property
    def keeps_states(self) -> bool:
        """Whether any state of this training will be kept or compared."""
        return self.checkpointer.every is not None or bool(self.audited.steps) or self.config.num_shards > 1

    def offer_state(self, get_state: Callable[[int], TrainState]) -> None:
        """The loop calls it after each step and each evaluation, in all processes. Keeps the state if it is due.

        After the first call and after the last step, the replicas' weights are compared. Neither this nor an audit
        costs measured time, since the clock stands still. A checkpoint counts as training, as in any training.

        Args:
          get_state: number of steps -> the state after them; its arrays must not be changed later.

        Raises:
          StoppedAtCheckpoint: a signal has asked the run to end.
          FileError: a state could not be written.
        """
        compares = self.steps_done != self.compared_after and self.config.num_shards > 1
        compares = compares and self.steps_done in (self.startup_end, self.plan.total_steps)
        if self.audited.due or compares:
            self.clock.start_waiting()
            state = get_state(self.steps_done)
            if compares:
                self._compare_replicas(state)
            if self.audited.due:
                self.audited.keep(state)
            self.clock.end_waiting(timing=True)
        if self.checkpointer.due:
            self._save_checkpoint(get_state(self.steps_done))

    def _compare_replicas(self, state: TrainState) -> None:
        """Notes in which trained parameters the replicas have different values: in each process, and between them."""
        self.compared_after = state.step
        own = {"count": 1.0}
        for parameter in self.experiment.network.parameters:
            if parameter.trainable:
                digest = float(zlib.crc32(state.weights[parameter.name].tobytes()))
                # Not a number: then the sum is no number either, in every process.
                own[parameter.name] = math.nan if parameter.name in state.differ else digest
        wrong = names_that_differ(own, self.fetch(self.pending[-1:] or self.latest, [*own.values()])[1])
        if wrong and not self.replicas_differ:
            more = f" and {len(wrong) - 1} others" if wrong[1:] else ""
            self.replicas_differ = f"after step {state.step}, replicas have different weights in {wrong[0]}{more}"

    def _save_checkpoint(self, state: TrainState) -> None:
        """Writes a checkpoint while training continues; if a signal has asked the run to end, ends it after writing."""
        seconds = self.clock.seconds_in_epoch() if self.steps_done % self.plan.steps_per_epoch else 0.0
        checkpoint = self.history.checkpoint(self.implementation, self.experiment, seconds)
        self.checkpointer.write(checkpoint, self.history.losses, state)
        if self.checkpointer.signal and self.steps_done < self.plan.total_steps:
            self.checkpointer.wait()
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
        self,
        weights: Weights,
        packages: tuple[str, ...],
        peak_memory: int | None,
        skipped_steps: int | None,
    ) -> None:
        """Writes the trained weights in canonical layout, and passes the result to the sinks, which write and show it.

        Args:
          packages: those whose versions the result has.
          peak_memory: bytes that the devices' allocator held at most; None if unknown.
          skipped_steps: number of steps that `common.spec.update_rule.LossScaling` skipped; None without loss scaling.
        """
        measured = self._measured()
        if not self.writes:
            return
        self.checkpointer.wait()
        assert self.monitor is not None
        experiment, plan = self.experiment, self.plan
        names = {parameter.name for parameter in experiment.network.parameters}
        assert set(weights) == names, set(weights) ^ names
        write_safetensors(self.run_dir / WEIGHTS_FILE, weights, {TRAINED_ON: experiment.dataset.spec.model_dump_json()})
        if not self.timed_images:  # the run had no turns
            self.timed_images = plan.images(self.warmup_steps + 1, plan.total_steps)
            self.timed_seconds = self.clock.turn_seconds
        speed = self.timed_images / self.timed_seconds if self.timed_images else None
        images = plan.images(self.startup_end + 1, plan.total_steps)
        result = RunResult(
            schema_version=SCHEMA_VERSION,
            implementation=self.implementation,
            **facts.experiment_facts(experiment),
            num_steps=self.steps_done,
            skipped_steps=skipped_steps,
            replicas_differ=self.replicas_differ,
            **self.history.evaluation,
            resumed_from=plan.first_step - 1 if experiment.state else None,
            **facts.measurement_facts(self.clock, measured, self.monitor.energy.source, images, speed),
            warmup_steps=self.warmup_steps,
            device_peak_memory_bytes=peak_memory,
            device_name=self.device_name,
            code_sha256=self.code_sha256,
            **facts.of_process(experiment, packages),
        )
        for sink in self.sinks:
            sink.finish(result)

    def _measured(self) -> Measured:
        """Measurements of this node, or of all nodes; with one node, all unknown in a process that measures nothing."""
        own = Measured.of_node(self.monitor, self.timeline.first_pid).numbers() if self.monitor else NOTHING_MEASURED
        nodes = self.config.nodes
        return Measured.of_sums(self.fetch(self.latest, own)[1] if nodes > 1 else own, nodes)
