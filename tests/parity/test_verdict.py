"""The proof in 64 bits over many configurations: it never calls the same training different."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import IMPLEMENTATIONS, MODES, ONE_ROUND, read_csv, run
from PIL import Image

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from comparison.lockstep import find_departure
from comparison.plan.jobs import Variant
from comparison.plan.options import CompareConfig
from comparison.plan.request import Request
from comparison.prove.proof import TOLERANCE, judge, proof_jobs, verify_steps
from comparison.prove.prover import Prover

COUNT = 100
ROWS = [(name, mode) for mode in MODES for name in IMPLEMENTATIONS]
NAMES = ("pt", "tf")
# Trains the configurations one after the other in one process; prints which of them diverge.
PROGRAM = """
import os
import sys
from importlib import import_module
from pathlib import Path
from common.platform.errors import DivergedError
from common.platform.launch import Launch
from common.record.recorder import Recorder
from common.record.run_folder import with_run_dir
from common.record.timeline import Timeline
from common.spec.options import TrainConfig
backend = import_module(f"{sys.argv[1]}_impl.backend").BACKEND
configs = [TrainConfig.model_validate_json(line) for line in Path(sys.argv[2]).read_text().splitlines()]
for config in configs:
    experiment = with_run_dir(backend.make_experiment(backend.resolve(config)), backend.name)
    if config is configs[0]:
        backend.join(experiment, Launch.read())
    with Recorder(backend, experiment, Timeline.begin(os.getpid()), rank=0, measures=True) as recorder:
        try:
            backend.train(experiment, recorder)
        except DivergedError:
            print("diverged:", config.run_dir.name, flush=True)
"""


def draw(rng):
    """A random configuration that a user might compare: any batch size, and learning rates up to far too high ones."""
    lenet = bool(rng.random() < 0.4)
    batch_size = int(2 ** rng.uniform(2, 9 if lenet else 10))
    options = {"model": "lenet", "dataset": "synthetic", "image_shape": (20, 17, 3), "test_size": 100} if lenet else {}
    return TrainConfig(
        **options,
        train_size=int(rng.integers(batch_size, 4 * batch_size + 2)) if lenet else None,
        batch_size=batch_size,
        epochs=int(rng.integers(1, 12)),
        learning_rate=float(10 ** rng.uniform(-4, 0)),
        schedule=str(rng.choice(["constant", "cosine"])),
        momentum=float(rng.choice([0.0, 0.9, 0.97])),
        weight_decay=float(rng.choice([0.0, 5e-4])),
        seed=int(rng.integers(2**40)),
        accelerator="cpu",
        devices=1,
        threads_per_device=1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of PyTorch and TensorFlow in 64 bits, as in a proof."""
    folder = tmp_path_factory.mktemp("verdict")
    rng = np.random.default_rng(20)
    drawn = [draw(rng) for _ in range(COUNT)]
    for name in NAMES:
        configs = []
        for number, config in enumerate(drawn):
            shape = config.image_shape or (8, 8, 1)
            flops = NetworkSpec.make(config.model, shape, 10).flops_per_image * config.batch_size
            steps = verify_steps(flops)
            configs.append(config.replace(precision="64", verify_steps=steps, run_dir=folder / f"{name}-64-{number}"))
        (folder / f"{name}.jsonl").write_text("".join(config.model_dump_json() + "\n" for config in configs))
        said = run(sys.executable, "-c", PROGRAM, name, folder / f"{name}.jsonl", timeout=3000).stdout
        found = [line.split()[1] for line in said.splitlines() if line.startswith("diverged:")]
        (folder / f"{name}.diverged.json").write_text(json.dumps(found))
    return folder


@pytest.mark.slow
def test_none_of_a_hundred_is_accused_in_64_bits(folder):
    pt, tf = (
        {load.partition("-64-")[2] for load in json.loads((folder / f"{name}.diverged.json").read_text())}
        for name in NAMES
    )
    assert pt - {""} == tf - {""}  # diverging in only one of them would be a difference
    numbers = [number for number in range(COUNT) if str(number) not in pt]
    assert len(numbers) >= 90  # those that diverge have no result in any framework
    accused = {n: find_departure(folder / f"pt-64-{n}", folder / f"tf-64-{n}", TOLERANCE) for n in numbers}
    assert not {number: message for number, message in accused.items() if message}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(15))
def test_no_implementation_mode_or_number_of_devices_is_accused(tmp_path, number):
    """Judges as compare.py does: 15 configurations on 1, 2 or 3 devices, each row against the first one."""
    config = draw(np.random.default_rng([21, number])).replace(devices=1 + number % 3)
    jobs = proof_jobs([Variant((), config)], ROWS, config.seed)
    options = CompareConfig(implementations=IMPLEMENTATIONS, timeout=600)
    request = Request(schema_version=2, created="", commands=["none"], options=options, config=config)
    Prover(tmp_path, request, print).make(jobs)
    first, *others = jobs
    found = {job.name: judge(tmp_path, {}, first.name, job.name) for job in others}
    diverged = [name for name, proof in found.items() if proof.same is None and "diverge" in proof.note]
    assert len(diverged) in (0, len(others)), found
    assert diverged or all(proof.same for proof in found.values()), found


# In these two settings, 32-bit losses drift apart quickly: a bound on them would call the same training different.


@pytest.mark.slow
def test_large_batches_on_two_devices_are_not_accused(tmp_path, data_dir):
    options = ("--dataset", "mnist", "--data-dir", data_dir, "--model", "lenet", "--batch-size", 1024)
    options += ("--devices", 2, "--epochs", 1, "--threads-per-device", 1, "--output-dir", tmp_path / "r")
    run(sys.executable, "compare.py", *options, *ONE_ROUND, timeout=1200)
    rows = read_csv(tmp_path / "r" / "results.csv")
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert max(float(row["loss_difference_first_steps"] or 0) for row in rows) > 1e-5


@pytest.mark.slow
def test_pictures_of_ones_own_are_not_accused(tmp_path, data_dir):
    """Trains on 2,500 images of CIFAR-10, stored as PNGs, for three epochs with batches of 50."""
    script = data_dir / "get-cifar10"
    if not script.exists():
        pytest.skip(f"{script} is not there")
    subprocess.run([sys.executable, script, tmp_path / "cifar"], check=True)
    records = np.fromfile(tmp_path / "cifar" / "cifar-10-batches-bin" / "data_batch_1.bin", np.uint8).reshape(-1, 3073)
    for number, (label, *pixels) in enumerate(records[:2500]):
        folder = tmp_path / "pictures" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.array(pixels).reshape(3, 32, 32).transpose(1, 2, 0)).save(folder / f"{number}.png")
    made = ("--images", tmp_path / "pictures", "--output", tmp_path / "arrays", "--image-shape", 32, 32, 3)
    run(sys.executable, "make_dataset.py", *made)
    options = ("--dataset", "arrays", "--data-dir", tmp_path / "arrays", "--batch-size", 50, "--epochs", 3)
    run(sys.executable, "compare.py", *options, *ONE_ROUND, "--output-dir", tmp_path / "r", timeout=1200)
    rows = read_csv(tmp_path / "r" / "results.csv")
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert max(float(row["loss_difference_first_steps"] or 0) for row in rows) > 1e-5
