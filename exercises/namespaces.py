"""Runs a command in a sandbox made of Linux namespaces. `sandbox.py` starts this program and explains its purpose.

`python -I -S namespaces.py SPECIFICATION`, a JSON object: see `Specification`. The exit status is the command's, or
128 + number after a signal. If a namespace can't be made, it is `NOT_ENTERED`, with one line on standard error.
mount_setattr needs Linux 5.12. Only the standard library is used, since this program runs before the sandbox exists.

There are three processes. The process that was started waits for the first process of the sandbox. The first process
sets up the sandbox, starts the command as an unprivileged user without capabilities, and waits for all processes that
end in the sandbox. When the first process ends, all others in the sandbox end too.
"""

import ctypes
import fcntl
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

NOT_ENTERED = 70  # exit status; EX_SOFTWARE of sysexits.h

# From linux/sched.h, linux/mount.h, linux/prctl.h, linux/if.h and asm-generic/unistd.h.
NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000  # NS UTS IPC USER PID NET
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
SIGKILL, MIB = 9, 2**20
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

DEVICES = ("null", "zero", "full", "random", "urandom")
LIBRARIES = ("lib", "lib32", "lib64", "libx32", "libexec")
# Programs and libraries, and no other folder of /usr: some people keep their own files there.
SYSTEM = tuple(f"{prefix}/{name}" for prefix in ("/usr", "/usr/local", "") for name in ("bin", "sbin", *LIBRARIES))
SETTINGS = ("/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/localtime", "/sys/devices/system")
NAMES = {
    "/etc/hosts": "127.0.0.1 localhost sandbox\n",
    "/etc/passwd": "root:x:0:0::/:/bin/false\nstudent:x:{user}:{user}::/tmp:/bin/false\n",
    "/etc/group": "root:x:0:\nstudent:x:{user}:\n",
}


class Specification(NamedTuple):
    """The command to run, and its sandbox.

    Attributes:
      command: the program and its arguments, as seen inside.
      folder: its working directory, as seen inside.
      environment: all of its environment variables.
      hidden: folders that are empty inside, if a folder that is shown contains them; but what is shown in them is seen.
      shown: (path outside, path inside) of what can be read inside, besides the system's programs and libraries.
      root: an empty folder, on which the sandbox's root is mounted. Only the sandbox's processes see this mount.
      user: the user id that the command runs as. If root starts it, this is the group id too.
      cpu_seconds: limit of the CPU time of each process.
      memory_mib: limit of each process's own data.
      processes: limit of the number of all processes and threads inside.
      files_mib: limit of what is written to /tmp, and of what is written to /dev/shm.
    """

    command: list[str]
    folder: str
    environment: dict[str, str]
    hidden: list[str]
    shown: list[tuple[str, str]]
    root: str
    user: int
    cpu_seconds: int
    memory_mib: int
    processes: int
    files_mib: int


_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, status: int) -> None:
    """Raises an OSError that names `what`, if `status`, the result of a C library function, means a failure."""
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, options)]
    number = ctypes.c_ulong(flags)
    _call(f"mount {kind or source} on {target}", _libc.mount(texts[0], texts[1], texts[2], number, texts[3]))


def _protect(target: str, attributes: int, deep: bool) -> None:
    """Sets attributes of a mount; if `deep`, also of all mounts in it."""
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    status = _libc.syscall(
        ctypes.c_long(MOUNT_SETATTR), AT_FDCWD, target.encode(), AT_RECURSIVE if deep else 0, wanted,
        ctypes.c_size_t(len(wanted)),
    )  # fmt: skip
    _call(f"mount_setattr {target}", status)


def _prctl(option: int, value: int) -> None:
    _call(f"prctl {option}", _libc.prctl(option, value, 0, 0, 0))


def identity(numbers: str) -> str:
    """Makes a uid_map or gid_map for a child process from that of its parent. All ids stay the same."""
    rows = (line.split() for line in numbers.splitlines())
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in rows)


def enter(user: int) -> None:
    """Makes new namespaces for this process and for those that it starts: mounts, network, processes, users.

    If root starts it, all user ids stay the same. Only a process that stays outside may write such a map. For any other
    user, the map has only their own id.
    """
    own, group, as_root = Path("/proc/self"), os.getegid(), os.geteuid() == 0
    maps = {name: identity((own / name).read_text()) for name in ("uid_map", "gid_map")}
    is_entered, tell_entered = os.pipe()
    helper = as_root and os.fork()
    if as_root and not helper:
        os.close(tell_entered)
        if os.read(is_entered, 1):
            _told(_write_maps, Path(f"/proc/{os.getppid()}"), maps)
        os._exit(NOT_ENTERED)
    _call("unshare", _libc.unshare(NEW_NAMESPACES))
    if as_root:
        os.write(tell_entered, b"x")
        if os.waitpid(helper, 0)[1]:
            os._exit(NOT_ENTERED)  # the helper has printed the reason
    else:
        (own / "setgroups").write_text("deny")
        _write_maps(own, {"uid_map": f"{user} {user} 1\n", "gid_map": f"{group} {group} 1\n"})
    os.close(is_entered)
    os.close(tell_entered)


