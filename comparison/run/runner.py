"""Runs programs on this machine, each in a process group, follows them, and ends those that take too long."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from common.implementations import backend_of, environment_of, folder_of
from common.platform.cli import to_arguments
from common.platform.errors import UserError, describe_signal
from common.platform.files import writing
from common.platform.fork_server import ForkedProcess, ForkServer
from common.platform.launch import without_launcher
from common.platform.machine import REPOSITORY, code_sha256
from common.record.audited_states import STEPS_VARIABLE
from common.record.results import METRICS_FILE, MetricsLine, parse_metrics
from comparison.run.load_meter import LoadMeter
from comparison.run.program import Program, RunEnd
from comparison.run.store import LOG_FILE, clear_unfinished

POLL_SECONDS = 0.05
# Between asking processes to end and killing them; with checkpoints, a run makes one more of them in this time.
GRACE_SECONDS, CHECKPOINT_SECONDS = 5.0, 25.0

Process = subprocess.Popen[bytes] | ForkedProcess
_servers: dict[str, tuple[object, ForkServer]] = {}  # implementation -> what its server depends on, the server


@dataclass(frozen=True)
class Follower:
    """Receives reports about programs.

    Attributes:
      ended: called as soon as a program has ended, whether it succeeded or failed.
      started: called when a program is about to start.
      see: called with each line of a program's metrics, soon after it was written.
    """

    ended: Callable[[Program, RunEnd], None]
    started: Callable[[Program], None] = lambda program: None
    see: Callable[[Program, MetricsLine], None] = lambda program, line: None


def run_programs(programs: Sequence[Program], timeout: float, follower: Follower, at_once: int = 1) -> None:
    """Runs programs to their ends, one after the other or, if they are not timed, several at the same time.

    No process of a program outlives this call, in whatever way the call ends. A program that was interrupted before
    continues from its latest checkpoint, if it has one.

    Args:
      timeout: seconds, after which a program is ended and counts as failed.
      at_once: number of programs that may run at the same time.
    """
    waiting, running = list(programs), list[RunningProgram]()
    if at_once > 1:
        begin_imports(programs)
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(RunningProgram(waiting.pop(0), timeout, follower))
                running[-1].start(forked=at_once > 1)
            for program in running:
                program.look()
            running = [program for program in running if program.process]
            time.sleep(POLL_SECONDS)
    finally:
        end_all(running)


class RunningProgram:
    """A program from its start to its end.

    Attributes:
      program: with the checkpoint that it resumes from, if it was interrupted before.
      process: None before the start and after the end.
    """

    def __init__(self, program: Program, timeout: float, follower: Follower) -> None:
        """Makes the run folder, and sets an older one aside."""
        with writing(program.run_dir):
            cut_off = clear_unfinished(program.run_dir)
            program.run_dir.mkdir(parents=True)
        self.program = program.model_copy(update={"config": program.config.replace(resume=cut_off)})
        self.process: Process | None = None
        self.follower, self.timeout = follower, timeout
        self._load, self._metrics_read = LoadMeter(), 0
        self._seconds_left, self._looked = timeout, time.monotonic()

    def start(self, forked: bool, **environment: str) -> None:
        """Starts the process; its output goes to the run folder's log.

        Args:
          forked: whether it may begin after the imports, as nobody measures its start.
          environment: further environment variables.
        """
        self.follower.started(self.program)
        try:
            self.process = self._start(forked, environment)
        except UserError as error:
            self.end(str(error))

    def look(self) -> None:
        """Passes on what is new in the metrics. Ends a program that has failed, has ended, or takes too long."""
        if self.process is None:
            return
        has_ended = self.has_ended()  # first: all that was written before the end is then read
        now, failure = time.monotonic(), None
        self._seconds_left, self._looked = self._seconds_left - (now - self._looked), now
        try:
            for line in self._new_metrics():
                self.see(line)
        except UserError as error:
            failure = str(error)
        if self._seconds_left < 0 and not has_ended:
            failure = failure or f"still running after --timeout {self.timeout:g} seconds"
        if failure or has_ended:
            self.end(failure)

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def forget_waiting(self) -> None:
        """The time since the last look does not count for the timeout."""
        self._looked = time.monotonic()

    def see(self, line: MetricsLine) -> None:
        self.follower.see(self.program, line)

    def end(self, failure: str | None) -> None:
        """Ends what is left of the program, and reports how it has ended."""
        if self.process:
            end_all([self])
            failure = failure or _exit_failure(self.process.wait())
            self.process = None
        self.follower.ended(self.program, self.how_ended(failure))

    def _start(self, forked: bool, environment: dict[str, str]) -> Process:
        """Raises UserError for an interpreter that can't be run."""
        program, log_file = self.program, self.program.run_dir / LOG_FILE
        if program.audited_steps:
            environment[STEPS_VARIABLE] = " ".join(map(str, program.audited_steps))
        command = [*program.starter, program.interpreter, "-m", folder_of(program.implementation)]
        arguments = to_arguments(program.config)
        with writing(log_file):
            log = open(log_file, "wb")  # noqa: SIM115 - closed below, here and in no other process
        with log:
            try:
                if forked and (server := _fork_server_of(program)):
                    is_ready = server.is_ready(self.timeout)
                    self._load = LoadMeter()  # anew: waiting for the imports is no part of the program
                    self.forget_waiting()
                    if is_ready and (process := server.start(arguments, environment, str(log_file))):
                        return process
                return subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=_environment(program.implementation) | environment,
                    start_new_session=True,  # a separate process group, which can be ended as a whole
                )
            except OSError as error:
                raise UserError(f"{command[0]} cannot be run: {error}") from None

    def how_ended(self, failure: str | None) -> RunEnd:
        return self._load.ended(self.program, failure)

    def _new_metrics(self) -> list[MetricsLine]:
        """The lines of the metrics since the last call. Raises UserError for lines that are not valid."""
        path = self.program.run_dir / METRICS_FILE
        if not path.exists():
            return []
        with open(path, "rb") as file:
            file.seek(self._metrics_read)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._metrics_read += len(whole)
        return list(parse_metrics(whole, path))


