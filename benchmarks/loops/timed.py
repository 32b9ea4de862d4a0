"""Times the steps of programs that have no recorder."""

import os
import time

from common.record.monitor import Monitor
from common.record.recorder import WARMUP_STEPS
from common.record.results import METRICS_FILE, PlanLine, TurnLine
from common.record.turns import Turn, Turns
from common.spec.options import TrainConfig


class TimedSteps:
    """Takes turns on the CPU as the recorder does, in one epoch of `config.max_steps` full batches."""

    def __init__(self, config: TrainConfig) -> None:
        assert config.run_dir is not None
        self.config, self.path = config, config.run_dir / METRICS_FILE
        self.turns, self.turn, self.monitor = Turns(), Turn(0, WARMUP_STEPS, WARMUP_STEPS), Monitor(os.getpid(), 0)
        self.done = 0
        self._write(
            PlanLine(
                kind="plan",
                implementation="benchmarks",
                total_steps=config.max_steps,
                steps_per_epoch=config.max_steps,
                num_epochs=1,
            )
        )

    def step(self) -> None:
        """Called after each step; waits after the last one of a turn."""
        self.done += 1
        if self.done in (1, self.turn.timed_after) and self.done < self.turn.until:
            self.timed_from, self.start = self.done, time.perf_counter()
        if not self.turns.are_taken or self.done < self.turn.until:
            return
        now = time.perf_counter()
        self.monitor.pause()
        steps, seconds = self.done - self.timed_from, now - self.start
        if self.turn.cycle:
            self._write(
                TurnLine(
                    kind="turn",
                    cycle=self.turn.cycle,
                    first_step=self.timed_from + 1,
                    last_step=self.done,
                    images=steps * self.config.batch_size,
                    seconds=seconds,
                    ended=now,
                    own_load=self.monitor.latest.own,
                    other_load=self.monitor.latest.other,
                )
            )
        self.turn = self.turns.wait(self.done, seconds / steps, 1) or self.turn
        self.monitor.resume()

    def _write(self, line: PlanLine | TurnLine) -> None:
        with open(self.path, "a") as file:
            file.write(line.model_dump_json() + "\n")
