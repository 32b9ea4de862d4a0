"""The job files of the exercises on a real Slurm cluster of two nodes, where Slurm is installed."""

import sys
import time

import pytest
from conftest import needs_slurm, run
from test_programs import accuracies
from test_slurm_jobs import submit, wait_for_end

pytestmark = [pytest.mark.xdist_group("slurm"), needs_slurm]  # all of them share one cluster
JOBS = {"PT_CNN_MultiGPU": "PyTorch", "PTL_multiGPU": "Lightning"}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job_trains_on_all_devices_of_two_nodes_as_one_process_does(slurm_cluster, job, tmp_path):
    alone = run(sys.executable, "-m", "exercises.PT_CNN_MultiGPU", "--epochs", 2, CUDA_VISIBLE_DEVICES="").stdout
    # One thread per process, because the processes of both nodes are on this machine. Real GPUs are hidden, because the
    # GPUs that Slurm knows are fake.
    here = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    number = submit(slurm_cluster, tmp_path, "--time=3", f"exercises/{job}.slurm", "--epochs", 2, **here)
    state, output = wait_for_end(slurm_cluster, number), (tmp_path / "output").read_text()
    assert state == "COMPLETED", output
    assert output.count(f"{JOBS[job]} on 4 x cpu, batches of 64\n") == 1
    # Only the last batch of an epoch differs. It has 34 images, to which four processes add two for equal shares. That
    # may change the predictions for one or two of the 355 test images.
    assert accuracies(output) == pytest.approx(accuracies(alone), abs=100 * 2.5 / 355)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_fails_as_soon_as_one_of_its_processes_does(slurm_cluster, job, tmp_path):
    for name in ("python", "torchrun"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text('#!/bin/sh\n[ "$SLURM_PROCID" = "$((SLURM_NTASKS - 1))" ] && exit 3\nexec sleep 100\n')
        program.chmod(0o755)
    start = time.monotonic()
    path = f"{tmp_path / 'bin'}:{slurm_cluster['PATH']}"
    number = submit(slurm_cluster, tmp_path, "--time=3", f"exercises/{job}.slurm", PATH=path)
    assert wait_for_end(slurm_cluster, number) == "FAILED", (tmp_path / "output").read_text()
    assert time.monotonic() - start < 50
