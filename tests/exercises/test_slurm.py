"""The job files of the exercises: with fake_slurm.py everywhere, and on a real cluster if Slurm is installed."""

import os
import re
import socket
import sys
import time
from pathlib import Path

import pytest
from conftest import LACKS_SLURM, SLURM_CLUSTER, needs_slurm, run
from printed import accuracies

pytestmark = pytest.mark.xdist_group("slurm")  # all of them share one cluster

HERE = Path(__file__).parent
PYTHON = Path(sys.executable)
# Job -> the beginning of its title, and the tasks that srun must start: node, rank, local rank. torchrun starts its
# processes itself.
JOBS = {
    "PT_CNN_MultiGPU": ("PyTorch", ["n1 0 0", "n2 1 0"]),
    "PTL_multiGPU": ("Lightning", ["n1 0 0", "n1 1 1", "n2 2 0", "n2 3 1"]),
}
# OMP_NUM_THREADS: 1 avoids a notice by torchrun; Lightning's processes get as many threads as they have CPUs.
THREADS = {"PT_CNN_MultiGPU": 1, "PTL_multiGPU": 4}


def write_program(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def cluster(*arguments, **expected):
    return run(PYTHON, SLURM_CLUSTER, *arguments, **expected)


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Environment variables with which sbatch and srun are the fake programs."""
    folder = tmp_path_factory.mktemp("fake")
    for name in ("sbatch", "srun"):
        write_program(folder / name, f'exec {PYTHON} {HERE / "fake_slurm.py"} {name} "$@"')
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


CLUSTER = pytest.param("slurm_cluster", marks=needs_slurm)


@pytest.fixture(params=["fake", CLUSTER])
def slurm(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[pytest.param("fake", marks=() if LACKS_SLURM else pytest.mark.slow), CLUSTER])
def training_slurm(request):
    """For slow jobs: on a machine with a real cluster, the tests with the fake programs are marked slow."""
    return request.getfixturevalue(request.param)


def submit(slurm, folder, *words, programs=(), **environment):
    """Runs `sbatch words` with the folders `programs` first on PATH; returns the job's final state and its output."""
    output = folder / "output"
    path = ":".join([*map(str, programs), str(PYTHON.parent), slurm["PATH"]])
    # Real GPUs are hidden, because the GPUs that Slurm knows are fake.
    environment = {**slurm, "PATH": path, "CUDA_VISIBLE_DEVICES": "", **environment}
    submitted = run("sbatch", f"--output={output}", "--time=3", *words, **environment).stdout
    state = "PENDING"
    while state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
        shown = submitted
        if "JobState" not in submitted:  # the fake sbatch prints the state itself
            time.sleep(0.2)
            shown = run("scontrol", "show", "job", submitted.split()[-1], **environment).stdout
        state = re.search(r"JobState=(\w+)", shown)[1]
    return state, output.read_text()


def job_file(job):
    return f"exercises/{job}.slurm"


@pytest.fixture(scope="module")
def alone():
    """The accuracies that one process reaches."""
    output = run(PYTHON, "-m", "exercises.PT_CNN_MultiGPU", "--epochs", 2, CUDA_VISIBLE_DEVICES="").stdout
    assert "PyTorch on 1 x cpu, batches of 64\n" in output
    return accuracies(output)


# --- The jobs ---


@pytest.mark.slow
@pytest.mark.parametrize("job", ["PT_CNN_MultiGPU", pytest.param("PTL_multiGPU", marks=pytest.mark.slow)])
def test_a_job_trains_on_all_devices_of_two_nodes_as_one_process_does(training_slurm, job, alone, tmp_path):
    title, tasks = JOBS[job]
    for name in ("python", "torchrun"):  # record where they are started
        note = f'echo "$SLURMD_NODENAME $SLURM_PROCID $SLURM_LOCALID" >> {tmp_path}/tasks'
        write_program(tmp_path / "bin" / name, note, f'exec {PYTHON.parent / name} "$@"')
    # One thread per process, because the processes of both nodes are on this machine.
    words = (job_file(job), "--epochs", 2)
    state, output = submit(training_slurm, tmp_path, *words, programs=[tmp_path / "bin"], OMP_NUM_THREADS="1")
    assert state == "COMPLETED", output
    assert sorted((tmp_path / "tasks").read_text().splitlines()) == tasks
    assert re.findall(rf"^{title} on .*$", output, re.MULTILINE) == [f"{title} on 4 x cpu, batches of 64"]
    # Only the last batch of an epoch differs. It has 34 images, to which four processes add two for equal shares. That
    # may change the predictions for one or two of the 355 test images.
    assert accuracies(output) == pytest.approx(alone, abs=100 * 2.5 / 355)


@pytest.mark.quick("fake")
@pytest.mark.parametrize(
    ("job", "options", "environment", "expected"),
    [
        ("PT_CNN_MultiGPU", [], {}, {"nnodes": 2, "nproc-per-node": 2}),
        ("PT_CNN_MultiGPU", ["--gpus-per-node=1", "--nodes=1"], {}, {"nnodes": 1, "nproc-per-node": 1}),
        ("PT_CNN_MultiGPU", ["--gpus-per-node=0"], {}, {"nproc-per-node": 2}),
        ("PT_CNN_MultiGPU", ["--gpus-per-node=0"], {"PROCESSES_PER_NODE": "4"}, {"nproc-per-node": 4}),
        ("PTL_multiGPU", [], {}, {"nodes": 2, "devices": 2}),
        ("PTL_multiGPU", ["--gpus-per-node=0", "--nodes=1", "--ntasks-per-node=3"], {}, {"nodes": 1, "devices": 3}),
    ],
)
def test_the_programs_get_the_jobs_numbers_and_its_arguments(
    slurm, job, options, environment, expected, tmp_path, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("python", "torchrun"):  # one echo per task, because the outputs of tasks may mix
        write_program(
            tmp_path / "bin" / name,
            """echo "$(printf '[%s]' "$MASTER_ADDR:$MASTER_PORT" "$@") threads $OMP_NUM_THREADS" """,
        )
    words = [*options, job_file(job), "--dataset", "a b"]
    state, output = submit(slurm, tmp_path, *words, programs=[tmp_path / "bin"], **environment)
    assert state == "COMPLETED", output
    nodes = 1 if "--nodes=1" in options else 2
    assert len(output.splitlines()) == nodes * expected.get("devices", 1)
    # On one machine the processes would find each other without an address, so this test checks the address.
    address, port = re.match(r"\[(.+):(2\d{4})\]", output).groups()
    assert address == socket.gethostname()
    told = f"[--master-addr={address}][--master-port={port}]" if job == "PT_CNN_MultiGPU" else f"[{address}:{port}]"
    for line in output.splitlines():
        assert line.endswith(f"[--dataset][a b] threads {THREADS[job]}") and told in line
        for option, value in expected.items():
            assert re.findall(rf"\[--{option}(?:=|\]\[)(\w+)\]", line) == [str(value)]


@pytest.mark.quick("fake")
@pytest.mark.parametrize("job", JOBS)
def test_a_job_fails_as_soon_as_one_of_its_processes_does(slurm, job, tmp_path):
    for name in ("python", "torchrun"):
        last_fails = 'if [ "$SLURM_PROCID" = "$((SLURM_NTASKS - 1))" ]; then exit 3; fi'
        write_program(tmp_path / "bin" / name, last_fails, "exec sleep 100")
    start = time.monotonic()
    state, output = submit(slurm, tmp_path, job_file(job), programs=[tmp_path / "bin"])
    assert state == "FAILED", output
    assert time.monotonic() - start < 50


@pytest.mark.slow
@needs_slurm
def test_a_job_fails_where_torchrun_reports_a_failure(slurm_cluster, tmp_path):
    one = ["--nodes=1", "--gpus-per-node=1"]
    state, output = submit(slurm_cluster, tmp_path, *one, job_file("PT_CNN_MultiGPU"), "--batch-size", "many")
    assert state == "FAILED"
    assert "error: argument --batch-size: invalid positive value: 'many'" in output


# --- What they are tested with ---


@needs_slurm
@pytest.mark.parametrize("gpus", [None, 0, 2])
def test_the_fake_gives_tasks_the_environment_that_slurm_gives_them(fake, slurm_cluster, gpus, tmp_path):
    job = tmp_path / "job.slurm"
    lines = ["#SBATCH --nodes=2 --ntasks-per-node=2   # a comment", "#SBATCH --cpus-per-task=4 --job-name=name"]
    if gpus is not None:
        lines.append(f"#SBATCH --gpus-per-node={gpus}")
    lines += ['env -0 > "$FOUND/job"', """srun --cpus-per-task=4 bash -c 'env -0 > "$FOUND/$SLURM_PROCID"'"""]
    job.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    found = {}
    for name, slurm in (("fake", fake), ("real", slurm_cluster)):
        (tmp_path / name).mkdir()
        state, output = submit(slurm, tmp_path, job, FOUND=str(tmp_path / name))
        assert state == "COMPLETED", output
        for file in ("job", "0", "1", "2", "3"):
            pairs = (tmp_path / name / file).read_text().rstrip("\0").split("\0")
            found[name, file] = dict(pair.split("=", 1) for pair in pairs)
    for file in ("job", "0", "1", "2", "3"):
        ours, slurms = found["fake", file], found["real", file]
        names = {name for name in ours if name.startswith("SLURM")} | {"HOSTNAME", "SLURM_GPUS_ON_NODE"}
        for name in names - {"SLURM_JOB_ID", "SLURM_JOBID"}:
            assert ours.get(name) == slurms.get(name), f"{name} in {file}"
        assert int(slurms["SLURM_JOB_ID"]) == int(slurms["SLURM_JOBID"])


def processes_with(text):
    """The pids of all processes that have `text` in their command or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(text.encode() in (process / name).read_bytes() for name in ("cmdline", "environ")):
                found.append(process.name)
        except (FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            continue
        except PermissionError:  # not even root may read this process, so it is not ours
            continue
    return found


@pytest.fixture
def folder(tmp_path_factory):
    """The folder of a separate cluster, which is stopped at the end even if the test has not stopped it."""
    folder = tmp_path_factory.mktemp("own")
    cluster("start", folder)
    yield folder
    if (folder / "processes.json").exists():
        cluster("stop", folder)


@pytest.mark.slow
@needs_slurm
def test_a_stopped_cluster_leaves_no_process_behind(folder, tmp_path):
    daemons = len(processes_with(str(folder)))
    assert daemons >= 4
    job = tmp_path / "job"  # it ignores SIGTERM
    srun = f"""srun bash -c 'trap "" TERM; touch {tmp_path}/began-$SLURM_PROCID; while true; do sleep 1; done'"""
    job.write_text(f"#!/bin/bash\n#SBATCH --nodes=2 --output=/dev/null\n{srun}\n")
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    run("sbatch", job, **environment)
    while len(list(tmp_path.glob("began-*"))) < 2:
        assert run("squeue", "-h", **environment).stdout, "the job has ended"
        time.sleep(0.1)
    assert len(processes_with(str(folder))) > daemons
    cluster("stop", folder)
    assert processes_with(str(folder)) == []
    assert f"error: {folder} has no cluster\n" == cluster("stop", folder, expect=1).stderr


@needs_slurm
def test_a_cluster_that_cannot_start_says_why_in_few_words(tmp_path, tmp_path_factory):
    assert "error: sinfo is missing: apt-get install slurmctld" in cluster("start", tmp_path, expect=1, PATH="").stderr
    assert "too long for Slurm's sockets in it\n" in cluster("start", tmp_path / ("x" * 90), expect=1).stderr
    write_program(tmp_path / "bin" / "slurmd", "echo no good", "exit 7")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    folder = tmp_path_factory.mktemp("none")
    assert cluster("start", folder, expect=1, PATH=path).stderr == "error: n1 ended with status 7:\nno good\n"
    assert processes_with(str(folder)) == []
