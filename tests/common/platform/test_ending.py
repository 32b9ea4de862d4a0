"""How programs end: with one line, together, without temporary files, and with output that nobody reads."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from conftest import REPOSITORY, run

from common.platform import processes
from common.platform.ending import FIRST_SECONDS
from common.platform.errors import describe_signal
from common.platform.launch import STARTED_BY

# A chain of `depth` + 1 processes: each makes a temporary file, starts the next one, prints its id, and waits or ends.
CHAIN = """
import ctypes, os, subprocess, sys, tempfile, time
from common.platform.ending import as_program, exit_now, signals_as_ctrl_c
with as_program("program"):
    depth, how = int(sys.argv[1]), sys.argv[2]
    tempfile.mkstemp(prefix="left-behind-")
    own = subprocess.Popen([sys.executable, "-c", sys.argv[3], str(depth - 1), how, sys.argv[3]]) if depth else None
    print(os.getpid(), tempfile.gettempdir(), flush=True)
    if how == "ctrl-c":
        signals_as_ctrl_c()
    if how == "locked" and not depth:
        ctypes.PyDLL(None).sleep(600)  # keeps Python's lock, as c10d's FileStore does
    if not how.isdigit():
        time.sleep(600)
    if own:
        own.wait()
    exit_now(int(how))
"""


def python(code, *arguments, **expected):
    return run(sys.executable, "-c", code, *arguments, PYTHONPATH=str(REPOSITORY), **expected)


@pytest.fixture
def start(tmp_path):
    """Starts a chain; returns its first process, all its processes, and the folders of their temporary files."""
    with ExitStack() as opened:

        def start(depth, how="wait", shell=(), **environment):
            command = [*shell, sys.executable, "-c", CHAIN, str(depth), str(how), CHAIN]
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path), **environment}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            opened.enter_context(process)
            lines = [process.stdout.readline().split() for _ in range(depth + 1)]
            family = [psutil.Process(int(pid)) for pid, _ in lines if psutil.pid_exists(int(pid))]
            opened.callback(lambda: [one.kill() for one in family if one.is_running()])
            return process, family, {place for _, place in lines}

        yield start


# --- Families of processes ---


@pytest.mark.parametrize("how", [0, 3])
def test_a_family_has_one_temporary_folder_that_goes_at_its_end(start, tmp_path, how):
    process, _, places = start(2, how)
    (place,) = places
    assert Path(place).parent == tmp_path and process.wait(20) == how
    assert not list(tmp_path.iterdir())


def test_a_process_knows_its_parent_whatever_the_machine_is_called(monkeypatch):
    monkeypatch.setenv(STARTED_BY, f"{os.getppid()}@{processes._place()}")
    monkeypatch.setattr("platform.node", lambda: "another")
    assert processes._parent() == os.getppid()


def test_without_the_process_that_has_started_it_a_program_ends_with_a_line():
    program = "from common.platform.ending import as_program\nwith as_program('p'): pass"
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = python(program, expect=1, **{STARTED_BY: f"{gone.pid}@{processes._place()}"})
    assert done.stderr == f"process {gone.pid}, which has started this one, has ended\n"


def test_the_first_process_has_time_to_print_the_error_of_all():
    """torchrun ends the first process as soon as another one has ended."""
    program = "from common.platform.ending import *\nwith as_program('p'): raise UserError('of all')"
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    start = time.monotonic()
    done = python(program, expect=2, TORCHELASTIC_RUN_ID="1", **dict(zip(names, "112201", strict=True)))
    assert not done.stderr and time.monotonic() - start > FIRST_SECONDS
    done = python(program, expect=2, TORCHELASTIC_RUN_ID="1", **dict(zip(names, "002201", strict=True)))
    assert done.stderr == "p: error: of all\n"


@pytest.mark.quick("wait-9", "wait-2", "locked-9")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("how", ["wait", "locked", "ctrl-c"])
def test_all_end_with_the_first_one_and_leave_nothing(start, tmp_path, how, number):
    process, family, _ = start(2, how)
    process.send_signal(number)
    as_ctrl_c = signal.SIGINT if how == "ctrl-c" else number
    assert process.wait(20) == (-9 if number == signal.SIGKILL else 128 + as_ctrl_c)
    assert not psutil.wait_procs(family, timeout=5)[1]
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())


POOL = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from common.platform.ending import as_program, ctrl_c_waits, serve_pool
if __name__ == "__main__":
    with as_program("program"):
        context = multiprocessing.get_context(sys.argv[1])
        with ProcessPoolExecutor(2, context, initializer=serve_pool) as pool:
            with ctrl_c_waits():
                done = pool.map(abs, range(20))
            print(*done, flush=True)
            time.sleep(600)
"""


