"""A run of two devices that somebody ends, or one of whose processes dies: one line, a status, and nothing left."""

import getpass
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from conftest import CPU, REPOSITORY, run, wait_for

from common.platform.errors import describe_signal
from common.record.results import StepLine, read_metrics

SLOW = pytest.mark.slow


@pytest.fixture
def training(tmp_path):
    """A run of two devices in the middle of its training."""
    (tmp_path / "temporary").mkdir()
    started = []

    def start(implementation):
        command = [sys.executable, "-m", f"{implementation}_impl", "--devices", "2", *map(str, CPU)]
        process = subprocess.Popen(
            [*command, "--epochs", "100000", "--run-dir", str(tmp_path / "r")],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
        )
        started.append(process)
        metrics = tmp_path / "r" / "metrics.jsonl"
        wait_for(lambda: process.poll() is not None or metrics.exists() and read_metrics(tmp_path / "r", StepLine), 120)
        assert process.poll() is None, process.communicate()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert len(family) >= 2 or implementation in ("tf", "keras")
        return process, family

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def end_of(process, family, tmp_path):
    """The status and the lines on standard error that are this program's; nothing else may be left."""
    err = process.communicate(timeout=30)[1]
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive and "Traceback" not in err, err
    left = [path for path in (tmp_path / "temporary").rglob("*") if path.name != f"torchinductor_{getpass.getuser()}"]
    assert not left  # but for the folder that torch makes for what it has compiled
    assert not (tmp_path / "r" / "result.json").exists()
    return process.returncode, [line for line in err.splitlines() if line.startswith("python -m ")]


@pytest.mark.parametrize("implementation", ["tf", pytest.param("keras", marks=SLOW), "pt", "ptl"])
def test_ctrl_c_ends_all_replicas_in_one_line(training, tmp_path, implementation):
    process, family = training(implementation)
    listening = [
        one.laddr.ip
        for member in family
        for one in member.net_connections(kind="inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert {"127.0.0.1", "::1"} >= set(listening), "reached from other machines"
    assert listening or implementation in ("tf", "keras")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert end_of(process, family, tmp_path) == (130, [f"python -m {implementation}_impl: interrupted"])


@pytest.mark.parametrize("program", ["pt_impl", "exercises", "make_dataset"])
def test_ctrl_c_while_it_starts_ends_it_without_a_stack_trace(tmp_path, program):
    options = ("--run-dir", tmp_path / "r") if program == "pt_impl" else ()
    for after in (0.1, 0.2, 0.4):
        command = [sys.executable, "-m", program, *map(str, options)]
        with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(after)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert "Traceback" not in err, err


ENDS = [
    pytest.param("tf", "SIGTERM", "first", marks=SLOW),
    pytest.param("keras", "SIGTERM", "first", marks=SLOW),
    pytest.param("pt", "SIGTERM", "first", marks=SLOW),
    ("ptl", "SIGTERM", "first"),
    pytest.param("ptl", "SIGTERM", "all", marks=SLOW),
    pytest.param("ptl", "SIGUSR1", "all", marks=SLOW),
    pytest.param("tf", "SIGHUP", "first", marks=SLOW),
    pytest.param("pt", "SIGTERM", "last", marks=SLOW),
    pytest.param("ptl", "SIGTERM", "last", marks=SLOW),
    ("pt", "SIGKILL", "last"),
    pytest.param("ptl", "SIGKILL", "last", marks=SLOW),
    ("pt", "SIGKILL", "first"),
    pytest.param("ptl", "SIGKILL", "first", marks=SLOW),
]


@pytest.mark.parametrize(("implementation", "name", "whom"), ENDS)
def test_a_signal_ends_all_replicas_in_one_line(training, tmp_path, implementation, name, whom):
    process, family = training(implementation)
    number = getattr(signal, name)
    if whom == "all":
        os.killpg(process.pid, number)
    else:
        os.kill(family[0 if whom == "first" else -1].pid, number)
    status, lines = end_of(process, family, tmp_path)
    program, ended = f"python -m {implementation}_impl", describe_signal(number)
    if whom == "last":
        assert status == 1 and lines[-1:] == [f"{program}: error: replica 1 was ended by {ended}"]
    elif name == "SIGKILL":
        assert status == -9 and not lines
    else:
        assert status == 128 + number and lines == [f"{program}: ended by {ended}"]


@pytest.mark.parametrize("implementation", ["pt", pytest.param("ptl", marks=SLOW)])
def test_a_replica_that_is_stopped_is_found(training, tmp_path, implementation):
    """Else the others would wait for it, for half an hour."""
    process, family = training(implementation)
    family[-1].suspend()
    status, lines = end_of(process, family, tmp_path)
    assert status == 1
    assert lines == [
        f"python -m {implementation}_impl: error: replica 1 was ended by {describe_signal(signal.SIGKILL)}"
    ]


@pytest.mark.parametrize("implementation", ["pt", "ptl"])
def test_what_a_launcher_would_have_set_is_refused_without_one(tmp_path, implementation):
    command = (sys.executable, "-m", f"{implementation}_impl", *CPU, "--run-dir", tmp_path / "r")
    for variables in ({"LOCAL_RANK": "1"}, {"RANK": "abc"}):
        done = run(*command, expect=2, **variables)
        ((name, value),) = variables.items()
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"python -m {implementation}_impl: error: {name} {value}: ") and not done.stdout
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("port", ["nonsense", pytest.param("99999", marks=SLOW)])
def test_lightning_needs_no_port_of_the_environment(tmp_path, port):
    options = (*CPU, "--devices", 2, "--max-steps", 2, "--run-dir", tmp_path / "r")
    run(sys.executable, "-m", "ptl_impl", *options, MASTER_PORT=port, MASTER_ADDR="nowhere.invalid")
