"""The process that runs checks: it imports the frameworks once, and forks a process for each rank and each judge.

It is reached over one pair of sockets, which only this process and the one that started it hold, so no work can take
its place. What comes from another process is read as JSON. From `serve` on, no work can look into this process, nor
into the judges that are forked from it. A judge is forked when all processes that the works have started have ended.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil

from common.platform.errors import describe_signal
from exercises.checking import NOT_DONE, NOT_ENDED, RAISED, CheckFunctions, NotPassedError, Seen, load, load_factor

LOADING_SECONDS = 60.0
POLL_SECONDS = 0.2
GRACE_SECONDS = 2.0  # for the other ranks to report what they saw, when one rank is done
ENDING_SECONDS = 10.0  # for the processes that a work has started, after they were killed
LOADED = b"loaded"  # sent by a process when it has loaded its modules
MAX_SENT_BYTES = 2**24
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36  # linux/prctl.h


class Observed(NamedTuple):
    """What one rank has observed: the data to be judged, or why there are none."""

    data: Any = None
    trouble: Seen | None = None


def show_memory(shown: bool) -> None:
    """Lets other programs of this user look into this process and take its descriptors, or forbids it (Linux)."""
    _prctl(PR_SET_DUMPABLE, int(shown))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(option, value, 0, 0, 0):
        raise OSError(f"prctl({option}) has failed")


# --- In the processes that are checked, and in judges ---


@dataclass(frozen=True)
class Place:
    """The task of one process: the check `name` of the file `checks`, run on `work` in `folder`, as one rank."""

    folder: Path
    checks: Path
    name: str
    work: Path
    rank: int
    world_size: int
    port: int


def _describe(checks: Path, pipe: Connection) -> None:
    """Sends the checks of a file, by the names of their functions, in order."""
    found = {name: check for name, check in vars(load(checks)).items() if isinstance(check, CheckFunctions)}
    if without := [name for name, check in found.items() if not hasattr(check, "decide")]:
        raise ValueError(f"{checks}: without a judge: {', '.join(without)}")
    _send(pipe, {name: one.check for name, one in found.items()}, asdict)


def _observe(place: Place, pipe: Connection) -> None:
    """Runs the observing part of a check, and sends what it returns."""
    show_memory(True)
    os.chdir(place.folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(place.folder)  # which is removed with its contents
    rank, world_size = str(place.rank), str(place.world_size)
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size, LOCAL_WORLD_SIZE=world_size)
    # With the last one, which torchrun sets too, Lightning does not look for MPI, whose ranks may disturb one another.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(place.port), TORCHELASTIC_RUN_ID="check")
    try:
        checks, work = load(place.checks), load(place.work)
        pipe.send_bytes(LOADED)  # the time limit counts from here
        sent = {"data": getattr(checks, place.name).observe(work)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a student's program may raise
        gap = re.search(r"gap \d+", str(error)) if isinstance(error, NotImplementedError) else None
        sent = {"gap": gap[0]} if gap else {"error": _one_line(error, place.work)}
    _send(pipe, sent, _plain)
    if "data" in sent:
        time.sleep(GRACE_SECONDS)  # a rank that is slower may still be connecting; when all are done, this one is ended


def _plain(value: Any) -> object:
    """A value that JSON does not know, as one that it knows."""
    if hasattr(value, "numpy") and not hasattr(value, "tolist"):  # TensorFlow's
        value = value.numpy()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value) if isinstance(value, Path) else repr(value)


def _judge(checks: Path, name: str, data: list[Any], pipe: Connection) -> None:
    """Runs the judging part of a check on the data of each rank, and sends its verdict."""
    module = load(checks)
    try:
        getattr(module, name).decide(*data)
        seen = Seen("passed")
    except NotPassedError as error:
        seen = Seen("FAILED", str(error), vague=1, hint=error.hint)
    except Exception as error:  # noqa: BLE001 - data of any form may come from a work
        text = " ".join(str(error).split())[:200]
        seen = Seen("FAILED", f"what was observed has another form than a right answer: {text}", vague=RAISED)
    _send(pipe, seen)


def _send(pipe: Connection, value: object, default: Callable[[Any], object] | None = None) -> None:
    pipe.send_bytes(json.dumps(value, ensure_ascii=False, default=default).encode(errors="replace"))


def _one_line(error: BaseException, work: Path) -> str:
    """An error in one line of text, with the innermost line of the work that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(work)]
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename == str(work):
        lines, text = [error.lineno] if error.lineno else [], error.msg
    where = f" (line {lines[-1]} of {work.name})" if lines else ""
    if text.startswith("in user code"):  # TensorFlow puts the traceback before the error
        text = text.strip().rpartition("\n")[2]
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text[:200]}{where}"


