"""Runs an untrusted program, and limits what it can see, write, use and reach.

On Linux the sandbox is made of namespaces, by util-linux: unshare, mount, pivot_root, setpriv and prlimit. The
program can read only the system's libraries, this Python and the folders that it is given. It can write only to two
empty folders, /tmp and /dev/shm. It has its own network, with no address but 127.0.0.1. It sees only its own processes.
If root starts it, it runs as another user. From outside, this process watches the time and the memory of all the
program's processes together, and ends them at a limit.

bubblewrap is the usual tool for this. It is not used, since root marks in many containers. Started by root, bubblewrap
0.8 runs the program as root outside the sandbox. Started by another user, it can't read works in root's folders.
"""

import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from common.platform.errors import UserError, describe_signal
from exercises.checking import NOT_DONE, load_factor

# User ids that belong to no program. systemd takes the ids of its temporary users from the same range (DynamicUser of
# systemd.exec(5)).
FIRST_USER, NUM_USERS = 61184, 4336
POLL_SECONDS = 0.1
MIB = 2**20
GROUP = "mark-"  # the beginning of the name of a control group; the id of the process that has made it comes next
MAX_TOLD = 300  # characters of a program's error message

SCRIPT = Path(__file__).with_name("sandbox.sh")  # builds the file system
# Run with all capabilities over a namespace of users that holds no other process, just before they are given up. What
# it prints says that the sandbox has been made; the program can't print there.
LAST_STEP = 'echo 0 > /proc/sys/user/max_user_namespaces && echo entered && exec "$@" > /dev/null'
DEVICES = ("null", "zero", "full", "random", "urandom")
LIBRARIES = ("lib", "lib32", "lib64", "libx32", "libexec")
# Programs and libraries, and no other folder of /usr: some people keep their own files there.
SYSTEM = tuple(f"{prefix}/{name}" for prefix in ("/usr", "/usr/local", "") for name in ("bin", "sbin", *LIBRARIES))
SETTINGS = ("/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/localtime", "/sys/devices/system")


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
    advice = "give --no-sandbox true if you trust all works, or mark in a virtual machine with util-linux 2.36 or newer"
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
    with (
        tempfile.TemporaryDirectory(prefix="root-") as root,
        tempfile.TemporaryFile() as errors,
        _control_group(limits.memory_mib) as group,
    ):
        join = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)] if group else []
        whole = [*(_entrance(root, folder, shown, hidden, limits) if sandboxed else ()), *command]
        if shutil.which(whole[0]) is None:
            raise SandboxError(f"there is no {whole[0]}")
        process = subprocess.Popen(
            [*join, *whole],
            cwd="/" if sandboxed else folder,
            env=_environment() if sandboxed else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if sandboxed else subprocess.DEVNULL,
            stderr=errors,
            pass_fds=[result.fileno()] if result else [],
            start_new_session=True,
        )
        with process:
            if ended := _watch(process, limits, stop, group):
                return ended
            entered = not process.stdout or process.stdout.read()
        status = process.returncode
        errors.seek(0)
        said = errors.read(2**16).decode(errors="replace").strip().splitlines()
    if not entered:
        raise SandboxError(f"no namespaces{f': {said[0][:MAX_TOLD]}' if said else ''}")
    if status == 0:
        return None
    told = f": {said[-1][:MAX_TOLD]}" if said else ""
    number = -status if status < 0 else status - 128
    if number == signal.SIGKILL:
        by = "signal 9 (SIGKILL), from the work itself, at the limit of processor time, or as memory ran out"
    else:
        by = describe_signal(number)
    ended = f"was ended by {by}" if 0 < number < signal.NSIG else f"has ended with status {status}"
    return f"the checker {ended}{told}"


def _entrance(root: str, folder: str, shown: Mapping[Path, str], hidden: Sequence[Path], limits: Limits) -> list[str]:
    """The beginning of a command line, whose rest runs in a sandbox; `root`: an empty folder, for its file system.

    There are two namespaces of users. root starts in the machine's; any other user is root of one of their own. There
    the file system is built, by the first process. In a namespace inside it, which owns nothing, the program runs as an
    ordinary user. It can't look into the first process.
    """
    as_root = os.geteuid() == 0
    user = FIRST_USER + threading.get_native_id() % NUM_USERS if as_root else os.geteuid()
    group = user if as_root else os.getegid()
    cpu_seconds = limits.cpu_seconds or int(limits.seconds) + 1
    owner = f"uid={user},gid={group}" if as_root else "uid=0,gid=0"
    parts = sorted(_file_system(shown, hidden, user, owner, limits.files_mib).items())
    become_user = ("setpriv", "--reuid", f"{user}", "--regid", f"{group}", "--clear-groups")
    return [
        *("setpriv", "--pdeathsig", "KILL"),  # if this process ends
        *("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"),
        *(() if as_root else ("--map-root-user",)),
        *("sh", str(SCRIPT), root, sys.executable, folder),
        *(text for path, (kind, what) in parts for text in (kind, what, path)),
        "--",
        *("prlimit", f"--data={limits.memory_mib * MIB}", f"--fsize={limits.files_mib * MIB}", "--core=0"),
        *(f"--nproc={limits.processes}", f"--cpu={cpu_seconds}:{cpu_seconds + 1}"),  # SIGXCPU, then SIGKILL
        *(become_user if as_root else ()),
        *("unshare", f"--map-user={user}", f"--map-group={group}", "--keep-caps", "sh", "-c", LAST_STEP, "sh"),
        *("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"),
    ]


