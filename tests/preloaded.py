"""Runs implementations in processes that have already imported their libraries: imports take most of a short run.

One server per framework imports its libraries, but none of the project's code, and waits. For each run it forks a
process, which then behaves like `python -m NAME_impl OPTIONS` after these imports. PyTorch's replicas are forked from
that process. Tests of how programs start, of how they end and of what they print start the programs as users do, and so
does compare.py. All processes of a test run share the servers.

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
COMMON = ("numpy", "psutil", "pydantic", "safetensors.numpy", "sklearn.datasets", "yaml")
MOST_BYTES = 2**20  # of a request

sockets = None  # the folder of the servers' sockets; tests/conftest.py sets it
started: list[subprocess.Popen] = []  # servers that this process has started and never waits for
owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()  # the process with which servers end


def run_preloaded(implementation, options, cwd, timeout, **environment):
    """`subprocess.run` of `python -m NAME_impl OPTIONS` in the folder `cwd`.

    Only the program's own code may read the further variables of the environment, not libraries during their import.
    """
    from common.implementations import environment_of, folder_of  # here: the servers import none of the project's code

    command = [folder_of(implementation), *map(str, options)]
    environment = {"COLUMNS": "80", **environment_of(implementation), **environment}
    with tempfile.TemporaryDirectory() as folder, connection_to(implementation) as connection:
        out, err = Path(folder, "out"), Path(folder, "err")
        files = {"cwd": str(cwd), "out": str(out), "err": str(err)}
        connection.send(json.dumps({"command": command, "environment": environment, **files}).encode())
        pid = int(connection.recv(MOST_BYTES))
        connection.settimeout(timeout)
        try:
            status = int(connection.recv(MOST_BYTES))
        except TimeoutError:
            os.killpg(pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


def connection_to(implementation):
    """A connection to the server that has imported the framework, which is started if there is none yet."""
    from common.implementations import interpreter_of  # here: the servers import none of the project's code

    name = next(name for name, modules in FRAMEWORK.items() if modules == FRAMEWORK[implementation])
    path = sockets / name
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                listener.listen()
                words = [interpreter_of(implementation), __file__, name, str(listener.fileno()), str(owner)]
                own = {"stdin": subprocess.DEVNULL, "pass_fds": [listener.fileno()], "start_new_session": True}
                started.append(subprocess.Popen(words, **own))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    return connection


def serve(framework, descriptor, owner):
    for name in (*COMMON, *FRAMEWORK[framework]):
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that answer
    with socket.socket(fileno=descriptor) as listener:
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
    sys.path[0] = request["cwd"]
    sys.argv, sys.orig_argv = [program, *options], [sys.executable, "-m", program, *options]
    if program == "pt_impl":
        multiprocessing = importlib.import_module("torch.multiprocessing")
        multiprocessing.spawn = functools.partial(multiprocessing.start_processes, start_method="fork")
    status = 0
    try:
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
