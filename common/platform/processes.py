"""Process families: child processes end with the process that started them, and no temporary files remain.

The first process of a family is compare.py, or an implementation that a user has started. It starts child processes,
which may start more.
"""

import ctypes
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import platformdirs
import psutil

from common.platform.errors import FileError
from common.platform.launch import STARTED_BY, Launch

PREFIX = "cnn-run-"  # of the temporary folders; short, since the paths of sockets in them have a maximum length
PR_SET_PDEATHSIG = 1  # prctl(2): the signal that the kernel sends when the parent ends
POLL_SECONDS = 0.2
ENVIRONMENT = dict(
    os.environ
)  # without the variables that `join_process_family` sets; for programs that outlive this process


class _Own:
    """What `join_process_family` has stored for the process `pid`; a forked process finds its parent's values here.

    Attributes:
      folder: the temporary folder, in the process that has made it.
    """

    pid = 0
    folder: Path | None = None


def join_process_family(launch: Launch) -> None:
    """Makes this process end with the process that started it, or makes it the first process of a family.

    Must run before any temporary file is made. All processes of a family share one temporary folder, which is removed
    when the first process ends, unless it is killed.
    """
    if _Own.pid == os.getpid():
        return
    _Own.pid, _Own.folder = os.getpid(), None
    parent = _parent()
    if parent is None:
        _make_temporary_folder()
    elif parent == os.getppid() and os.getpgrp() != os.getpid() and sys.platform == "linux":
        # The thread below needs Python, which compiled code of a framework may hold for minutes. The first process of a
        # group has no such signal: it must end the others of its group first.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and not _runs(parent):
        print(f"process {parent}, which has started this one, has ended", file=sys.stderr)
        os._exit(1)
    if parent is not None or launch.world_size is not None:
        threading.Thread(target=_end_with, args=(parent, os.getppid()), daemon=True).start()
    os.environ[STARTED_BY] = f"{os.getpid()}@{_place()}"


def leave_process_family() -> None:
    """Removes the temporary folder if this process has made it."""
    if _Own.pid == os.getpid() and _Own.folder is not None:
        shutil.rmtree(_Own.folder, ignore_errors=True)


def _parent() -> int | None:
    """Id of the process of the family that started this one; None if there is none on this machine."""
    pid, _, place = os.environ.get(STARTED_BY, "").partition("@")
    return int(pid) if pid.isdigit() and place == _place() and int(pid) != os.getpid() else None


def _place() -> str:
    """Where a process id is valid: on this machine since it was booted, in this container (pid_namespaces(7))."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return platform.node()


def _end_with(parent: int | None, direct_parent: int) -> None:
    """Ends this process as soon as the process that started it has ended.

    Args:
      parent: id of the process of the family that started this one; None if a launcher did.
      direct_parent: id of the same process, or of one between them, such as a script that starts an interpreter.
    """
    while os.getppid() == direct_parent and (parent is None or _runs(parent)):
        time.sleep(POLL_SECONDS)
    if os.getpgrp() == os.getpid():  # compare.py gives each run its own process group; this ends all of the run
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # no process is left that could print a message


def _runs(pid: int) -> bool:
    """Whether process `pid` runs; False for a zombie, which has ended but whose exit status was not read yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- Temporary files, and files for later runs ---


def user_cache() -> Path:
    """The folder of files that later runs of this user may reuse."""
    return platformdirs.user_cache_path("cnn-in-lockstep")


def _make_temporary_folder() -> None:
    try:
        _Own.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError as error:
        raise FileError(f"no temporary folder can be made: {error.strerror}") from None
    # What torch.compile has compiled serves later runs. torch would put it into a folder in which others can write.
    with suppress(OSError):
        compiled = user_cache() / "torchinductor"
        compiled.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    tempfile.tempdir = os.environ["TMPDIR"] = str(_Own.folder)


# --- Facts about a process ---


def process_start(pid: int) -> float:
    """Start time of process `pid`, in seconds on the clock of `time.perf_counter` of this process.

    On Linux it is read from the kernel's record (proc(5), field starttime, on the clock CLOCK_BOOTTIME), which is exact
    to 10 ms. Elsewhere it is read from the wall clock.
    """
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists() and hasattr(time, "CLOCK_BOOTTIME"):
        # The second field, the name, may contain spaces; starttime is the 20th field after it.
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    else:
        age = time.time() - psutil.Process(pid).create_time()
    return time.perf_counter() - age


def cpu_seconds(pid: int) -> float:
    """CPU seconds, user and system, of process `pid` and its running descendants."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
        total += times.user + times.system
    return total


def peak_memory_bytes(pid: int) -> int:
    """Sum of the peak resident memory of process `pid` and its running descendants, in bytes.

    On Linux the peak of a process is its high-water mark (VmHWM). Memory that processes share is counted in each of
    them. Elsewhere the peak is known for the calling process only; for the others their current memory is used.
    """
    root = psutil.Process(pid)
    return sum(_peak(process) for process in [root, *root.children(recursive=True)])


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    try:
        for line in status.read_text().splitlines() if status.exists() else []:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        if process.pid == os.getpid():
            unit = 1 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return 0  # it ended meanwhile
