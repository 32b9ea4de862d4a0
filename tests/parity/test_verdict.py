"""The proof in 64 bits over many configurations: it never calls the same training different."""

import numpy as np
import pytest
from agreement import RANDOM_SETTINGS
from conftest import IMPLEMENTATIONS, MODES

from common.spec.options import TrainConfig
from comparison.plan.jobs import Variant
from comparison.plan.options import CompareConfig
from comparison.plan.request import Request
from comparison.prove.proof import judge, proof_jobs
from comparison.prove.prover import Prover

ROWS = [(name, mode) for mode in MODES for name in IMPLEMENTATIONS]


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


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RANDOM_SETTINGS // 10))
def test_no_implementation_mode_or_number_of_devices_is_accused(tmp_path, number):
    """Judges as compare.py does: configurations on 1, 2 or 3 devices, each row against the first one."""
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
