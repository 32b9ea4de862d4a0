"""Runs a program that nobody trusts: what it may see, write, use up and reach.

On Linux `namespaces.py` makes the surroundings. The program can read the system's libraries, this Python and the
folders that it is given, and nothing else. It can write to two empty folders, /tmp and /dev/shm. Its network is its own
and has 127.0.0.1 alone. It sees no processes but its own. Where root starts it, it runs as another user. From outside,
this process watches the time and the memory of all the program's processes together, and ends them.
"""

import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from common.platform.errors import UserError, describe_signal
from exercises.namespaces import NOT_ENTERED, Specification

# Users that no program belongs to; systemd takes its own temporary ones from here (DynamicUser of systemd.exec(5)).
FIRST_USER, NUM_USERS = 61184, 4336
POLL_SECONDS = 0.1
MIB = 2**20
MAX_TOLD = 300  # letters of what a program says of its failure


@dataclass(frozen=True)
class Limits:
    """What one program may use up, with all the processes that it starts.

    Attributes:
      seconds: until it is ended, on the wall's clock.
      memory_mib: of all its processes together; also of what one of them may allocate.
      cpu_seconds: of each of its processes; None: as many as `seconds`.
      processes: with their threads.
      files_mib: in each of its two folders to write to, /tmp and /dev/shm, which are in memory.
    """

    seconds: float
    memory_mib: int
    cpu_seconds: int | None = None
    processes: int = 1024
    files_mib: int = 256


class SandboxError(UserError):
    """No sandbox can be had on this machine."""


def check_available() -> None:
    """Raises SandboxError, which says what would do, where this machine has no sandbox."""
    advice = "give --no-sandbox true if you trust all works, or mark in a virtual machine with Linux 5.12 or newer"
    if sys.platform != "linux":
        raise SandboxError(f"--no-sandbox false: a sandbox needs Linux, and this is {sys.platform}; {advice}")
    try:
        ended = run([sys.executable, "-c", "pass"], "/tmp", {}, Limits(seconds=30.0, memory_mib=1024))
    except SandboxError as error:
        ended = str(error)
    if ended:
        raise SandboxError(f"--no-sandbox false: this machine makes no sandbox ({ended}); {advice}")


def run(
    command: Sequence[str],
    folder: str,
    shown: Mapping[Path, str],
    limits: Limits,
    stop: threading.Event | None = None,
    result: IO[bytes] | None = None,
    sandboxed: bool = True,
) -> str | None:
    """Runs a program to its end, or to a limit's; none of its processes is left.

    Args:
      command: its standard input and outputs are closed to it; it may write to `result`, under the same number.
      folder: where it starts, as it sees it.
      shown: what it may read, and under which name it sees it.
      stop: when set, the program is ended.
      sandboxed: False: it runs as any other program of this user, where `folder` is; `shown` is not used.

    Returns:
      None if it has ended by itself with status 0; else why it has ended.

    Raises:
      SandboxError: the system refuses the sandbox; the program was not started.
    """
    if not sandboxed:
        return _watched(list(command), folder, limits, stop, result)
    with tempfile.TemporaryDirectory(prefix="root-") as root:
        wanted = Specification(
            command=list(command),
            folder=folder,
            environment=_environment(),
            shown=[*_python(), *((str(outside), inside) for outside, inside in shown.items())],
            root=root,
            user=FIRST_USER + threading.get_native_id() % NUM_USERS if os.geteuid() == 0 else os.geteuid(),
            cpu_seconds=limits.cpu_seconds or int(limits.seconds) + 1,
            memory_mib=limits.memory_mib,
            processes=limits.processes,
            files_mib=limits.files_mib,
        )
        launcher = str(Path(__file__).with_name("namespaces.py"))
        start = [sys.executable, "-I", "-S", launcher, json.dumps(wanted._asdict())]
        return _watched(start, "/", limits, stop, result)


def _environment() -> dict[str, str]:
    """None of this process's variables, which may hold secrets."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _python() -> Iterator[tuple[str, str]]:
    """This Python and its packages, under the names that it knows them by, unless the system's folders hold them."""
    folders = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *([site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)),
    }
    folders |= {str(Path(one).resolve()) for one in folders}
    taken = ["/usr"]
    for one in sorted(folders):
        if Path(one).is_dir() and not any(Path(one).is_relative_to(other) for other in taken):
            taken.append(one)
            yield one, one


def _watched(
    command: list[str], folder: str, limits: Limits, stop: threading.Event | None, result: IO[bytes] | None
) -> str | None:
    """Runs a command until it ends, or exceeds the limits of time or memory; see `run`."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[result.fileno()] if result else [],
            start_new_session=True,
        )
        deadline = time.monotonic() + limits.seconds
        try:
            while (status := _waited(process)) is None:
                if time.monotonic() > deadline:
                    return f"not done after {limits.seconds:g} s"
                if _memory_bytes(process.pid) > limits.memory_mib * MIB:
                    return f"its processes took more than {limits.memory_mib} MiB of memory"
                if stop and stop.is_set():
                    return "the marking was interrupted"
        finally:
            _end(process)
        errors.seek(0)
        said = errors.read(2**16).decode(errors="replace").strip().splitlines()
    if status == 0:
        return None
    told = f": {said[-1][:MAX_TOLD]}" if said else ""
    if status == NOT_ENTERED:
        raise SandboxError(f"no namespaces{told}")
    number = -status if status < 0 else status - 128
    ended = f"was ended by {describe_signal(number)}" if 0 < number < signal.NSIG else f"has ended with status {status}"
    return f"the checker {ended}{told}"


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status, if it comes within POLL_SECONDS."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(POLL_SECONDS)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it has started; those of a sandbox end with its first one."""
    family = _family(process.pid)
    for one in family:
        with suppress(psutil.Error):
            one.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(family, timeout=10)


def _family(pid: int) -> list[psutil.Process]:
    """The process and its descendants, the first one of a sandbox before those in it."""
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _memory_bytes(pid: int) -> int:
    """Of a process and its descendants; what several of them share counts once, where the system tells it."""
    total = 0
    for one in _family(pid):
        try:
            lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except OSError:  # not Linux, not allowed, or just ended
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total
