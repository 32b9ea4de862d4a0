"""Runs an untrusted program, and limits what it can see, write, use and reach.

On Linux `namespaces.py` makes the sandbox. The program can read only the system's libraries, this Python and the
folders that it is given. It can write only to two empty folders, /tmp and /dev/shm. It has its own network, with no
address but 127.0.0.1. It sees only its own processes. If root starts it, it runs as another user. From outside, this
process watches the time and the memory of all the program's processes together, and ends them at a limit.

bubblewrap is the usual tool for this. It is not used, since root marks in many containers. Started by root, bubblewrap
0.8 runs the program as root outside the sandbox. Started by another user, it can't read works in root's folders.
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
from exercises.checking import NOT_DONE, load_factor
from exercises.namespaces import NOT_ENTERED, SYSTEM, Specification

# User ids that belong to no program. systemd takes the ids of its temporary users from the same range (DynamicUser of
# systemd.exec(5)).
FIRST_USER, NUM_USERS = 61184, 4336
POLL_SECONDS = 0.1
MIB = 2**20
MAX_TOLD = 300  # characters of a program's error message


@dataclass(frozen=True)
class Limits:
    """What one program may use, with all the processes that it starts.

    Attributes:
      seconds: wall-clock time until it is ended.
      memory_mib: memory of all its processes together; also the most that one of them may allocate.
      cpu_seconds: CPU time of each of its processes; None: int(seconds) + 1.
      processes: number of its processes and threads.
      files_mib: size of the files in each of its two writable folders, /tmp and /dev/shm, which are in memory.
    """

    seconds: float
    memory_mib: int
    cpu_seconds: int | None = None
    processes: int = 1024
    files_mib: int = 256


class SandboxError(UserError):
    """No sandbox can be made on this machine."""


def check_available() -> None:
    """Raises a SandboxError that says what to do, if no sandbox can be made on this machine."""
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
    hidden: Sequence[Path] = (),
    stop: threading.Event | None = None,
    result: IO[bytes] | None = None,
    sandboxed: bool = True,
) -> str | None:
    """Runs a program until it ends or reaches a limit. After that, none of its processes is left.

    Args:
      command: has no standard input; its output is not shown. It may write to `result`, with the same file descriptor.
      folder: its working directory, as it sees it.
      shown: the paths that it may read, each with the path under which it sees it.
      hidden: folders that it must not read, even if they are in one of Python or of the system.
      stop: when set, the program is ended.
      sandboxed: False: it runs as any other program of this user, in `folder`; `shown` is not used.

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
            hidden=[str(one.resolve()) for one in hidden],
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
    """The program's environment variables. It gets none of this process's, which may contain secrets."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _python() -> Iterator[tuple[str, str]]:
    """The folders of this Python and its packages, each under its own path, except for those of the system."""
    folders = {
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *([site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)),
    }
    folders |= {str(Path(one).resolve()) for one in folders}
    taken = [*SYSTEM]
    for one in sorted(folders - {"/usr", "/usr/local"}):  # of these the programs and libraries are shown in any case
        if Path(one).is_dir() and not any(Path(one).is_relative_to(other) for other in taken):
            taken.append(one)
            yield one, one


def _watched(
    command: list[str], folder: str, limits: Limits, stop: threading.Event | None, result: IO[bytes] | None
) -> str | None:
    """Runs a command until it ends or exceeds the limit of time or memory; see `run`."""
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
        began = time.monotonic()
        try:
            while (status := _waited(process)) is None:
                if time.monotonic() - began > limits.seconds * load_factor():
                    return f"{NOT_DONE} after {limits.seconds:g} s"
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
    """The exit status if the process ends within POLL_SECONDS, else None."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(POLL_SECONDS)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it has started. The processes of a sandbox end with the first of them."""
    family = _family(process.pid)
    for one in family:
        with suppress(psutil.Error):
            one.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(family, timeout=10)


def _family(pid: int) -> list[psutil.Process]:
    """The process and its descendants. The first process of a sandbox comes before the others in it."""
    with suppress(psutil.Error):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def _memory_bytes(pid: int) -> int:
    """Memory of a process and its descendants. Memory that they share counts once, if the system reports it."""
    total, files = 0, dict[int, int]()
    for one in _family(pid):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{one.pid}/fd").iterdir():
                if str(descriptor.readlink()).startswith("/memfd:"):  # a file in memory, of which not all is mapped
                    found = descriptor.stat()
                    files[found.st_ino] = found.st_blocks * 512
        try:
            lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except OSError:  # not Linux, not allowed, or just ended
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total + sum(files.values())
