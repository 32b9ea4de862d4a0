"""A run on two devices that is ended or loses a process prints one line, returns a status and leaves nothing behind."""

import os
import random
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import CPU, IMPLEMENTATIONS, REPOSITORY, family_of, program_of, start_process, wait_for

from common.platform.errors import describe_signal

ONE_PROCESS = ("tf", "keras", "jax")  # for all devices


def begin(training, implementation, *options, **environment):
    """Starts a run that would take hours, waits for a random step, and returns the process and all of its family."""
    step = random.randint(1, 200)
    print(f"from step {step} on")
    process = training(implementation, step, "--epochs", 100_000, *options, **environment)
    return process, family_of(process)


# The C library returns freed arrays of 64 KiB or more to the system, so each step has to ask for memory again. It has
# only one arena: the arenas of other threads reserve 64 MiB each, from which it could also serve the main thread.
ASKS_EACH_TIME = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def end_of(process, family, tmp_path):
    """Waits for the end; returns the exit status and the program's own lines on stderr.

    Fails if a process, a stack trace or a result is left.
    """
    err = process.communicate(timeout=60)[1]
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive and "Traceback" not in err, err
    assert not (tmp_path / "r" / "result.json").exists()
    return process.returncode, [line for line in err.splitlines() if line.startswith("python -m ")]


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ctrl_c_ends_all_replicas_in_one_line(training, tmp_path, implementation):
    process, family = begin(training, implementation, "--devices", 2)
    listening = [
        connection.laddr.ip
        for member in family
        for connection in member.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {"127.0.0.1", "::1"} >= set(listening), "reached from other machines"
    assert implementation in ONE_PROCESS or (listening and len(family) >= 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    status, lines = end_of(process, family, tmp_path)
    assert (status, lines) == (130, [f"python -m {implementation}_impl: interrupted"])


@pytest.mark.parametrize("program", ["pt_impl", "exercises"])
def test_ctrl_c_while_it_starts_ends_it_without_a_stack_trace(tmp_path, program):
    options = ("--run-dir", tmp_path / "r") if program == "pt_impl" else ()
    for after in (0.1, 0.2, 0.4):
        command = [sys.executable, "-m", program, *map(str, options)]
        with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(after)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        # A stack trace from before the first import was made is the interpreter's own.
        assert str(REPOSITORY / program) not in err or "quiet_start" in err, err


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_ctrl_c_while_it_is_built_leaves_nothing(tmp_path, implementation):
    command = (*program_of(implementation), "--devices", 2, *CPU, "--run-dir", tmp_path / "r")
    process = start_process(command, stdout=subprocess.DEVNULL)
    wait_for((tmp_path / "r" / "config.json").exists, 120)
    family = family_of(process)
    os.killpg(process.pid, signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and f"python -m {implementation}_impl: interrupted\n" in err
    assert str(REPOSITORY) not in err, err  # a replica that just starts may print a stack trace of the interpreter
    assert not psutil.wait_procs(family, timeout=10)[1] and not (tmp_path / "r" / "result.json").exists()


@pytest.mark.quick("pt-SIGKILL-first")
@pytest.mark.parametrize(
    ("implementation", "name", "whom"),
    [
        *((implementation, "SIGTERM", "first") for implementation in ("tf", "jax", "pt")),
        ("ptl", "SIGTERM", "all"),
        *((implementation, "SIGKILL", whom) for implementation in ("pt", "ptl") for whom in ("first", "last")),
    ],
)
def test_a_signal_ends_all_replicas_in_one_line(training, tmp_path, implementation, name, whom):
    process, family = begin(training, implementation, "--devices", 2)
    number = getattr(signal, name)
    if whom == "all":
        os.killpg(process.pid, number)
    else:
        os.kill(family[0 if whom == "first" else -1].pid, number)
    status, lines = end_of(process, family, tmp_path)
    program, ended = f"python -m {implementation}_impl", describe_signal(number)
    if whom == "last":
        lost = "another process of this run has ended" if implementation == "ptl" else f"replica 1 was ended by {ended}"
        assert status == 1 and lines[-1].startswith(f"{program}: error: {lost}")
    elif name == "SIGKILL":
        assert status == -9 and not lines
    else:
        assert status == 128 + number and lines == [f"{program}: ended by {ended}"]


@pytest.mark.quick("pt-1")
@pytest.mark.parametrize(("implementation", "devices"), [("pt", 1), ("pt", 2), ("ptl", 2)])
def test_memory_that_runs_out_in_training_is_reported_in_one_line(training, tmp_path, implementation, devices):
    """The process that runs out of memory prints the line; TensorFlow's own checks may abort it instead."""
    process, family = begin(training, implementation, "--devices", devices, "--batch-size", 256, **ASKS_EACH_TIME)
    victim = family[-1 if devices > 1 else 0]
    limit = victim.memory_info().vms // 2
    resource.prlimit(victim.pid, resource.RLIMIT_AS, (limit, limit))
    status, lines = end_of(process, family, tmp_path)
    assert status == 1 and lines
    where = f"(evaluation: 1,000 images at a time) on {devices} x cpu"
    assert f"_impl: error: out of memory with --batch-size 256 {where}" in lines[0]
