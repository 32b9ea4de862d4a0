"""Process families: child processes end with the process that started them, and no temporary files remain.

The first process of a family is compare.py, or an implementation that a user has started. It starts child processes,
which may start more.
"""

import ctypes
import getpass
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from common.platform.errors import FileError
from common.platform.launch import STARTED_BY, Launch

PREFIX = "cnn-run-"  # of the temporary folders; short, since the paths of sockets in them have a maximum length
PR_SET_PDEATHSIG = 1  # prctl(2): the signal that the kernel sends when the parent ends
POLL_SECONDS = 0.2
ENVIRONMENT = dict(os.environ)  # without the variables that `join_family` sets; for programs that outlive this process
STOPPED_SECONDS = 10.0  # how long a process may be stopped (SIGSTOP) while the process that started it runs


class _Own:
    """What `join_family` has stored for the process `pid`; a forked process finds the values of its parent here.

    Attributes:
      folder: the temporary folder, in the process that has made it.
      remover: a shell that removes the folder when this process has ended.
    """

    pid = 0
    folder: Path | None = None
    remover: "subprocess.Popen[bytes] | None" = None


def join_family(launch: Launch) -> None:
    """Makes this process end with the process that started it, or makes it the first process of a family.

    Must run before any temporary file is made. All processes of a family share one temporary folder, which is removed
    when the first process ends, even if it is killed.
    """
    if _Own.pid == os.getpid():
        return
    _Own.pid, _Own.folder = os.getpid(), None
    parent = _parent()
    if parent is None:
        _make_temporary_folder()
        threading.Thread(target=_end_stopped, daemon=True).start()
    elif parent == os.getppid() and os.getpgrp() != os.getpid() and sys.platform == "linux":
        # The thread below needs Python, which compiled code of a framework may hold for minutes. The first process of a
        # group has no such signal: it must end the others of its group first.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and not _runs(parent):  # it has ended while this process started
        os._exit(1)
    if parent is not None or launch.world_size is not None:
        threading.Thread(target=_end_with, args=(parent, os.getppid()), daemon=True).start()
    os.environ[STARTED_BY] = f"{os.getpid()}@{platform.node()}"


def leave_family() -> None:
    """Removes the temporary folder if this process has made it."""
    if _Own.pid == os.getpid() and _Own.folder is not None:
        shutil.rmtree(_Own.folder, ignore_errors=True)


def _end_stopped() -> None:
    """Kills descendants of this process that have been stopped (by SIGSTOP, for example) for STOPPED_SECONDS.

    Otherwise the other processes would wait for them; torch notices only after half an hour. If all processes are
    stopped, as by Ctrl-Z, then this process is stopped too.
    """
    looks: list[set[psutil.Process]] = [set(), set()]
    while True:
        time.sleep(STOPPED_SECONDS / 2)
        looks = [*looks[-2:], set(filter(_is_stopped, psutil.Process().children(recursive=True)))]
        for process in set.intersection(*looks):
            message = f"process {process.pid} was stopped by a signal and does not go on; it is ended"
            print(f"note: {message}", file=sys.stderr)
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


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

# Reads until the process that holds the other end of the pipe has ended, in whatever way, and removes the folder. Other
# processes of the family, which end then too, may still be writing to it.
REMOVE = 'read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$0" && exit; sleep 0.2; done'


def _make_temporary_folder() -> None:
    usual = Path(tempfile.gettempdir())
    try:
        _Own.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        command = ("sh", "-c", REMOVE, str(_Own.folder))
        nothing = subprocess.DEVNULL
        _Own.remover = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
        )
    except OSError as error:
        raise FileError(f"no temporary folder can be made: {error.strerror}") from None
    # torch.compile's cache for later runs stays in the folder where torch usually puts it.
    with suppress(OSError, KeyError):  # this user has no name; torch doesn't find one either
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(usual / f"torchinductor_{getpass.getuser()}"))
    tempfile.tempdir = os.environ["TMPDIR"] = str(_Own.folder)