def _write_maps(process: Path, maps: dict[str, str]) -> int:
    for name, text in maps.items():
        (process / name).write_text(text)
    return 0


def _show(source: str, target: str) -> None:
    """Mounts a file or a folder read-only inside the sandbox."""
    place = Path(target)
    is_folder = Path(source).is_dir()
    (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
    if not is_folder:
        place.touch()
    _mount(source, target, None, MS_BIND | MS_REC)
    _protect(target, ATTR_READ_ONLY | ATTR_NOSUID | ATTR_NODEV, deep=True)


def set_up(wanted: Specification) -> None:
    """Makes the file system and the network of the sandbox. After that, this process sees no others."""
    root, private = wanted.root, MS_NOSUID | MS_NODEV
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", private, "mode=755,size=16m")
    for path in SYSTEM:
        Path(root + path).parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_symlink():
            Path(root + path).symlink_to(Path(path).readlink())
        elif Path(path).exists():
            _show(path, root + path)
    for path in filter(os.path.exists, SETTINGS):
        _show(path, root + path)
    for path, text in NAMES.items():
        Path(root + path).write_text(text.format(user=wanted.user))
    Path(root, "dev").mkdir()
    for name in DEVICES:
        Path(root, "dev", name).touch()
        _mount(f"/dev/{name}", f"{root}/dev/{name}", None, MS_BIND)
    group = wanted.user if os.geteuid() == 0 else os.getegid()
    own = f"mode=700,uid={wanted.user},gid={group},size={wanted.files_mib}m"
    for name in ("tmp", "dev/shm"):
        Path(root, name).mkdir()
        _mount("tmpfs", f"{root}/{name}", "tmpfs", private, own)
    for path in wanted.hidden:
        if Path(root + path).is_dir():
            _mount("tmpfs", root + path, "tmpfs", private, "mode=755,size=64k")  # below a folder of the system
    for outside, inside in wanted.shown:  # after /tmp, since they may be in it
        _show(outside, root + inside)
    for path in wanted.hidden:
        if Path(root + path).is_dir() and not any(Path(one).is_relative_to(path) for _, one in wanted.shown):
            _mount("tmpfs", root + path, "tmpfs", private, "mode=755,size=64k")  # below a folder just shown
        if os.path.ismount(root + path):
            _protect(root + path, ATTR_READ_ONLY, deep=False)
    Path(root, "proc").mkdir()
    _mount("proc", f"{root}/proc", "proc", private | MS_NOEXEC)
    os.chdir(root)
    _call("pivot_root", _libc.pivot_root(b".", b"."))  # the old root is now mounted on the new one, see pivot_root(2)
    _call("umount /", _libc.umount2(b".", MNT_DETACH))
    _protect("/", ATTR_READ_ONLY, deep=False)
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # no process inside can make user namespaces
    socket.sethostname("sandbox")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # struct ifreq of netdevice(7)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def become_student(wanted: Specification) -> NoReturn:
    """Gives up all rights and runs the command. A user other than root stays the same; exec drops the capabilities."""
    resource.setrlimit(resource.RLIMIT_CPU, (wanted.cpu_seconds, wanted.cpu_seconds + 1))  # SIGXCPU, then SIGKILL
    resource.setrlimit(resource.RLIMIT_DATA, (wanted.memory_mib * MIB,) * 2)
    resource.setrlimit(resource.RLIMIT_NPROC, (wanted.processes,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted.files_mib * MIB,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(wanted.user, wanted.user, wanted.user)
        os.setresuid(wanted.user, wanted.user, wanted.user)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    os.chdir(wanted.folder)
    os.execve(wanted.command[0], wanted.command, wanted.environment)


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _first_process(wanted: Specification) -> int:
    """Runs as the first process of the sandbox. Returns its exit status."""
    _prctl(PR_SET_PDEATHSIG, SIGKILL)
    _prctl(PR_SET_DUMPABLE, 0)
    set_up(wanted)
    command = os.fork()
    if not command:
        _told(become_student, wanted)
    while True:
        ended, status = os.wait()
        if ended == command:
            code = _exit_status(status)
            return 1 if code == NOT_ENTERED else code  # NOT_ENTERED would mean that there was no sandbox


def _told(step: Callable[..., int], *arguments: object) -> NoReturn:
    """Runs a step, and exits with its result. After an OSError: with NOT_ENTERED and a line on standard error."""
    try:
        status = step(*arguments)
    except OSError as error:
        print(f"{error.strerror}{f': {error.filename}' if error.filename else ''}", file=sys.stderr, flush=True)
        status = NOT_ENTERED
    os._exit(status)


def main(wanted: Specification) -> int:
    os.umask(0o022)
    _prctl(PR_SET_PDEATHSIG, SIGKILL)
    enter(wanted.user)
    first = os.fork()
    if not first:
        _told(_first_process, wanted)
    return _exit_status(os.waitpid(first, 0)[1])


if __name__ == "__main__":
    _told(main, Specification(**json.loads(sys.argv[1])))
