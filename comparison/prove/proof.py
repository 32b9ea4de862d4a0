"""The runs that prove that rows are the same training. `proving.py` makes, `judging.py` evaluates them.

Each implementation takes the first steps with `--precision 64`, and evaluates. Configuration, code path and number of
devices are exactly those of its row. If several proofs run at the same time, each has one thread.

No fixed bound on 32-bit losses could tell rounding from a mistake: their differences grow with every step, sometimes
from 1e-7 to 1e-3 within ten steps. In 64 bits the differences begin a billion times smaller. Over so few steps they
stay far below `judging.TOLERANCE`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from common.data.datasets import Dataset
from common.experiment import Experiment
from common.spec.options import TrainConfig
from comparison.plan.jobs import Contender, Job, Values, Variant, row_path

PROOF_FILE = "proof.json"
FIRST_BATCH_DIR = "first-batch"  # of the second proofs that are made if two trainings differ
MOST_STEPS, LEAST_STEPS = 20, 5  # all but the first step come after an update
MOST_FLOPS = 2e11  # limit for all steps together, and for all evaluations: some seconds on two cores
PASSES = 3  # a step costs a forward pass, and a backward pass that costs about twice as much


@dataclass(frozen=True)
class ProofJob(Job):
    """The first steps of one row in 64 bits. `data_sha256`: digest of the data set."""

    data_sha256: str

    @property
    def path(self) -> Path:
        return proof_path(dict(self.variant.values), self.name)


class ProofRecord(BaseModel):
    """`proof.json`, beside the files of the run in 64 bits.

    Attributes:
      digest: over configuration, data, code and versions; a proof with the same digest is not made again.
      failure: why there is no result; None if there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2]
    digest: str
    failure: str | None


def proof_path(variant: Values, name: str) -> Path:
    """The folder of a row's run in 64 bits, relative to the comparison's folder."""
    return row_path("proofs", variant, name)


def proof_jobs(variants: Sequence[Variant], contenders: Sequence[Contender], seed: int) -> list[ProofJob]:
    """One proof for each row, with the first seed alone: other seeds run the same code."""
    jobs = []
    for variant in variants:
        experiment = Experiment.make(variant.config.replace(seed=seed))
        flops = experiment.network.flops_per_image
        steps = verify_steps(flops * variant.config.examples_per_step)
        cut = cut_evaluation(variant.config.replace(verify_steps=steps), experiment.dataset, flops)
        for implementation, mode in contenders:
            changes = {"precision": "64", "verify_steps": steps, "seed": seed, "mode": mode, "log_every_n_steps": steps}
            config = variant.config.made_for("side run", **changes, **cut)
            jobs.append(ProofJob(variant, implementation, seed, 1, False, config, experiment.dataset.sha256))
    return jobs


def verify_steps(flops: int) -> int:
    """The number of steps; fewer if a step takes long. `flops`: of a forward pass over all examples of a step."""
    return max(LEAST_STEPS, min(MOST_STEPS, int(MOST_FLOPS / (PASSES * flops))))


def cut_evaluation(config: TrainConfig, dataset: Dataset, flops: int) -> dict[str, int]:
    """Options for a smaller test set, if evaluating the whole test set takes long; else empty.

    The smaller test set has two batches, no larger than in training, and a remainder. With the remainder, its size is
    divisible by the number of devices if and only if the size of the whole test set is.

    Args:
      flops: of a forward pass of one image.
    """
    count, size = len(dataset.test_images), min(config.batch_size, config.eval_batch_size)
    plan = config.plan(len(dataset.train_images))
    evaluations = plan.num_epochs + 1  # one more for the predictions of the report
    if evaluations * count * flops <= MOST_FLOPS:
        return {}
    devices = 1 if config.devices == "auto" else config.devices
    kept = 2 * size + (count - 2 * size) % devices
    if count % config.eval_batch_size and kept % size == 0:
        kept += devices  # the last batch stays incomplete, as in the whole test set
    return {"test_size": kept, "eval_batch_size": size} if kept < count else {}
