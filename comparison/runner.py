"""Runs implementations, each in a process of its own, one after the other, and looks on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from common.cli import to_arguments
from common.config import TrainConfig
from common.errors import UserError
from common.machine import REPOSITORY
from common.results import METRICS_FILE, MetricsLine, RunResult, parse_metrics, read_result, read_step_losses

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
    name: str, interpreter: str, config: TrainConfig, timeout: float, look_on: Callable[[MetricsLine], None]
) -> Outcome:
    """Runs `<interpreter> -m <name>_impl` to its end.

    A run has succeeded if and only if it exited with 0 and its files are valid. None of its processes
    outlives this call, however it ends.

    Args:
      timeout: seconds, after which the run is ended and counts as failed.
      look_on: called with every line of the run's metrics, soon after it was written.
    """
    run_dir = config.run_dir
    assert run_dir is not None
    run_dir.mkdir(parents=True)
    try:
        run_process(name, interpreter, config, run_dir, timeout, look_on)
        result, losses = read_result(run_dir), read_step_losses(run_dir)
        if len(losses) != result.num_steps:
            raise UserError(f"{run_dir / METRICS_FILE}: {len(losses)} steps, the result says {result.num_steps}")
        return Outcome(name, run_dir, result, losses)
    except UserError as error:
        return Outcome(name, run_dir, failure=str(error))


def run_process(
    name: str,
    interpreter: str,
    config: TrainConfig,
    run_dir: Path,
    timeout: float,
    look_on: Callable[[MetricsLine], None],
) -> None:
    """Runs an implementation to its end, its output in the run folder's log.

    Raises UserError for a run that can't be started, doesn't end in time or ends with another status than 0.
    """
    command = [interpreter, "-m", f"{name}_impl", *to_arguments(config)]
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with open(run_dir / LOG_FILE, "w") as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a group of its own, which can be ended as a whole
            )
        except OSError as error:
            raise UserError(f"{interpreter} cannot be run: {error}") from None
        try:
            _watch(process, run_dir / METRICS_FILE, timeout, look_on)
        finally:
            _end_group(process)
    status = process.returncode
    if status < 0:
        raise UserError(f"ended by signal {-status} ({signal.Signals(-status).name})")
    if status:
        raise UserError(f"exit status {status}")


def _watch(
    process: "subprocess.Popen[bytes]", metrics: Path, timeout: float, look_on: Callable[[MetricsLine], None]
) -> None:
    """Returns when the process has ended; raises UserError when it has not in time, or writes what is no metrics."""
    deadline = time.monotonic() + timeout
    offset = 0
    while True:
        ended = process.poll() is not None  # asked first: what was written before the end is then read below
        whole = b""
        if metrics.exists():
            with open(metrics, "rb") as file:
                file.seek(offset)
                whole = file.read()
            whole = whole[: whole.rfind(b"\n") + 1]
            offset += len(whole)
        for line in parse_metrics(whole, metrics):
            look_on(line)
        if ended:
            return
        if time.monotonic() > deadline:
            raise UserError(f"still running after --timeout {timeout:g} seconds")
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends all that is left of the process's group: asked first, then killed.

    Being interrupted meanwhile hurries it, and is passed on when the group has ended.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    interrupt = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            while number == signal.SIGTERM and time.monotonic() < deadline:
                process.poll()  # takes leave of the process itself, which would count as there until then
                os.killpg(process.pid, 0)
                time.sleep(POLL_SECONDS / 2)
        except (ProcessLookupError, PermissionError):  # macOS: not permitted where only a zombie is left
            break
        except KeyboardInterrupt as error:
            interrupt = error
    process.wait()
    if interrupt is not None:
        raise interrupt
