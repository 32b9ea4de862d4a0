"""Runs programs on this machine, each in a process of its own, and looks on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from common.platform.cli import to_arguments
from common.platform.errors import UserError, describe_signal
from common.platform.files import writing
from common.platform.launch import without_launcher
from common.platform.machine import REPOSITORY
from common.record.results import METRICS_FILE, MetricsLine, parse_metrics
from comparison.program import Ended, Program, now
from comparison.store import LOG_FILE, clear_unfinished

POLL_SECONDS = 0.1
# Between asking processes to end and ending them; with checkpoints, which one more is made of meanwhile.
GRACE_SECONDS, CHECKPOINT_SECONDS = 5.0, 25.0


def run_program(program: Program, timeout: float, look_on: Callable[[MetricsLine], None]) -> Ended:
    """Runs it to its end, and tells how that was.

    None of its processes outlives this call, however it ends. One that was cut off goes on from its latest checkpoint,
    if it has any.

    Args:
      timeout: seconds, after which it is ended and counts as failed.
      look_on: called with every line of the run's metrics, soon after it was written.
    """
    program = make_run_dir(program)
    started, load = now(), LoadMeter()
    failure = None
    try:
        run_process(program, timeout, look_on)
    except UserError as error:
        failure = str(error)
    return load.ended(program, started, failure)


def make_run_dir(program: Program) -> Program:
    """Makes its run folder, what was there set aside; the program, to go on from there if it can."""
    with writing(program.run_dir):
        cut_off = clear_unfinished(program.run_dir)
        program.run_dir.mkdir(parents=True)
    return program.model_copy(update={"config": program.config.replace(resume=cut_off)})


class LoadMeter:
    """How busy the machine is with something else, from now until a program has ended."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def ended(self, program: Program, started: str, failure: str | None) -> Ended:
        seconds = time.monotonic() - self._started
        other = _busy_seconds() - self._busy - (_own_seconds() - self._own)
        share = None if program.starter else max(0.0, other / seconds / (os.cpu_count() or 1))
        return Ended(started=started, process_seconds=seconds, other_load=share, failure=failure)


def _busy_seconds() -> float:
    """Of all cores since the machine was started; stolen time, which other tenants took, counts as busy."""
    times = psutil.cpu_times()
    # Guest time is a part of user time already (proc(5)).
    return float(sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")))


def _own_seconds() -> float:
    """Of this process and all its children that have ended and been waited for, theirs among them."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_process(program: Program, timeout: float, look_on: Callable[[MetricsLine], None]) -> None:
    """Runs an implementation to its end, its output in the run folder's log.

    Raises UserError for a run that can't be started, doesn't end in time or ends with another status than 0.
    """
    process = _start(program)
    try:
        _watch(process, MetricsTail(program.run_dir), timeout, look_on)
    finally:
        _end_group(process, CHECKPOINT_SECONDS if program.config.checkpoint_every else GRACE_SECONDS)
    if failure := _failure(process.returncode):
        raise UserError(failure)


# With its process, when that is to be ended, when it was started, and what the machine was busy with.
Running = tuple[Program, "subprocess.Popen[bytes]", float, str, LoadMeter]


def run_side_by_side(
    programs: Sequence[Program], at_once: int, timeout: float, ended: Callable[[Program, Ended], None]
) -> None:
    """Runs programs to their ends, up to `at_once` at a time; for what is not timed.

    Args:
      ended: called as soon as one has ended.
    """
    waiting, running = list(programs), list[Running]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                program, started, load = make_run_dir(waiting.pop(0)), now(), LoadMeter()
                try:
                    running.append((program, _start(program), time.monotonic() + timeout, started, load))
                except UserError as error:
                    ended(program, Ended.unknown(str(error)))
            for one in list(running):
                program, process, deadline, started, load = one
                late = time.monotonic() > deadline
                if process.poll() is None and not late:
                    continue
                _end_group(process)
                running.remove(one)
                ended(program, load.ended(program, started, _late(timeout) if late else _failure(process.returncode)))
            time.sleep(POLL_SECONDS / 2)
    finally:
        interrupt = None
        for _, process, *_ in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # all at once, and then each to its end
        for _, process, *_ in running:
            try:
                _end_group(process)
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


def _start(program: Program) -> "subprocess.Popen[bytes]":
    """Raises UserError for an interpreter that can't be run."""
    command = [*program.starter, program.interpreter, "-m", f"{program.implementation}_impl"]
    log_file = program.run_dir / LOG_FILE
    with writing(log_file):
        log = open(log_file, "wb")  # noqa: SIM115 - closed below, here and in no other process
    with log:
        try:
            return subprocess.Popen(
                [*command, *to_arguments(program.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**with_our_code(without_launcher(os.environ)), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # a group of its own, which can be ended as a whole
            )
        except OSError as error:
            raise UserError(f"{command[0]} cannot be run: {error}") from None


def with_our_code(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which Python finds this project's modules."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path}


def _failure(status: int) -> str | None:
    """What an exit status says; None for 0."""
    if status < 0:
        return f"ended by {describe_signal(-status)}"
    return f"exit status {status}" if status else None


def _late(timeout: float) -> str:
    return f"still running after --timeout {timeout:g} seconds"


class MetricsTail:
    """What is new in the metrics of a run."""

    def __init__(self, run_dir: Path) -> None:
        self._path, self._offset = run_dir / METRICS_FILE, 0

    def read(self) -> list[MetricsLine]:
        """The lines since the last time. Raises UserError for what is no metrics."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:  # of a job that was begun anew
                self._offset = 0
            file.seek(self._offset)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(parse_metrics(whole, self._path))


def _watch(
    process: "subprocess.Popen[bytes]", metrics: MetricsTail, timeout: float, look_on: Callable[[MetricsLine], None]
) -> None:
    """Returns when the process has ended; raises UserError when it has not in time, or writes what is no metrics."""
    deadline = time.monotonic() + timeout
    while True:
        ended = process.poll() is not None  # asked first: what was written before the end is then read below
        for line in metrics.read():
            look_on(line)
        if ended:
            return
        if time.monotonic() > deadline:
            raise UserError(_late(timeout))
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _end_group(process: "subprocess.Popen[bytes]", grace: float = GRACE_SECONDS) -> None:
    """Ends all that is left of the process's group: asked first, then killed.

    Being interrupted meanwhile hurries it, and is passed on when the group has ended.
    """
    deadline = time.monotonic() + grace
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
