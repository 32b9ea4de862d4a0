"""Starts processes of an implementation that need not import its framework: a server has, and forks itself.

A framework's imports take several seconds, as long as the training in a short comparison. The server reads requests
from its standard input, a line of JSON each with a number, and answers each with its number and the answer, after a
first line that says that it has imported everything. It ends when its standard input does.
"""

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from common.platform.ending import STOP_SIGNALS, end_with_parent, end_with_starter, exit_now, take_signals
from common.platform.launch import Launch

FORKED_VARIABLE = "FORKED_AFTER_IMPORTS"  # set in the processes that a server starts
WAIT_SECONDS = 0.02  # between two looks at a process that is waited for


class ForkServer:
    """The client's side of a server, which is a process of its own.

    It ends when nothing refers to this object or to one of its processes any more.

    Args:
      interpreter: path of the Python interpreter in whose environment the framework is installed.
      folder: the implementation's package, such as `pt_impl`; `backend`: its module that imports the framework.
      environment: the variables of the server and of the processes that it starts.
    """

    def __init__(self, interpreter: str, folder: str, backend: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [interpreter, "-m", "common.platform.fork_server", folder, backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the client, which ends what it has started
        )
        self._imported, self._asked = False, 0
        self.end = weakref.finalize(self, _end, self._process)

    def is_ready(self, timeout: float) -> bool:
        """Waits for the imports. False if they have failed or take longer than `timeout` seconds.

        A program that starts anew will show why.
        """
        assert self._process.stdout
        if not self._imported and not select.select([self._process.stdout], [], [], timeout)[0]:
            self._process.kill()
        try:
            self._imported = self._imported or self._answer(0)
        except EOFError:
            return False
        return True

    def start(self, arguments: list[str], environment: Mapping[str, str], log_file: str) -> "ForkedProcess | None":
        """Starts `python -m FOLDER ARGUMENTS`, in a process group of its own, with its output in a file.

        Args:
          environment: further variables.

        Returns None if the server has ended.
        """
        try:
            return ForkedProcess(self, self._ask(arguments=arguments, environment=environment, log_file=log_file))
        except EOFError:
            return None
        except BaseException:  # such as Ctrl-C
            self._process.kill()  # with its processes: nobody would know the new one
            raise

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def exit_status(self, pid: int) -> int | None:
        """The exit status of a process or, if a signal has ended it, minus the signal's number; None while it runs."""
        try:
            status: int | None = self._ask(pid=pid)
        except EOFError:
            return -signal.SIGKILL  # its processes end with the server
        return status

    def _ask(self, **request: Any) -> Any:
        """The server's answer. Raises EOFError if the server has ended."""
        assert self._process.stdin
        self._asked += 1
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([self._asked, request]).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer(self._asked)

    def _answer(self, number: int) -> Any:
        """The answer to a request. Skips those that an interrupt has left unread."""
        assert self._process.stdout
        while line := self._process.stdout.readline():
            answers, answer = json.loads(line)
            if answers == number:
                return answer
        self._process.wait()
        raise EOFError


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError), process:
        process.kill()


class ForkedProcess:
    """A process that a server has started, with those parts of `subprocess.Popen` that are needed."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._status: int | None = None  # its exit status, once it has ended

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._server.exit_status(self.pid)
        return self._status

    def wait(self) -> int:
        while (status := self.poll()) is None:
            time.sleep(WAIT_SECONDS)
        return status


def is_forked() -> bool:
    """Whether a server has started this program, so that the imports are no part of its start or its memory."""
    return FORKED_VARIABLE in os.environ


def serve(folder: str, backend: str) -> None:
    """Imports what the programs of a package import, then answers requests until there are no more."""
    # A queue may signal all processes of a job; the programs then write a checkpoint, and would end with the server.
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    take_signals(signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the imports print is no answer
    gc.disable()  # it takes a fifth of the imports' time, and finds nothing
    with suppress(ImportError):  # the program will report it
        for module in ("common.evaluate_predict", "common.experiment", f"{folder}.{backend}"):
            importlib.import_module(module)
        if "torch" in sys.modules:
            importlib.import_module("torch._dynamo")  # which torch's optimizers import when they are made
    gc.freeze()  # a collection would copy all pages of these objects into each program's own memory
    gc.enable()
    server, statuses = os.getpid(), dict[int, int]()  # process id -> its exit status
    print(json.dumps([0, True]), file=answers)
    for line in sys.stdin:
        number, request = json.loads(line)
        if pid := request.get("pid"):
            if pid not in statuses and (status := os.waitpid(pid, os.WNOHANG))[0]:
                statuses[pid] = os.waitstatus_to_exitcode(status[1])
            answer = statuses.get(pid)
        else:
            answer = os.fork()
            if answer == 0:
                os.setpgid(0, 0)
                end_with_parent()
                if os.getppid() != server:  # it has ended before
                    os._exit(1)
                answers.close()
                for each, handler in handlers.items():
                    signal.signal(each, handler)
                _run(folder, **request)
            os.setpgid(answer, answer)  # here, too: the client may send a signal to the group before the child makes it
            statuses.pop(answer, None)
        print(json.dumps([number, answer]), file=answers)


def _run(folder: str, arguments: list[str], environment: Mapping[str, str], log_file: str) -> None:
    """Makes this process the program, which does not return."""
    with open(os.devnull) as nothing, open(log_file, "ab") as log:
        for descriptor, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), descriptor)
    os.environ.update(environment, **{FORKED_VARIABLE: "1"})
    sys.argv = [folder, *arguments]
    runpy.run_module(folder, run_name="__main__", alter_sys=True)
    exit_now()


if __name__ == "__main__":
    end_with_starter(Launch.read())
    serve(*sys.argv[1:])
    exit_now()
