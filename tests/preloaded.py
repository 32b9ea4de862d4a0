"""Runs programs in processes that have already imported their libraries: imports take most of a short run.

One server per framework, and one for compare.py, imports the libraries, but none of the project's code, and waits. For
each run it forks a process, which then behaves like `python -m NAME_impl OPTIONS` or `python compare.py OPTIONS` after
these imports. PyTorch's replicas are forked from that process. Tests of how programs start, of how they end and of what
they print start the programs as users do. All processes of a test run share the servers.

    python tests/preloaded.py NAME SOCKET OWNER     the server: receives JSON objects through the socket (a descriptor),
                                                    answers each with an exit status, and ends with the process OWNER
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
import time
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
POLL_SECONDS = 0.01
MOST_BYTES = 2**20  # of a request

sockets = None  # the folder of the servers' sockets; tests/conftest.py sets it
started: list[subprocess.Popen] = []  # servers that this process has started and never waits for


def run_preloaded(program, options, cwd, timeout, **environment):
    """`subprocess.run` of `python -m PROGRAM_impl OPTIONS`, or of `python compare.py OPTIONS`, in the folder `cwd`.

    Args:
      environment: further variables, which only the program's own code may read, not libraries during their import.
    """
    command = ("compare.py" if program == "compare" else f"{program}_impl", *map(str, options))
    with tempfile.TemporaryDirectory() as folder, connection_to(program) as server:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {"command": command, "cwd": str(cwd), "out": str(out), "err": str(err), "timeout": timeout}
        request["environment"] = environment
        server.send(json.dumps(request).encode())
        status = int(server.recv(MOST_BYTES))
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


def connection_to(program):
    """A connection to the server that has imported the program's libraries, which is started if there is none yet."""
    from common.implementations import interpreter_of  # here: the servers import none of the project's code

    name = next(name for name, modules in LIBRARIES.items() if modules == LIBRARIES[program])
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    path = sockets / name
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                listener.listen()
                words = [interpreter_of(program), __file__, name, str(listener.fileno()), str(owner)]
                started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()]))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    return connection


def serve(program, descriptor, owner):
    for name in (*COMMON, *LIBRARIES[program]):
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
    """Runs a requested program in a forked process and sends its exit status; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.recv(MOST_BYTES))
    process = os.fork()
    if process == 0:
        connection.close()
        go_on(request)
    connection.send(str(wait_for(process, request["timeout"])).encode())
    os._exit(0)


def wait_for(process, timeout):
    """The exit status of a forked process, as subprocess reports it. After `timeout` seconds the process is killed."""
    deadline = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def go_on(request):
    """Runs the requested program in the forked process and exits with its status; never returns."""
    os.setsid()
    for path, descriptor in ((os.devnull, 0), (request["out"], 1), (request["err"], 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), descriptor)
    os.chdir(request["cwd"])
    os.environ |= {"COLUMNS": "80", **request["environment"]}
    program, *options = request["command"]
    sys.path[0] = request["cwd"]
    words = [program] if program == "compare.py" else ["-m", program]
    sys.argv, sys.orig_argv = [program, *options], [sys.executable, *words, *options]
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
