"""The job files of launch/, on a real Slurm cluster of two nodes."""

import re
import sys
from pathlib import Path

import pytest
from conftest import CPU, REPOSITORY, needs_slurm, program_of, read_csv, run, steps_taken, wait_for

from common.implementations import interpreter_of
from common.record.results import read_result, read_step_losses
from launch.make import job_files

pytestmark = pytest.mark.xdist_group("slurm")

ON_CPUS = ("--gpus-per-node=0", "--time=10")
TRAINING = (*CPU, "--dataset", "digits", "--precision", 64, "--epochs", 8, "--batch-size", 32)


def test_the_job_files_are_what_the_templates_make():
    there = {path for folder in ("slurm", "lsf") for path in (REPOSITORY / "launch" / folder).iterdir()}
    made = job_files()
    assert there == made.keys()
    for path, text in made.items():
        assert path.read_text() == text, f"{path}: python -m launch.make"
        run("bash", "-n", path)


@pytest.mark.parametrize("path", sorted(job_files()), ids=lambda path: path.name)
def test_a_job_trains_on_a_gpu_or_ends_at_once_unless_the_cpu_is_asked_for(tmp_path, path):
    """The job file is run here; what it would start, and nvidia-smi, are replaced."""

    def runs(*options, gpu, expect=0):
        started = tmp_path / "started"
        started.unlink(missing_ok=True)
        for name in ("srun", "mpirun", "python"):
            (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" > {started}\n')
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{'echo GPU 0: made up' if gpu else 'exit 9'}\n")
        for program in tmp_path.iterdir():
            program.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_ARRAY_JOB_ID": "1"}
        environment |= {"SLURM_CPUS_PER_TASK": "1", "SLURM_ARRAY_TASK_ID": "1", "LSB_JOBID": "1", "LSB_JOBINDEX": "1"}
        environment |= {"OPTIONS": " ".join(options), "LSB_DJOB_HOSTFILE": "hosts"}
        words = options if path.suffix == ".slurm" else ()
        done = run("bash", path, *words, cwd=tmp_path, expect=expect, **environment)
        return (started.read_text() if started.exists() else None), done.stderr

    command, said = runs(gpu=False, expect=1)
    assert command is None and said.endswith("has no GPU for this job: request one, or give --accelerator cpu\n")
    assert "--accelerator gpu --epochs 2" in runs("--epochs", "2", gpu=True)[0]
    command, said = runs("--accelerator", "cpu", gpu=False)
    assert "--accelerator cpu" in command and "gpu" not in command and not said


def job_state(number, slurm):
    return re.search(r"JobState=(\w+)", run("scontrol", "show", "job", number, **slurm).stdout)[1]


def submit(slurm, folder, *words, **environment):
    """Runs `sbatch words` and returns the job's number. The job writes to the file `output` in `folder`."""
    environment = {**slurm, "PATH": f"{Path(sys.executable).parent}:{slurm['PATH']}", **environment}
    done = run("sbatch", "--parsable", f"--output={folder / 'output'}", *words, **environment)
    return done.stdout.strip()


def wait_for_end(slurm, number, seconds=240):
    def ended():
        state = job_state(number, slurm)
        return state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED") and state

    return wait_for(ended, seconds)


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["pt", "tf", "ptl", "jax"])
def test_a_job_that_is_signalled_comes_back_and_goes_on(slurm_cluster, tmp_path, implementation):
    """Trains on two nodes with two devices each. Slurm sends USR1 before the time limit and before preemption."""
    alone = tmp_path / "alone"
    run(*program_of(implementation), *TRAINING, "--run-dir", alone)
    run_dir = tmp_path / "run"
    options = ("--ntasks-per-node=2", *ON_CPUS, f"launch/slurm/{implementation}.slurm", *TRAINING)
    path = f"{Path(interpreter_of(implementation)).parent}:{slurm_cluster['PATH']}"
    number = submit(slurm_cluster, tmp_path, *options, RUN_DIR=str(run_dir), PATH=path)
    wait_for(lambda: steps_taken(run_dir) > 50, 120)
    run("scancel", "--signal=USR1", number, **slurm_cluster)
    wait_for(lambda: job_state(number, slurm_cluster) == "PENDING", 60)
    assert not (run_dir / "result.json").exists() and list((run_dir / "checkpoints").iterdir())
    # Slurm delays a requeued job for two minutes; this shortens the delay to two seconds. A job that restarts within
    # the second of its end fails, because its nodes take its new credential for the revoked one.
    run("scontrol", "update", f"JobId={number}", "StartTime=now+2", **slurm_cluster)
    assert wait_for_end(slurm_cluster, number) == "COMPLETED", (tmp_path / "output").read_text()
    result = read_result(run_dir)
    assert (result.config.num_nodes, result.config.devices) == (2, 2)
    assert 0 < result.resumed_from < result.num_steps
    assert read_step_losses(run_dir) == pytest.approx(read_step_losses(alone), rel=1e-12)


@needs_slurm
@pytest.mark.slow
def test_a_comparison_of_one_and_of_two_nodes_is_one_job(slurm_cluster, tmp_path):
    options = ("--implementations", "tf", "pt", "ptl", "--mode", "plain", "--sweep", "num-nodes=1,2")
    options = (*options, "--scaling", "strong", "--epochs", 1, "--devices", 1, *CPU, "--repeats", 1)
    job = ("--nodes=2", *ON_CPUS, "launch/slurm/compare.slurm", *options)
    number = submit(slurm_cluster, tmp_path, *job, OUTPUT_DIR=str(tmp_path / "r"))
    assert wait_for_end(slurm_cluster, number) == "COMPLETED", (tmp_path / "output").read_text()
    rows = read_csv(tmp_path / "r" / "results.csv")
    assert [(row["status"], row["devices"]) for row in rows] == [("ok", "1")] * 3 + [("ok", "2")] * 3
    assert [row["same_training"] for row in rows] == ["", "True", "True"] * 2
