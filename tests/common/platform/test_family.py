"""Families of processes: they end together, and leave no temporary files."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from conftest import REPOSITORY, run, wait_for

# A chain of `depth` + 1 processes: each makes a temporary file, starts the next one, prints its id, and waits or ends.
PROGRAM = """
import os, subprocess, sys, tempfile, time
from common.platform.program import as_program, exit_now
with as_program("program"):
    depth, how = int(sys.argv[1]), sys.argv[2]
    tempfile.mkstemp(prefix="left-behind-")
    own = subprocess.Popen([sys.executable, "-c", sys.argv[3], str(depth - 1), how, sys.argv[3]]) if depth else None
    print(os.getpid(), tempfile.gettempdir(), flush=True)
    if how == "wait":
        time.sleep(600)
    if own:
        own.wait()
    exit_now(int(how))
"""


@pytest.fixture
def start():
    """Starts a family; returns its first process, all its processes, and the folders of their temporary files."""
    with ExitStack() as opened:

        def start(folder, depth, how="wait", shell=(), **environment):
            command = [*shell, sys.executable, "-c", PROGRAM, str(depth), str(how), PROGRAM]
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder), **environment}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            opened.enter_context(process)
            lines = [process.stdout.readline().split() for _ in range(depth + 1)]
            family = [psutil.Process(int(pid)) for pid, _ in lines if psutil.pid_exists(int(pid))]
            opened.callback(lambda: [one.kill() for one in family if one.is_running()])
            return process, family, {place for _, place in lines}

        yield start


@pytest.mark.parametrize("how", [0, 3])
def test_a_family_has_one_temporary_folder_that_goes_at_its_end(start, tmp_path, how):
    process, _, places = start(tmp_path, 2, how)
    (place,) = places
    assert Path(place).parent == tmp_path and process.wait(20) == how
    assert not list(tmp_path.iterdir())


@pytest.mark.quick("9", "2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_all_end_with_the_first_one_and_leave_nothing(start, tmp_path, number):
    process, family, _ = start(tmp_path, 2)
    process.send_signal(number)
    assert process.wait(20) == (-9 if number == signal.SIGKILL else 128 + number)
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    wait_until_empty(tmp_path)


def wait_until_empty(folder):
    wait_for(lambda: not list(folder.iterdir()), 5)


# Its parent's thread waits in compiled code that does not let go of Python's lock, as c10d's FileStore does.
BUSY = """
import ctypes, os, subprocess, sys, time
from common.platform.program import as_program
with as_program("program"):
    if len(sys.argv) == 2:
        own = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], "child"], stdout=subprocess.PIPE)
        print(own.stdout.readline().decode(), flush=True)
        time.sleep(600)
    print(os.getpid(), flush=True)
    ctypes.PyDLL(None).sleep(600)
"""


def test_a_process_that_keeps_pythons_lock_ends_with_the_first_one(tmp_path):
    command = [sys.executable, "-c", BUSY, BUSY]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        time.sleep(0.5)
        process.kill()
        gone, alive = psutil.wait_procs([child], timeout=5)
        if alive:
            child.kill()
        assert not alive
    wait_until_empty(tmp_path)


def test_a_family_at_work_is_left_alone(start, tmp_path):
    process, _, (place,) = start(tmp_path, 0)
    assert start(tmp_path, 0, 0)[0].wait(20) == 0
    assert [str(path) for path in tmp_path.iterdir()] == [place]


def test_without_a_place_for_temporary_files_there_is_a_line(tmp_path):
    """Root may write everywhere, so a full disk is simulated instead of a missing permission."""
    environment = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    full = "import tempfile\ndef full(**_): raise OSError(28, 'No space left on device')\ntempfile.mkdtemp = full\n"
    done = run(sys.executable, "-c", full + PROGRAM, "0", "0", PROGRAM, expect=1, **environment)
    assert done.stderr == "program: error: no temporary folder can be made: No space left on device\n"


POOL = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from common.platform.program import as_program, ctrl_c_waits, serve_pool
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
    wait_until_empty(Path(temporary))
    Path(temporary).rmdir()


def test_a_program_that_a_user_has_started_outlives_its_shell(tmp_path):
    """With nohup, for example: the parent of the program changes, and the program continues."""
    out = tmp_path / "out"
    script = f'{sys.executable} -c "$0" 0 wait x > {out} 2>&1 & sleep 1; kill -9 $$'
    run("bash", "-c", script, PROGRAM, expect=-9, PYTHONPATH=str(REPOSITORY), TMPDIR=str(tmp_path))
    process = psutil.Process(int(out.read_text().split()[0]))
    time.sleep(1)
    assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    process.kill()


def test_a_family_of_another_machine_is_none_of_ours(start, tmp_path):
    """A scheduler may pass on the environment of a program on another machine."""
    process, _, _ = start(tmp_path, 0, 0, STARTED_BY_PROCESS="1@elsewhere")
    assert process.wait(20) == 0 and not list(tmp_path.iterdir())


def test_ignored_signals_stay_ignored(start, tmp_path):
    process, _, _ = start(tmp_path, 0, shell=("bash", "-c", 'trap "" HUP; exec "$@"', "bash"))
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
