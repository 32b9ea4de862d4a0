import os
import sys

from conftest import REPOSITORY, run

from common.platform.machine import peak_memory_bytes


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
