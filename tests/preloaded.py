"""Runs programs in processes that have already imported their libraries: imports take most of a short run.

One server per framework, and one for compare.py, imports the libraries, but none of the project's code, and waits. For
each run it forks a process, which then behaves like `python -m NAME_impl OPTIONS` or `python compare.py OPTIONS` after
these imports. PyTorch's replicas are forked from that process. Where a comparison's speeds do not matter, the runs that
it starts are such processes too. Tests of how programs start, of how they end and of what they print start the programs
as users do. All processes of a test run share the servers.

    python tests/preloaded.py NAME SOCKET OWNER     the server: receives JSON objects through the socket (a descriptor),
                                                    answers each with a process id and an exit status, and
                                                    ends with the process OWNER
"""

import atexit
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

import psutil

TENSORFLOW = ("tensorflow", "keras")
TORCH = ("torch", "torch.distributed", "torch._dynamo", "torchvision")
JAX = ("jax", "jax.experimental.multihost_utils", "flax.nnx", "optax")
FRAMEWORK = {"tf": TENSORFLOW, "keras": TENSORFLOW, "pt": TORCH, "ptl": (*TORCH, "lightning"), "jax": JAX}
FRAMEWORK |= {"keras_torch": TORCH, "keras_jax": JAX}
TABLES = ("altair", "jinja2", "pandas", "platformdirs", "rich.live", "rich.table", "scipy.stats")
LIBRARIES = {**FRAMEWORK, "compare": TABLES}
COMMON = ("numpy", "psutil", "pydantic", "safetensors.numpy", "sklearn.datasets", "yaml")
MOST_BYTES = 2**20  # of a request

sockets = None  # the folder of the servers' sockets; tests/conftest.py sets it
started: list[subprocess.Popen] = []  # servers that this process has started and never waits for
owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()  # the process with which servers end
variables = None  # the environment of servers; None: that of this process
popen = subprocess.Popen


class PreloadedProcess:
    """As `subprocess.Popen`: the process that runs a request.

    Args:
      request: `command` (as `sys.argv`), `cwd`, `path` (the first entries of `sys.path`), the files `out` and `err`,
        and further variables of the `environment`, which only the program's own code may read, not libraries during
        their import.
    """

    returncode = None

    def __init__(self, program, **request):
        self.args = request["command"]
        self.connection = connection_to(program)
        self.connection.send(json.dumps(request).encode())
        self.pid = int(self.connection.recv(MOST_BYTES))

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self.connection.recv(MOST_BYTES))
            self.connection.close()
        return self.returncode


def run_preloaded(program, options, cwd, timeout, **environment):
    """`subprocess.run` of `python -m PROGRAM_impl OPTIONS`, or of `python compare.py OPTIONS`, in the folder `cwd`."""
    from common.implementations import environment_of, folder_of  # here: the servers import none of the project's code

    command = ["compare.py" if program == "compare" else folder_of(program), *map(str, options)]
    environment = {"COLUMNS": "80", **environment_of(program), **environment}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"cwd": str(cwd), "path": [str(cwd)], "out": str(out), "err": str(err), "environment": environment}
        process = PreloadedProcess(program, command=command, **request)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, out.read_text(), err.read_text())


def start_run(command, **arguments):
    """`subprocess.Popen` for compare.py: runs of the implementations are forked from the servers."""
    from common.implementations import interpreter_of  # here: the servers import none of the project's code

    program = str(command[2]).removesuffix("_impl") if command[1:2] == ["-m"] else None
    if program == "keras" and (backend := arguments["env"]["KERAS_BACKEND"]) != "tensorflow":
        program = f"keras_{backend}"
    if program not in FRAMEWORK or command[0] != interpreter_of(program):
        return popen(command, **arguments)
    environment, log = arguments["env"], arguments["stdout"].name
    where = {"cwd": str(Path.cwd()), "path": environment["PYTHONPATH"].split(os.pathsep)}
    return PreloadedProcess(program, command=command[2:], **where, out=log, err=log, environment=environment)


def connection_to(program):
    """A connection to the server that has imported the program's libraries, which is started if there is none yet."""
    from common.implementations import interpreter_of  # here: the servers import none of the project's code

    name = next(name for name, modules in LIBRARIES.items() if modules == LIBRARIES[program])
    path = sockets / name
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                listener.listen()
                words = [interpreter_of(program), __file__, name, str(listener.fileno()), str(owner)]
                own = {"stdin": subprocess.DEVNULL, "pass_fds": [listener.fileno()], "start_new_session": True}
                started.append(popen(words, env=variables, **own))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    return connection


def serve(program, descriptor, first):
    global owner, sockets, variables
    for name in (*COMMON, *LIBRARIES[program]):
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that answer
    with socket.socket(fileno=descriptor) as listener:
        owner, sockets, variables = first, Path(listener.getsockname()).parent, dict(os.environ)
        listener.settimeout(1)
        while psutil.pid_exists(owner):
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    answer(connection)
                connection.close()


def answer(connection):
    """Runs a requested program in a forked process, sends its id and later its exit status; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.recv(MOST_BYTES))
    process = os.fork()
    if process == 0:
        connection.close()
        go_on(request)
    connection.send(str(process).encode())
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    connection.send(str(status).encode())
    os._exit(0)


def go_on(request):
    """Runs the requested program in the forked process and exits with its status; never returns."""
    os.setsid()
    for path, descriptor in ((os.devnull, 0), (request["out"], 1), (request["err"], 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(request["cwd"])
    os.environ |= request["environment"]
    sys.stdout.reconfigure(line_buffering="PYTHONUNBUFFERED" in os.environ)
    program, *options = request["command"]
    sys.path[:1] = request["path"]
    words = [program] if program == "compare.py" else ["-m", program]
    sys.argv, sys.orig_argv = [program, *options], [sys.executable, *words, *options]
    if program == "compare.py" and "keep" in options:  # --disturbed keep: the load of the machine does not matter
        subprocess.Popen = start_run
    if program == "pt_impl":
        multiprocessing = importlib.import_module("torch.multiprocessing")
        multiprocessing.spawn = functools.partial(multiprocessing.start_processes, start_method="fork")
    status = 0
    try:
        if program == "compare.py":
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:]))