# --- In the server ---


class ClientEndedError(Exception):
    """The process that started this one has ended."""


class Server:
    """Runs the checks of one file for a client."""

    def __init__(self, client: Connection, checks: Path) -> None:
        self.client, self.checks = client, checks

    def serve(self) -> NoReturn:
        """Sends the checks of the file, and then a verdict for each request, until the client has ended."""
        self.at_ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # in this process; it ends with the client
        show_memory(False)
        _prctl(PR_SET_CHILD_SUBREAPER, 1)  # whatever a work starts remains a descendant of this process
        # Otherwise the first collection in each process would touch all of torch's objects, and so copy their memory.
        # That would be 0.3 of the 0.4 seconds that a check takes.
        gc.collect()
        gc.freeze()
        try:
            pipe, _ = self._fork(_describe, self.checks)
            self.client.send_bytes(self._received(pipe))
            while True:
                _send(self.client, self._run(**json.loads(self.client.recv_bytes())))
        except (ClientEndedError, EOFError, OSError):
            with suppress(TimeoutError):
                end_descendants()
        finally:
            os._exit(0)

    def _fork(self, function: Callable[..., None], *arguments: object, close: Sequence[Connection] = ()) -> "Process":
        """Starts a process that calls the function with the arguments and a pipe to this process.

        Args:
          close: other pipes of this process.
        """
        receiver, sender = Pipe(duplex=False)
        pid = os.fork()
        if not pid:
            status = 1
            try:
                signal.signal(signal.SIGINT, self.at_ctrl_c)
                for connection in (self.client, receiver, *close):
                    connection.close()
                function(*arguments, sender)
                status = 0
            finally:
                os._exit(status)  # without waiting for threads or processes that a work has started
        sender.close()
        return Process(receiver, pid)

    def _received(self, pipe: Connection) -> bytes:
        """What a process of the checker sends; EOFError: nothing."""
        ready = wait([pipe, self.client], LOADING_SECONDS * load_factor())
        if self.client in ready:
            raise ClientEndedError
        return pipe.recv_bytes() if ready else b""

    def _run(self, name: str, work: str, ranks: int, seconds: float) -> Seen:
        """The verdict of the check `name` on the file `work`, or the least vague trouble, if any."""
        with tempfile.TemporaryDirectory(prefix="check-", ignore_cleanup_errors=True) as folder:
            task = Place(Path(folder), self.checks, name, Path(work), 0, ranks, _free_port())
            started: list[Process] = []
            try:
                for rank in range(ranks):
                    pipes = [process.pipe for process in started]
                    started.append(self._fork(_observe, replace(task, rank=rank), close=pipes))
                found = self._observed_by_all(started, seconds)
            finally:
                end_descendants()
                for process in started:
                    process.pipe.close()
        trouble = min((rank.trouble for rank in found if rank.trouble), key=lambda seen: seen.vague, default=None)
        if trouble and (trouble.status == "open" or all(rank.trouble for rank in found)):
            return trouble
        verdict = self._verdict(name, [rank.data for rank in found])
        if trouble is None:
            return verdict
        # What a rank has observed may explain why another one raised an error or waits for ever.
        return verdict if verdict.status == "FAILED" and verdict.vague < RAISED else trouble

    def _verdict(self, name: str, data: list[Any]) -> Seen:
        """Judges what the ranks have observed (None: nothing), after all processes of the work have ended."""
        pipe, _ = self._fork(_judge, self.checks, name, data)
        try:
            return Seen(*json.loads(self._received(pipe)))
        except (EOFError, ValueError):
            return Seen("not run", "the checker could not judge what was observed")
        finally:
            end_descendants()
            pipe.close()

    def _observed_by_all(self, started: list["Process"], seconds: float) -> list[Observed]:
        """Collects what the processes send, until all have sent a result or the time is over.

        `seconds` count from when the last process has loaded its modules, since loading is slow on a busy machine. On
        such a machine they are more, see `load_factor`.

        Returns:
          For each process, in order, what it has observed.
        """
        observed: dict[Connection, Observed] = {}
        pipes = dict(started)
        waits = ": one process waits for another" if len(started) > 1 else ""
        late = Observed(trouble=Seen("FAILED", f"{NOT_DONE} after {seconds:g} s{waits}", vague=NOT_ENDED))
        began, limit = time.monotonic(), LOADING_SECONDS
        while pipes:
            ready = wait([self.client, *pipes], POLL_SECONDS)
            if not ready and time.monotonic() - began > limit * load_factor():
                break
            if self.client in ready:
                raise ClientEndedError
            for pipe in ready:
                assert isinstance(pipe, Connection)
                found = _observed(pipe, pipes[pipe])
                if found is not None:
                    del pipes[pipe]
                    observed[pipe] = found
                if any(value.trouble for value in observed.values()):
                    began, limit = time.monotonic(), GRACE_SECONDS
                elif found is None:
                    began, limit = time.monotonic(), seconds
        return [observed.get(pipe, late) for pipe, _ in started]


