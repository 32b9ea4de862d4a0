"""Process families: child processes end with the process that started them, and no temporary files remain.

The first process of a family is compare.py, or an implementation that a user has started. It starts child processes,
which may start more.
"""

import fcntl
import getpass
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from common.platform.errors import FileError
from common.platform.launch import STARTED_BY, Launch

PREFIX = "cnn-run-"  # of the temporary folders; short, since the paths of sockets in them have a maximum length
LOCK_FILE = ".in-use"
POLL_SECONDS = 0.2
RELEASE_SECONDS = 1.0  # until a killed process has released its files
STOPPED_SECONDS = 10.0  # how long a process may be stopped (SIGSTOP) while the process that started it runs


class _Own:
    """What `join_family` has stored for the process `pid`.

    A forked process finds the values of its parent process here.

    Attributes:
      folder, lock: the temporary folder that this process made, and the lock on it; None if another process made it.
      environment: the environment variables before `join_family` changed them.
    """

    pid = 0
    folder: Path | None = None
    lock: IO[str] | None = None
    environment: dict[str, str] | None = None


def join_family(launch: Launch) -> None:
    """Makes this process end with the process that started it, or makes it the first process of a family.

    Must run before any temporary file is made. All processes of a family share one temporary folder, which is removed
    when the first process ends. If the first process is killed, the others remove the folder, or else the next family
    does.

    Args:
      launch: the launch of this process.
    """
    if _Own.pid == os.getpid():
        return
    if _Own.lock is not None:  # the lock of the process that this one was forked from
        _Own.lock.close()
        _Own.folder = _Own.lock = None
    _Own.pid, parent = os.getpid(), _parent()
    _Own.environment = dict(os.environ)
    if parent is None:
        _make_temporary_folder()
        threading.Thread(target=_end_stopped, daemon=True).start()
    if parent is not None or launch.world_size is not None:
        threading.Thread(target=_end_with, args=(parent, os.getppid()), daemon=True).start()
    os.environ[STARTED_BY] = f"{os.getpid()}@{platform.node()}"


def environment_before() -> dict[str, str]:
    """The environment without the variables that `join_family` has set, for programs that outlive this process."""
    return dict(os.environ if _Own.environment is None else _Own.environment)


def _end_stopped() -> None:
    """Kills descendants of this process that have been stopped (by SIGSTOP, for example) for STOPPED_SECONDS.

    Otherwise the other processes would wait for them; torch notices only after half an hour. If all processes are
    stopped, as by Ctrl-Z, then this process is stopped too.
    """
    since: dict[int, float] = {}
    while True:
        time.sleep(STOPPED_SECONDS / 4)
        now = time.monotonic()
        since = {pid: since.get(pid, now) for pid in _stopped()}
        for pid, first in since.items():
            if now - first >= STOPPED_SECONDS:
                print(f"note: process {pid} was stopped by a signal and does not go on; it is ended", file=sys.stderr)
                _kill(pid)


def _stopped() -> list[int]:
    """Ids of those descendants of this process that are stopped."""
    stopped = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                stopped.append(process.pid)
    return stopped


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def leave_family(failed: bool = False) -> None:
    """Removes the temporary folder if this process has made it, or if the process that made it was killed.

    Args:
      failed: whether this process ends with an error. If it has made the folder, it then kills its stopped descendants,
        since these can't notice its end. If another process has made the folder, that process may just be ending, so
        this one waits a moment for the folder's lock.
    """
    if _Own.pid != os.getpid():
        return
    if _Own.folder is None:
        _remove_abandoned(RELEASE_SECONDS if failed else 0.0)
        return
    for pid in _stopped() if failed else ():
        _kill(pid)
    shutil.rmtree(_Own.folder, ignore_errors=True)


def wait_for_end_of_family() -> None:
    """Waits a moment. If the process that started this one has ended, this process ends during the wait."""
    time.sleep(5 * POLL_SECONDS)


def _parent() -> int | None:
    """Id of the process of the family that started this one; None if there is none on this machine."""
    pid, _, host = os.environ.get(STARTED_BY, "").partition("@")
    return int(pid) if pid.isdigit() and host == platform.node() and int(pid) != os.getpid() else None


def _end_with(parent: int | None, direct_parent: int) -> None:
    """Ends this process as soon as the process that started it has ended.

    Args:
      parent: id of the process of the family that started this one; None if a launcher did.
      direct_parent: id of the same process, or of one between them, such as a script that starts an interpreter.
    """
    while os.getppid() == direct_parent and (parent is None or _runs(parent)):
        time.sleep(POLL_SECONDS)
    _remove_abandoned(RELEASE_SECONDS)
    if os.getpgrp() == os.getpid():  # compare.py gives each run its own process group; this ends all of the run
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # no process is left that could print a message


def _runs(pid: int) -> bool:
    """Whether process `pid` runs; False for a zombie, which has ended but whose exit status was not read yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- Temporary files ---


def _make_temporary_folder() -> None:
    try:
        usual = Path(tempfile.gettempdir())
        _remove_abandoned()
        while _Own.lock is None:
            _Own.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            _Own.lock = _locked(_Own.folder)
    except OSError as error:
        raise FileError(f"no temporary folder can be made: {error.strerror}") from None
    # torch.compile's cache for later runs stays in the folder where torch usually puts it.
    with suppress(OSError, KeyError):  # this user has no name; torch doesn't find one either
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(usual / f"torchinductor_{getpass.getuser()}"))
    tempfile.tempdir = os.environ["TMPDIR"] = str(_Own.folder)


def _locked(folder: Path) -> IO[str] | None:
    """Locks a new folder until this process ends, for whatever reason.

    Returns None if another process removes the folder, because it found it before it was locked.
    """
    lock = open(folder / LOCK_FILE, "w")  # noqa: SIM115 - see above
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system without locks: no process removes folders of others
        return lock
    return lock if (folder / LOCK_FILE).exists() else None


_removing = threading.Lock()  # so that no thread ends the process while another thread removes a folder


def _remove_abandoned(seconds: float = 0.0) -> None:
    """Removes the folders of families whose first process was killed.

    Args:
      seconds: how long to wait for the lock on the folder of this process's own family. The threads of a killed process
        end one after the other. Other processes may notice its end before the last thread has released the lock.
    """
    around = _Own.folder.parent if _Own.folder else Path(tempfile.gettempdir())
    own, deadline = around, time.monotonic() + seconds
    if around.name.startswith(PREFIX):  # the folder of this process's family, which another process has made
        around = around.parent
    for folder in around.glob(f"{PREFIX}*"):
        while not _removed(folder) and folder == own and time.monotonic() < deadline:
            time.sleep(RELEASE_SECONDS / 20)


def _removed(folder: Path) -> bool:
    """Removes an abandoned folder; returns False if it is in use, belongs to another user or is just being made."""
    try:
        with _removing, open(folder / LOCK_FILE, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:  # another process has removed it
        return True
    except OSError:
        return False
    return True
