"""Runs programs on this machine, each in a process group, follows them, and ends those that take too long."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from common.implementations import environment_of, folder_of
from common.platform.cli import to_arguments
from common.platform.errors import UserError, describe_signal
from common.platform.files import writing
from common.platform.launch import without_launcher
from common.platform.machine import REPOSITORY
from common.record.audited_states import STEPS_VARIABLE
from common.record.results import METRICS_FILE, MetricsLine, parse_metrics
from comparison.run.load_meter import LoadMeter
from comparison.run.program import Ended, Program
from comparison.run.store import LOG_FILE, clear_unfinished

POLL_SECONDS = 0.1
# Between asking processes to end and killing them; with checkpoints, a run makes one more of them in this time.
GRACE_SECONDS, CHECKPOINT_SECONDS = 5.0, 25.0


def run_program(program: Program, timeout: float, look_on: Callable[[MetricsLine], None]) -> Ended:
    """Runs a program to its end, and returns how it has ended.

    No process of the program outlives this call, in whatever way the call ends. A program that was interrupted before
    continues from its latest checkpoint, if it has one.

    Args:
      timeout: seconds, after which the program is ended and counts as failed.
      look_on: called with every line of the run's metrics, soon after it was written.
    """
    program = make_run_dir(program)
    load, failure = LoadMeter(), None
    try:
        run_process(program, timeout, look_on)
    except UserError as error:
        failure = str(error)
    return load.ended(program, failure)


def make_run_dir(program: Program) -> Program:
    """Makes the run folder and sets an older one aside. The program returned resumes from the older one if it can."""
    with writing(program.run_dir):
        cut_off = clear_unfinished(program.run_dir)
        program.run_dir.mkdir(parents=True)
    return program.model_copy(update={"config": program.config.replace(resume=cut_off)})


def run_process(program: Program, timeout: float, look_on: Callable[[MetricsLine], None]) -> None:
    """Runs an implementation to its end; its output goes to the run folder's log.

    Raises UserError for a run that can't be started, doesn't end in time or ends with another status than 0.
    """
    process = start(program)
    try:
        _watch(process, MetricsTail(program.run_dir), timeout, look_on)
    finally:
        end_process_group(process, CHECKPOINT_SECONDS if program.config.checkpoint_every else GRACE_SECONDS)
    if failure := exit_failure(process.returncode):
        raise UserError(failure)


# A program, its process, how long it may still take, and the meter of the machine's load.
Running = tuple[Program, "subprocess.Popen[bytes]", "TimeLimit", LoadMeter]


def run_side_by_side(
    programs: Sequence[Program], at_once: int, timeout: float, ended: Callable[[Program, Ended], None]
) -> None:
    """Runs programs to their ends, up to `at_once` at the same time; for programs that are not timed.

    Args:
      ended: called as soon as a program has ended.
    """
    waiting, running = list(programs), list[Running]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                program, load = make_run_dir(waiting.pop(0)), LoadMeter()
                try:
                    running.append((program, start(program), TimeLimit(timeout), load))
                except UserError as error:
                    ended(program, Ended.unknown(str(error)))
            for entry in list(running):
                program, process, patience, load = entry
                late = patience.is_over()
                if process.poll() is None and not late:
                    continue
                end_process_group(process)
                running.remove(entry)
                ended(
                    program, load.ended(program, timeout_message(timeout) if late else exit_failure(process.returncode))
                )
            time.sleep(POLL_SECONDS / 2)
    finally:
        end_process_groups([process for _, process, *_ in running])


def start(program: Program, **environment: str) -> "subprocess.Popen[bytes]":
    """Starts the process of a program. Raises UserError for an interpreter that can't be run.

    Args:
      environment: further environment variables.
    """
    command = [*program.starter, program.interpreter, "-m", folder_of(program.implementation)]
    if program.audited_steps:
        environment[STEPS_VARIABLE] = " ".join(map(str, program.audited_steps))
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
                env={
                    **with_our_code(without_launcher(os.environ)),
                    "PYTHONUNBUFFERED": "1",
                    **environment_of(program.implementation),
                    **environment,
                },
                start_new_session=True,  # a separate process group, which can be ended as a whole
            )
        except OSError as error:
            raise UserError(f"{command[0]} cannot be run: {error}") from None


def with_our_code(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which Python finds this project's modules, and none that lie in the current folder."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY), environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def exit_failure(status: int) -> str | None:
    """An exit status in words; None for 0."""
    if status < 0:
        return f"ended by {describe_signal(-status)}"
    return f"exit status {status}" if status else None


def timeout_message(timeout: float) -> str:
    return f"still running after --timeout {timeout:g} seconds"


class TimeLimit:
    """The seconds that a program may take.

    Attributes:
      seconds: what is left of them.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._looked = seconds, time.monotonic()

    def begin(self) -> None:
        """The time since the last look does not count."""
        self._looked = time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        self.seconds -= now - self._looked
        self._looked = now
        return self.seconds < 0


class MetricsTail:
    """Reads what is new in the metrics of a run."""

    def __init__(self, run_dir: Path) -> None:
        self._path, self._offset = run_dir / METRICS_FILE, 0

    def read(self) -> list[MetricsLine]:
        """The lines since the last call. Raises UserError for lines that are not valid."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:  # a new, shorter file: the job was restarted
                self._offset = 0
            file.seek(self._offset)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(parse_metrics(whole, self._path))


def _watch(
    process: "subprocess.Popen[bytes]",
    metrics: MetricsTail,
    timeout: float,
    look_on: Callable[[MetricsLine], None],
) -> None:
    """Waits until the process has ended. Raises UserError if it takes too long, or if its metrics are not valid."""
    patience = TimeLimit(timeout)
    while True:
        ended = process.poll() is not None  # checked first: all that was written before the end is then read below
        for line in metrics.read():
            look_on(line)
        if ended:
            return
        if patience.is_over():
            raise UserError(timeout_message(timeout))
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def end_process_groups(processes: Sequence["subprocess.Popen[bytes]"], grace: float = GRACE_SECONDS) -> None:
    """Ends several groups at the same time; see `end_process_group`."""
    interrupt = None
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)  # asks all at once; below it waits for each
    for process in processes:
        try:
            end_process_group(process, grace)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def end_process_group(process: "subprocess.Popen[bytes]", grace: float = GRACE_SECONDS) -> None:
    """Ends all that is left of the process's group: asks the processes to end, and kills them later.

    An interrupt meanwhile, such as Ctrl-C, kills them at once. It is raised again when the group has ended.
    """
    deadline = time.monotonic() + grace
    interrupt = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            while number == signal.SIGTERM and time.monotonic() < deadline:
                process.poll()  # reaps the process itself, which otherwise would still count as running
                os.killpg(process.pid, 0)
                time.sleep(POLL_SECONDS / 2)
        except (ProcessLookupError, PermissionError):  # macOS: not permitted where only a zombie is left
            break
        except KeyboardInterrupt as error:
            interrupt = error
    process.wait()
    if interrupt is not None:
        raise interrupt
