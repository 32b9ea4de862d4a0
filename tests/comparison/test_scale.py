"""compare.py makes a small report in time from a thousand stored runs, and from a sweep of two hundred variants."""

import json
import sys

import pytest
from conftest import REPOSITORY, read_csv, run
from made_up import MadeUp, comparison

BATCH_SIZES, MOMENTA = ",".join(map(str, range(16, 56, 2))), ",".join(f"0.{number}" for number in range(10))
SWEEP = [f"batch-size={BATCH_SIZES}", f"momentum={MOMENTA}"]

# Runs a command; prints its processor seconds and its peak memory in KiB. To the peak of a process the kernel adds that
# of the process that has started it, so what measures must be small itself, unlike this process.
MEASURE = """import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))"""


def noisy(job):
    wave = 1 + 0.05 * ((job.round * 7 + job.config.batch_size + job.seed) % 11)
    accuracies = tuple(0.99 - 0.5 / epoch for epoch in range(1, 11))
    return MadeUp(speed=8000 * wave, accuracies=accuracies, loss_factor=1 + 1e-9 * job.round)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "runs"), [({"repeats": 334}, 1002), ({"sweep": SWEEP}, 600)])
def test_a_report_is_made_in_half_a_minute_and_a_gibibyte(tmp_path, options, runs):
    comparison(tmp_path, noisy, epochs=10, learning_rate=0.05, **options)
    command = (sys.executable, "compare.py", "--report-only", tmp_path)
    seconds, kibibytes = json.loads(run(sys.executable, "-c", MEASURE, *command, cwd=REPOSITORY).stdout)
    assert len(read_csv(tmp_path / "runs.csv")) == runs
    assert seconds < 30 and kibibytes < 2**20  # seconds of the processor
    assert (tmp_path / "report.html").stat().st_size < 5e6