def _file_system(
    shown: Mapping[Path, str], hidden: Sequence[Path], user: int, owner: str, files_mib: int
) -> dict[str, tuple[str, str]]:
    """The parts of the sandbox's file system by their paths: KIND and WHAT of sandbox.sh.

    A folder comes before what is in it if they are sorted: what is shown in a hidden folder is seen, and what is hidden
    in a shown folder is not.
    """
    parts = {path: ("link", str(Path(path).readlink())) for path in SYSTEM if Path(path).is_symlink()}
    visible = [*SYSTEM, *SETTINGS, *(f"/dev/{name}" for name in DEVICES)]
    parts |= {path: ("show", path) for path in visible if path not in parts and Path(path).exists()}
    parts |= {
        "/etc/hosts": ("text", "127.0.0.1 localhost sandbox\n"),
        "/etc/passwd": ("text", f"root:x:0:0::/:/bin/false\nstudent:x:{user}:{user}::/tmp:/bin/false\n"),
        "/etc/group": ("text", f"root:x:0:\nstudent:x:{user}:\n"),
    }
    parts |= dict.fromkeys((str(path.resolve()) for path in hidden), ("hide", "mode=755,size=64k"))
    parts |= dict.fromkeys(("/tmp", "/dev/shm"), ("empty", f"mode=700,{owner},size={files_mib}m"))
    parts |= {path: ("show", path) for path in _python()}
    return parts | {inside: ("show", str(outside)) for outside, inside in shown.items()}


def _environment() -> dict[str, str]:
    """The program's environment variables. It gets none of this process's, which may contain secrets."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _python() -> set[str]:
    """The folders of this Python and its packages. Of the system's Python all is shown in any case."""
    users = [site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)
    folders = {Path(path) for path in (sys.prefix, sys.base_prefix, sys.exec_prefix, *users)}
    folders |= {path.resolve() for path in folders}
    return {str(path) for path in folders if path.is_dir()} - {"/usr", "/usr/local"}


@contextmanager
def _control_group(memory_mib: int) -> Iterator[Path | None]:
    """A new control group with this limit of memory; None where none can be made, as by an ordinary user.

    It counts memory that no process maps, such as data that wait in sockets. See cgroups(7), versions 2 and 1.
    """
    group = None
    for parent, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        with suppress(OSError):
            for old in Path(parent).glob(f"{GROUP}*-*"):
                maker = old.name.split("-")[1]
                if maker.isdigit() and not psutil.pid_exists(int(maker)):  # it was killed
                    with suppress(OSError):
                        old.rmdir()
            found = Path(tempfile.mkdtemp(prefix=f"{GROUP}{os.getpid()}-", dir=parent))
            if (found / limit).exists():
                (found / limit).write_text(f"{memory_mib * MIB}")
                group = found
                break
            found.rmdir()
    try:
        yield group
    finally:
        if group:
            _remove(group)


def _remove(group: Path) -> None:
    """Removes a control group, and ends the processes that are left in it. OSError: they do not end within 10 s."""
    deadline = time.monotonic() + 10
    while (left := (group / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
        for pid in map(int, left):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    group.rmdir()


def _was_full(group: Path) -> bool:
    """Whether the system has killed a process of a control group because its memory was used up."""
    file = next(path for name in ("memory.events", "memory.oom_control") if (path := group / name).exists())
    return any(int(line.split()[1]) > 0 for line in file.read_text().splitlines() if line.startswith("oom_kill "))


def _watch(
    process: subprocess.Popen[bytes], limits: Limits, stop: threading.Event | None, group: Path | None
) -> str | None:
    """Waits until the process ends or exceeds the limit of time or memory; why it was ended, None if by itself.

    After that, none of the processes that it has started is left.
    """
    began = time.monotonic()
    try:
        while _waited(process) is None:
            if time.monotonic() - began > limits.seconds * load_factor():
                return f"{NOT_DONE} after {limits.seconds:g} s"
            if _memory_bytes(process.pid) > limits.memory_mib * MIB or (group and _was_full(group)):
                return f"its processes took more than {limits.memory_mib} MiB of memory"
            if stop and stop.is_set():
                return "the marking was interrupted"
        return None
    finally:
        _end(process)


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status if the process ends within POLL_SECONDS, else None."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(POLL_SECONDS)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all that it has started. The processes of a sandbox end with the first of them."""
    family = _family(process.pid)
    for member in family:
        with suppress(psutil.Error):
            member.kill()
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
    for process in _family(pid):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                if str(descriptor.readlink()).startswith("/memfd:"):  # a file in memory, of which not all is mapped
                    found = descriptor.stat()
                    files[found.st_ino] = found.st_blocks * 512
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except OSError:  # not Linux, not allowed, or just ended
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total + sum(files.values())