def begin_imports(programs: Sequence[Program]) -> None:
    """Starts the servers of programs that are going to be forked, so that they import side by side.

    Those that have ended are started again.
    """
    for name in [name for name, (_, server) in _servers.items() if server.has_ended()]:
        del _servers[name]
    for program in programs:
        with suppress(OSError):  # the program's start will report it
            _fork_server_of(program)


def _fork_server_of(program: Program) -> ForkServer | None:
    """The server for programs of this implementation; None if they must start anew.

    It runs the code that it has imported, in the environment in which it was started, so another one takes its place
    when either has changed.
    """
    if program.starter or program.config.accelerator != "cpu" or sys.platform != "linux":
        return None  # a GPU's driver doesn't survive a fork
    name = program.implementation
    environment = _environment(name)
    needed = program.interpreter, code_sha256(), environment
    if name not in _servers or _servers[name][0] != needed:
        _servers[name] = needed, ForkServer(program.interpreter, folder_of(name), backend_of(name), environment)
    return _servers[name][1]


def _environment(implementation: str) -> dict[str, str]:
    """The environment variables of an implementation's programs."""
    return {
        **without_launcher(os.environ),
        # They find this project's modules, and none that lie in the current folder.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        **environment_of(implementation),
    }


def _exit_failure(status: int) -> str | None:
    """An exit status in words; None for 0."""
    if status < 0:
        return f"ended by {describe_signal(-status)}"
    return f"exit status {status}" if status else None


def end_all(programs: Sequence[RunningProgram]) -> None:
    """Ends all that is left of the programs' process groups: asks the processes to end, and kills them later.

    An interrupt meanwhile, such as Ctrl-C, kills them at once. It is raised again when they have ended.
    """
    saves = any(program.program.config.checkpoint_every for program in programs)
    deadline = time.monotonic() + (CHECKPOINT_SECONDS if saves else GRACE_SECONDS)
    processes = [program.process for program in programs if program.process]
    left, interrupt = processes, None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            left = [process for process in left if _signal_group(process, number)]
            while number == signal.SIGTERM and left and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                left = [process for process in left if _signal_group(process, 0)]
        except KeyboardInterrupt as error:
            interrupt = error
    for process in processes:
        process.wait()
    if interrupt is not None:
        raise interrupt


def _signal_group(process: Process, number: int) -> bool:
    """Sends a signal to the process's group, or only looks with 0. Returns whether a process is left there."""
    process.poll()  # reaps the process itself, which otherwise would still count as running
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: not permitted where only a zombie is left
        return False
    return any(_is_alive(pid, process.pid) for pid in psutil.pids())


def _is_alive(pid: int, group: int) -> bool:
    """Whether a process of the group has not ended.

    Lightning's programs leave a child that has ended. In many containers, nobody ever waits for it.
    """
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False