class Process(NamedTuple):
    """A forked process, and the pipe from which this process reads what it sends."""

    pipe: Connection
    pid: int


def _observed(pipe: Connection, pid: int) -> Observed | None:
    """What a process has observed; None if it has only reported that its modules are loaded."""
    try:
        sent = pipe.recv_bytes(MAX_SENT_BYTES)
        if sent == LOADED:
            return None
        found = json.loads(sent)
        if "data" in found:
            return Observed(found["data"])
        if "gap" in found:
            return Observed(trouble=Seen("open", f"{found['gap']} is not filled"))
        return Observed(trouble=Seen("FAILED", str(found["error"]), vague=RAISED))
    except (ValueError, TypeError, LookupError, RecursionError):
        return Observed(trouble=Seen("FAILED", "the process has sent something else than a result", vague=3))
    except (EOFError, OSError):
        status = _exit_status(pid)
        ended = f"by itself, with status {status}" if not status or status > 0 else f"by {describe_signal(-status)}"
        what = "has closed its connection to the checker" if status is None else f"has ended {ended}"
        return Observed(trouble=Seen("FAILED", f"the process {what}", vague=3))


def _exit_status(pid: int) -> int | None:
    """The exit status of a child process, negative for a signal, if it ends within GRACE_SECONDS; else None."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def end_descendants() -> None:
    """Ends every process that this one, or a process started by it, has started. (On macOS not those of ended ones.)

    They are stopped before they are killed: a process that forks could be faster than one look at all processes.

    Raises:
      TimeoutError: they do not end.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    stopped: set[int] = set()
    while not _all_reaped():
        if time.monotonic() > deadline:
            raise TimeoutError
        found = {process.pid for process in psutil.Process().children(recursive=True)}
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if found <= stopped else signal.SIGSTOP)
        stopped |= found


def _all_reaped() -> bool:
    """Whether no child process is left, after the ended ones are forgotten."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _free_port() -> int:
    """A port that is free, below those that the system gives to outgoing connections (32768 to 60999 on Linux)."""
    with socket.socket() as listener:
        for port in random.sample(range(20_000, 32_000), 100):
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                return port
    raise OSError("none of 100 ports from 20000 to 32000 is free")


if __name__ == "__main__":
    for framework in (*sys.argv[3:], "exercises.data"):
        importlib.import_module(framework)
    Server(Connection(int(sys.argv[1])), Path(sys.argv[2])).serve()
