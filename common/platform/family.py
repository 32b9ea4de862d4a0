"""Processes that belong together: they end with the one that started them, and leave no temporary files.

The first one may be compare.py, or an implementation that a user has started; it starts others, and these more.
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

PREFIX = "cnn-run-"  # of the folders for temporary files; short: the paths of sockets in them have a limit
LOCK_FILE = ".in-use"
POLL_SECONDS = 0.2
RELEASE_SECONDS = 1.0  # in which a process that was killed has let go of its files
STOPPED_SECONDS = 10.0  # that a process may be stopped while the one that started it goes on


class _Own:
    """Of the process `pid`, which has joined: the folder for temporary files that it has made, and the lock on it.

    None where another process has made it. A forked process finds another's here. And the environment as it was before.
    """

    pid = 0
    folder: Path | None = None
    lock: IO[str] | None = None
    environment: dict[str, str] | None = None


def join_family(launch: Launch) -> None:
    """Makes this process one that ends with the one that started it, or the first of a family.

    Must run before anything makes temporary files. All processes of a family have one folder for these, which goes when
    the first one ends. If that is killed, the others remove it, or else the next family does.

    Args:
      launch: of this process.
    """
    if _Own.pid == os.getpid():
        return
    if _Own.lock is not None:  # of the process that this one was forked from
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
    """For programs that live on when this process ends: without what `join_family` has put into the environment."""
    return dict(os.environ if _Own.environment is None else _Own.environment)


def _end_stopped() -> None:
    """Ends processes that this one has started, or these, when they have been stopped (SIGSTOP, say) for a while.

    The others wait for them: for half an hour if torch is to notice it. Where all are stopped, as by Ctrl-Z, this one
    is, too.
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
    """The processes that this one has started, or these, which are stopped."""
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
    """Removes the folder for temporary files, if this process has made it, or the one that has was killed.

    Args:
      failed: the one that has made it may just be being killed, and others may be stopped, which can't notice that the
        first process goes: it ends them.
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
    """Returns a moment later, unless the process that started this one is gone: then this one ends too."""
    time.sleep(5 * POLL_SECONDS)


def _parent() -> int | None:
    """The process of the family that started this one; None where there is none on this machine."""
    pid, _, host = os.environ.get(STARTED_BY, "").partition("@")
    return int(pid) if pid.isdigit() and host == platform.node() and int(pid) != os.getpid() else None


def _end_with(parent: int | None, direct_parent: int) -> None:
    """Ends this process as soon as another one is gone.

    Args:
      parent: of the family; None under a launcher.
      direct_parent: the same one, or something between them, such as a script that starts an interpreter.
    """
    while os.getppid() == direct_parent and (parent is None or _runs(parent)):
        time.sleep(POLL_SECONDS)
    _remove_abandoned(RELEASE_SECONDS)
    if os.getpgrp() == os.getpid():  # compare.py gives each run a group of its own: all that the run has started
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # nobody is there to be told


def _runs(pid: int) -> bool:
    """False also of a process that has ended and whose status nobody has asked for yet."""
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
    # What torch.compile keeps for the next run stays where torch would put it.
    with suppress(OSError, KeyError):  # no name for this user: torch has none either
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(usual / f"torchinductor_{getpass.getuser()}"))
    tempfile.tempdir = os.environ["TMPDIR"] = str(_Own.folder)


def _locked(folder: Path) -> IO[str] | None:
    """A lock on the new folder, until this process ends, however it does.

    None where another process took the folder for abandoned, since it was not locked yet, and removes it."""
    lock = open(folder / LOCK_FILE, "w")  # noqa: SIM115 - see above
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system without locks: then nobody takes it for abandoned either
        return lock
    return lock if (folder / LOCK_FILE).exists() else None


_removing = threading.Lock()  # else one thread could end the process while another one is at it


def _remove_abandoned(seconds: float = 0.0) -> None:
    """Removes the folders of families whose first process was killed.

    Args:
      seconds: for which the folder of this process's own family is waited for. Of a killed process with several threads
        one ends after the other: others learn of it before the last one lets go of the lock.
    """
    around = _Own.folder.parent if _Own.folder else Path(tempfile.gettempdir())
    own, deadline = around, time.monotonic() + seconds
    if around.name.startswith(PREFIX):  # of a process that has not made it
        around = around.parent
    for folder in around.glob(f"{PREFIX}*"):
        while not _removed(folder) and folder == own and time.monotonic() < deadline:
            time.sleep(RELEASE_SECONDS / 20)


def _removed(folder: Path) -> bool:
    """False where it is in use, somebody else's, or just being made."""
    try:
        with _removing, open(folder / LOCK_FILE, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:  # by another process
        return True
    except OSError:
        return False
    return True
