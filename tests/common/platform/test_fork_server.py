"""The fork server: signals to it and interrupted requests lose neither a program nor its exit status."""

import os
import signal
import sys

import pytest
from conftest import REPOSITORY, gone, wait_for

from common.platform.fork_server import ForkServer

PROGRAM = """import signal, sys
if "fails" in sys.argv:
    raise SystemExit(3)
print("begins", flush=True)
signal.pause()
"""


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "waiting_impl"
    folder.mkdir()
    (folder / "backend.py").touch()
    (folder / "__main__.py").write_text(PROGRAM)
    server = ForkServer(
        sys.executable, "waiting_impl", "backend", os.environ | {"PYTHONPATH": f"{REPOSITORY}:{tmp_path}"}
    )
    assert server.is_ready(60)
    yield server
    server.end()


def start(server, path, *arguments):
    process = server.start(list(arguments), {}, str(path))
    if not arguments:
        wait_for(lambda: path.exists() and path.read_text())
    return process


def test_a_signal_to_all_processes_of_a_job_is_for_the_programs_alone(server, tmp_path):
    process = start(server, tmp_path / "log")
    for number in (signal.SIGTERM, signal.SIGUSR1):
        server._process.send_signal(number)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert start(server, tmp_path / "second", "fails").wait() == 3


def test_an_interrupted_look_at_a_program_loses_neither_it_nor_its_exit_status(server, tmp_path, monkeypatch):
    first, second = start(server, tmp_path / "first"), start(server, tmp_path / "second")
    os.kill(first.pid, signal.SIGTERM)
    wait_for(lambda: gone([first.pid]))
    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(server, "_answer", lambda number: (_ for _ in ()).throw(KeyboardInterrupt))
        first.poll()
    assert second.poll() is None
    assert first.wait() == -signal.SIGTERM
