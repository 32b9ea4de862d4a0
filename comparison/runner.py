"""Runs implementations, each in a process of its own, one after the other, and looks on."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.cli import to_arguments
from common.config import TrainConfig
from common.errors import UserError
from common.machine import REPOSITORY
from common.results import METRICS_FILE, RunResult, read_result, read_step_losses

LOG_FILE = "log.txt"
POLL_SECONDS = 0.1
GRACE_SECONDS = 5  # between asking processes to end and ending them


@dataclass(frozen=True)
class Outcome:
    """What became of one implementation.

    Attributes:
      result: None where the run failed.
      losses: of every step; empty where the run failed.
      failure: one line on why there is no result; None where there is one.
    """

    implementation: str
    run_dir: Path
    result: RunResult | None = None
    losses: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def log(self) -> Path:
        return self.run_dir / LOG_FILE

    def last_log_lines(self, count: int = 5) -> list[str]:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [line for line in lines if line.strip()][-count:]


def run_implementation(
    name: str, interpreter: str, config: TrainConfig, timeout: float, look_on: Callable[[dict[str, Any] | None], None]
) -> Outcome:
    """Runs `<interpreter> -m <name>_impl` to its end.

    A run has succeeded if and only if it exited with 0 and its `result.json` is valid. None of its
    processes outlives this call, however it ends.

    Args:
      timeout: seconds, after which the run is ended and counts as failed.
      look_on: called with every new line of the run's metrics, and with None at least every so often.
    """
    run_dir = config.run_dir
    assert run_dir is not None
    run_dir.mkdir(parents=True)
    command = [interpreter, "-m", f"{name}_impl", *to_arguments(config)]
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with open(run_dir / LOG_FILE, "w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # a group of its own, which can be ended as a whole
        )
    metrics = _NewLines(run_dir / METRICS_FILE)
    deadline = time.monotonic() + timeout
    failure = None
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                failure = f"still running after --timeout {timeout:g} seconds"
                break
            look_on(None)
            for line in metrics.read():
                look_on(line)
            try:
                process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        for line in metrics.read():
            look_on(line)
    finally:
        _end_group(process)
    if failure is None and process.returncode != 0:
        failure = f"exit status {process.returncode}"
        if process.returncode < 0:
            failure = f"ended by signal {-process.returncode} ({signal.Signals(-process.returncode).name})"
    if failure is not None:
        return Outcome(name, run_dir, failure=failure)
    try:
        result, losses = read_result(run_dir), read_step_losses(run_dir)
        if len(losses) != result.num_steps:
            raise UserError(f"{run_dir / METRICS_FILE}: {len(losses)} steps, the result says {result.num_steps}")
        return Outcome(name, run_dir, result, losses)
    except UserError as error:
        return Outcome(name, run_dir, failure=f"no valid result: {error}")


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends all that is left of the process's group: asked first, then killed."""
    deadline = time.monotonic() + GRACE_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            while number == signal.SIGTERM and time.monotonic() < deadline:
                process.poll()  # takes leave of the process itself, which would count as there until then
                os.killpg(process.pid, 0)
                time.sleep(POLL_SECONDS / 2)
        except (ProcessLookupError, PermissionError):  # macOS: not permitted where only a zombie is left
            break
    process.wait()


class _NewLines:
    """The whole lines that a growing file of JSON lines has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                whole, line_break, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self.offset += len(whole) + len(line_break)
        return [json.loads(line) for line in whole.split(b"\n") if line]