@pytest.mark.quick("fork-2", "forkserver-9")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_the_processes_of_a_pool_end_with_the_first_one(tmp_path, start_method, number):
    """They end however often the program gets the signal. Otherwise they would wait for ever for the next task."""
    temporary = tempfile.mkdtemp(prefix="t")  # a short path: it contains a forkserver's socket
    (tmp_path / "program.py").write_text(POOL)
    command = [sys.executable, tmp_path / "program.py", start_method]
    environment = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": temporary}
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        process.stdout.readline()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 3
        for _ in range(1 if number == signal.SIGKILL else 3):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number) if number == signal.SIGINT else process.kill()
            time.sleep(0.2)
        err = process.stderr.read().decode()
    assert not psutil.wait_procs(family, timeout=10)[1] and "Traceback" not in err, err
    assert number == signal.SIGKILL or not list(Path(temporary).iterdir())
    shutil.rmtree(temporary)


def test_a_program_that_a_user_has_started_outlives_its_shell(tmp_path):
    """With nohup, for example: the parent of the program changes, and the program continues."""
    out = tmp_path / "out"
    script = f'{sys.executable} -c "$0" 0 wait x > {out} 2>&1 & until [ -s {out} ]; do sleep 0.1; done; kill -9 $$'
    run("bash", "-c", script, CHAIN, expect=-9, PYTHONPATH=str(REPOSITORY), TMPDIR=str(tmp_path))
    process = psutil.Process(int(out.read_text().split()[0]))
    time.sleep(1)
    assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    process.kill()


# --- Signals ---


@pytest.mark.parametrize("how", ["wait", "ctrl-c"])
def test_ignored_signals_stay_ignored(start, how):
    process, _, _ = start(0, how, shell=("bash", "-c", 'trap "" HUP; exec "$@"', "bash"))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    assert process.wait(20) == 128 + (signal.SIGTERM if how == "wait" else signal.SIGINT)


# Acts like compiled code that drops Python's exceptions, and like a logger whose server does not answer.
SIGNALLED = """
import os, sys, time
from common.platform.ending import as_program, at_signal
with as_program("program"), at_signal(lambda: time.sleep(int(sys.argv[2]))), at_signal(lambda: print("closed")):
    while True:
        try:
            os.kill(os.getpid(), int(sys.argv[1]))
            time.sleep(20)
        except BaseException as error:
            print(error)
"""


@pytest.mark.quick("2-0", "15-0", "15-600")
@pytest.mark.parametrize("seconds", [0, 600])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_what_is_open_and_ends_a_program_whatever_runs(number, seconds):
    done = python(SIGNALLED, int(number), seconds, expect=128 + number, timeout=30)
    said = "interrupted" if number == signal.SIGINT else f"ended by {describe_signal(number)}"
    assert (done.stdout, done.stderr) == ("closed\n", f"program: {said}\n")


# A process that gets Ctrl-C's signal in the middle of its imports.
CHILD = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
from common.platform.ending import as_program
with as_program("child"):
    time.sleep(10)
"""
PARENT = """
import subprocess, sys
from common.platform.ending import as_program, ctrl_c_waits
with as_program("parent"):
    with ctrl_c_waits():
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
    print(child.wait())
"""


def test_ctrl_c_reaches_a_process_that_is_started_when_it_is_in_its_program():
    done = python(PARENT, CHILD)
    assert (done.stdout, done.stderr) == ("130\n", "child: interrupted\n")


# --- Output ---

PRINTS = """
import sys, time
from pathlib import Path
from rich.console import Console
from common.platform.ending import as_program
with as_program("program"):
    for number in range(3):
        Console().print("line", number)
        print("and", number, flush=True)
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
    Path(sys.argv[1]).touch()
"""


def test_a_program_goes_on_when_the_reader_of_its_output_has_ended(tmp_path):
    command = '"$0" -c "$1" "$2" "$3" | { read -r line; exec <&-; touch "$3"; }; exit ${PIPESTATUS[0]}'
    places = (tmp_path / "done", tmp_path / "gone")
    done = run("bash", "-c", command, sys.executable, PRINTS, *places, PYTHONPATH=str(REPOSITORY))
    assert not done.stderr and (tmp_path / "done").exists()
