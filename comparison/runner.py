"""Runs implementations, each in a process of its own, one after the other, and looks on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from common.platform.cli import to_arguments
from common.platform.errors import UserError, describe_signal
from common.platform.files import write_model, writing
from common.platform.launch import without_launcher
from common.platform.machine import REPOSITORY
from common.record.results import METRICS_FILE, MetricsLine, parse_metrics
from common.spec.options import TrainConfig
from comparison.integrity import files_sha256
from comparison.jobs import Job
from comparison.record import RECORD_FILE, Record
from comparison.store import LOG_FILE, Run, clear_unfinished, load_run

POLL_SECONDS = 0.1
GRACE_SECONDS = 5  # between asking processes to end and ending them


def run_job(
    folder: Path, job: Job, session: int, interpreter: str, timeout: float, look_on: Callable[[MetricsLine], None]
) -> Run:
    """Runs `<interpreter> -m <implementation>_impl` to its end, and records how that was.

    A run has succeeded if and only if it exited with 0 and its files are valid. None of its processes
    outlives this call, however it ends. One that was cut off goes on from its latest checkpoint, if it has any.

    Args:
      folder: of the comparison.
      session: see `Record`.
      timeout: seconds, after which the run is ended and counts as failed.
      look_on: called with every line of the run's metrics, soon after it was written.
    """
    run_dir = folder.absolute() / job.path
    with writing(run_dir):
        cut_off = clear_unfinished(run_dir)
        run_dir.mkdir(parents=True)
    started, load = datetime.now(UTC), LoadMeter()
    failure = None
    try:
        config = job.config.replace(run_dir=run_dir, resume=cut_off)
        run_process(job.implementation, interpreter, config, run_dir, timeout, look_on)
    except UserError as error:
        failure = str(error)
    process_seconds, other_load = load.stop()
    record = Record(
        schema_version=4,
        **Record.identity_of(job),
        session=session,
        started=started.isoformat(timespec="seconds"),
        process_seconds=process_seconds,
        other_load=other_load,
        failure=failure,
    )
    run = load_run(run_dir, record)
    if run.result:
        run = replace(run, record=run.record.model_copy(update={"files_sha256": files_sha256(run_dir)}))
    write_model(run_dir / RECORD_FILE, run.record)
    return run


class LoadMeter:
    """How busy the machine is with something else, from now until `stop`."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def stop(self) -> tuple[float, float]:
        """Seconds passed, and the share of all cores that neither this program nor its children used."""
        seconds = time.monotonic() - self._started
        other = _busy_seconds() - self._busy - (_own_seconds() - self._own)
        return seconds, max(0.0, other / seconds / (os.cpu_count() or 1))


def _busy_seconds() -> float:
    """Of all cores since the machine was started; stolen time, which other tenants took, counts as busy."""
    times = psutil.cpu_times()
    # Guest time is a part of user time already (proc(5)).
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


def _own_seconds() -> float:
    """Of this process and all its children that have ended and been waited for, theirs among them."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


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
    process = _start(name, interpreter, config, run_dir)
    try:
        _watch(process, run_dir / METRICS_FILE, timeout, look_on)
    finally:
        _end_group(process)
    if failure := _failure(process.returncode):
        raise UserError(failure)


Program = tuple[str, str, TrainConfig, Path]  # implementation, interpreter, configuration and run folder


def run_side_by_side(
    programs: Sequence[Program], at_once: int, timeout: float, ended: Callable[[Path, str | None], None]
) -> None:
    """Runs implementations to their ends, up to `at_once` at a time; for what is not timed.

    Args:
      ended: called as soon as a run has ended, with its folder and why it failed; None where it exited with 0.
    """
    waiting, running = list(programs), dict[Path, tuple["subprocess.Popen[bytes]", float]]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, interpreter, config, run_dir = waiting.pop(0)
                try:
                    process = _start(name, interpreter, config, run_dir)
                    running[run_dir] = process, time.monotonic() + timeout
                except UserError as error:
                    ended(run_dir, str(error))
            for run_dir, (process, deadline) in list(running.items()):
                late = time.monotonic() > deadline
                if process.poll() is None and not late:
                    continue
                _end_group(process)
                del running[run_dir]
                ended(run_dir, _late(timeout) if late else _failure(process.returncode))
            time.sleep(POLL_SECONDS / 2)
    finally:
        interrupt = None
        for process, _ in running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # all at once, and then each to its end
        for process, _ in running.values():
            try:
                _end_group(process)
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _start(name: str, interpreter: str, config: TrainConfig, run_dir: Path) -> "subprocess.Popen[bytes]":
    """Raises UserError for an interpreter that can't be run."""
    command = [interpreter, "-m", f"{name}_impl", *to_arguments(config)]
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    with writing(run_dir / LOG_FILE):
        log = open(run_dir / LOG_FILE, "wb")  # noqa: SIM115 - closed below, here and in no other process
    with log:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**without_launcher(os.environ), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a group of its own, which can be ended as a whole
            )
        except OSError as error:
            raise UserError(f"{interpreter} cannot be run: {error}") from None


def _failure(status: int) -> str | None:
    """What an exit status says; None for 0."""
    if status < 0:
        return f"ended by {describe_signal(-status)}"
    return f"exit status {status}" if status else None


def _late(timeout: float) -> str:
    return f"still running after --timeout {timeout:g} seconds"


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
            raise UserError(_late(timeout))
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
