import os
import subprocess
import sys
import time

from conftest import REPOSITORY, run

from common.platform.machine import peak_memory_bytes, process_start
from common.record.facts import git_state, versions


def test_a_process_knows_when_it_was_started():
    code = "import os, time; from common.platform.machine import process_start; "
    code += "print(time.perf_counter() - process_start(os.getpid()))"
    started = time.perf_counter()
    age = float(run(sys.executable, "-c", code).stdout)
    elapsed = time.perf_counter() - started
    assert elapsed - 0.5 < age <= elapsed + 0.02  # the kernel counts in hundredths of a second


def test_the_start_of_another_process_can_be_asked_for():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert abs(time.perf_counter() - process_start(process.pid)) < 1
    finally:
        process.communicate()


def test_peak_memory_counts_what_was_freed_again_and_the_children():
    code = """
import subprocess, sys, os
from common.platform.machine import peak_memory_bytes
before = peak_memory_bytes(os.getpid())
block = bytearray(200 * 2**20); del block
alone = peak_memory_bytes(os.getpid())
child = "block = bytearray(100 * 2**20); print(flush=True); input()"
process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process.stdout.readline()
both = peak_memory_bytes(os.getpid())
process.communicate(b"\\n")
print(alone - before, both - alone)
"""
    alone, child = map(int, run(sys.executable, "-c", code, cwd=REPOSITORY).stdout.split())
    assert 150 * 2**20 < alone < 250 * 2**20
    assert 95 * 2**20 < child < 160 * 2**20
    assert peak_memory_bytes(os.getpid()) > 0


def test_versions_and_commit():
    found = versions("numpy")
    assert set(found) == {"python", "platform", "numpy"}
    state = git_state()
    assert state is None or (len(state["commit"]) == 40 and isinstance(state["dirty"], bool))
