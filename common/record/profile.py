"""`--profile N`: the framework's own profiler measures N steps after warm-up; results are grouped by operation."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import BaseModel

from common.platform.errors import UserError
from common.platform.files import Count, Seconds, write_json_model, writing
from common.spec.batches import Plan

PROFILE_FILE = "profile.json"
PROFILE_DIR = "profile"  # in the run's folder: the framework's own files, and the trace
TRACE_FILE = "trace.json.gz"  # in Chrome's trace format, which Perfetto opens
SHOWN_OPERATIONS = 10
# Collective operations as the frameworks name them: c10d::allreduce_, gloo:all_reduce, ncclDevKernel_AllReduce_Sum...,
# CollectiveReduceV2, NcclAllReduce.
COMMUNICATION_OPERATIONS = re.compile(
    r"nccl|gloo|c10d|collective|all_?reduce|all_?gather|reduce_?scatter|broadcast_?coalesced|_allgather_base",
    re.IGNORECASE,
)


class ProfiledOperation(BaseModel, frozen=True, extra="forbid"):
    """All calls of an operation in the profiled steps."""

    name: str  # the framework's name for it, such as `aten::addmm` or `Conv2D`
    calls: Count
    seconds: Seconds  # its own time, without the operations that it called; summed over threads or streams

    @property
    def kind(self) -> Literal["communication", "computation"]:
        return "communication" if COMMUNICATION_OPERATIONS.search(self.name) else "computation"


class Profile(BaseModel, frozen=True, extra="forbid"):
    """The content of `profile.json`."""

    schema_version: Literal[1] = 1
    implementation: str
    first_step: Count  # number of the first profiled step, from 1
    num_steps: Count
    wall_seconds: Seconds  # of all profiled steps
    computation_seconds: Seconds  # of all such operations, summed over threads or streams
    communication_seconds: Seconds
    operations: list[ProfiledOperation]  # the costliest ones, in descending order

    @classmethod
    def make(
        cls, implementation: str, first_step: int, num_steps: int, wall: float, operations: Iterable[ProfiledOperation]
    ) -> Self:
        by_seconds = sorted(operations, key=lambda operation: -operation.seconds)
        seconds = {"computation_seconds": 0.0, "communication_seconds": 0.0}
        for operation in by_seconds:
            seconds[f"{operation.kind}_seconds"] += operation.seconds
        steps = {"first_step": first_step, "num_steps": num_steps, "wall_seconds": wall}
        return cls(implementation=implementation, operations=by_seconds[:SHOWN_OPERATIONS], **steps, **seconds)

    def milliseconds(self, seconds: float) -> float:
        """Milliseconds per step."""
        return 1e3 * seconds / self.num_steps

    def share(self, seconds: float) -> float:
        """Share of the time of all operations, 0 to 1."""
        whole = self.computation_seconds + self.communication_seconds
        return seconds / whole if whole else 0.0

    @property
    def title(self) -> str:
        """The line that is shown above the operations."""
        last = self.first_step + self.num_steps - 1
        return (
            f"steps {self.first_step} to {last}, {self.milliseconds(self.wall_seconds):.2f} ms each; operations:"
            f" computation {self.milliseconds(self.computation_seconds):.2f} ms,"
            f" communication {self.milliseconds(self.communication_seconds):.2f} ms a step"
        )

    @property
    def lines(self) -> list[str]:
        """The profile as the terminal shows it."""
        operations = [
            f"{self.share(operation.seconds):6.1%} {self.milliseconds(operation.seconds):9.3f} ms"
            f" {operation.calls / self.num_steps:6.1f} calls  {operation.name[:45]}"
            for operation in self.operations
        ]
        return [f"profile: {self.title}", *operations]


class Profiler(Protocol):
    """The framework's own profiler; each implementation has one in profiling.py."""

    def start(self, folder: Path) -> None:
        """Called before the first profiled step; `folder` exists and is empty."""

    def stop(self) -> Sequence[ProfiledOperation]:
        """Called after the last profiled step, when the device is idle; leaves a trace in the folder."""


def profiled_steps(plan: Plan, warmup_steps: int, number: int) -> range:
    """The steps to be profiled: the first `number` steps after warm-up in one epoch, without an evaluation in between.

    Raises UserError if no epoch has that many steps after warm-up.
    """
    for epoch in range(plan.epoch_of(plan.first_step), plan.num_epochs + 1):
        steps = plan.all_steps(epoch)
        first = max(steps.start, warmup_steps + 1)
        if first + number <= steps.stop:
            return range(first, first + number)
    most = max(plan.steps_per_epoch if plan.num_epochs > 1 else 0, plan.all_steps(1).stop - 1 - warmup_steps)
    raise UserError(f"--profile {number}: an epoch has {most} steps after warm-up; profile as many at most")


class ProfileTaker:
    """Starts and stops the profiler at the right steps; does nothing if none are to be profiled.

    Args:
      profiler: None in processes that don't write.
      number: how many steps are to be profiled; None for none.
    """

    def __init__(self, profiler: Profiler | None, plan: Plan, warmup_steps: int, number: int | None) -> None:
        self._profiler = profiler
        self._steps = profiled_steps(plan, warmup_steps, number) if number else range(0)
        self._began: float | None = None

    def stops(self) -> tuple[int, ...]:
        """The steps after which `look` must be called."""
        return (self._steps.start - 1, self._steps.stop - 1) if self._steps else ()

    def look(self, done: int, run_dir: Path, implementation: str, synchronize: Callable[[], None]) -> None:
        """Called after step `done`. If a call of several steps ends later than asked for, all of them are profiled."""
        if not self._steps or self._profiler is None or done < self._steps.start - 1:
            return
        if self._began is None:
            folder = run_dir / PROFILE_DIR
            with writing(folder):
                folder.mkdir(exist_ok=True)
            synchronize()
            self._profiler.start(folder)
            self._first, self._began = done + 1, time.perf_counter()
        elif done >= self._steps.stop - 1:
            synchronize()
            wall = time.perf_counter() - self._began
            operations = self._profiler.stop()
            profile = Profile.make(implementation, self._first, done - self._first + 1, wall, operations)
            write_json_model(run_dir / PROFILE_FILE, profile)
            self._steps = range(0)
