"""compare.py makes a small report in time from a thousand stored runs, and from a sweep of two hundred variants."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from conftest import REPOSITORY, read_csv
from made_up import MadeUp, comparison

SPEED = {"tf": 8000, "pt": 27000, "ptl": 25500}
BATCH_SIZES, MOMENTA = range(16, 56, 2), ("0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")
SIZES = {
    "rounds": {"repeats": 334},
    "sweep": {"sweep": [f"batch-size={','.join(map(str, BATCH_SIZES))}", f"momentum={','.join(MOMENTA)}"]},
}


def noisy(job):
    wave = 1 + 0.05 * ((job.round * 7 + job.config.batch_size + job.seed) % 11)
    accuracies = tuple(0.99 - 0.5 / epoch for epoch in range(1, 11))
    return MadeUp(speed=SPEED[job.implementation] * wave, accuracies=accuracies, loss_factor=1 + 1e-9 * job.round)


def memory_of(process):
    """Bytes that a process and all its descendants use; memory that they share counts once."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total


def children_seconds():
    """Processor seconds of all child processes that have ended."""
    used = os.times()
    return used.children_user + used.children_system


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_report_is_made_in_half_a_minute_and_a_gibibyte(tmp_path, size):
    folder = tmp_path / "many"
    options = {"epochs": 10, "learning_rate": 0.05, **SIZES[size]}
    summary = comparison(folder, noisy, **options)
    runs = len(list(summary.numbered_runs))
    assert runs >= {"rounds": 1000, "sweep": 600}[size]
    begun, peak = children_seconds(), 0
    command = [sys.executable, "compare.py", "--report-only", str(folder)]
    with open(tmp_path / "out", "w") as out:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=out, stderr=out, env={**os.environ, "COLUMNS": "80"})
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.Error):
                peak = max(peak, memory_of(watched))
            time.sleep(0.1)
    seconds = children_seconds() - begun  # not the clock, which also counts other programs
    told = (tmp_path / "out").read_text()
    page = (folder / "report.html").stat().st_size
    print(f"{size}: {runs:,} runs, {seconds:.1f} s, {peak / 2**20:,.0f} MiB, page {page / 1e6:.2f} MB")
    assert process.returncode == 0, told
    assert len(read_csv(folder / "runs.csv")) == runs
    assert seconds < 30 and peak < 2**30 and page < 5e6
