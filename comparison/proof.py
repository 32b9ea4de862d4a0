"""What is run to prove that rows are the same training, see `comparison.proving`; what it shows: `comparison.judging`.

Each implementation takes the first steps of the very same configuration, code path and number of devices with
`--precision 64`, and evaluates; with one thread each where several proofs run side by side. No fixed bound on 32-bit
losses could tell rounding from a mistake: their differences grow with every step, at times from 1e-7 to 1e-3 in ten. In
64 bits they begin a billion times smaller, and stay far below `comparison.judging.TOLERANCE` over so few steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from common.data.datasets import Dataset
from common.experiment import Experiment
from common.spec.options import Mode, TrainConfig
from comparison.jobs import Values, Variant, row_name, row_title, variant_name

PROOF_FILE = "proof.json"
FIRST_BATCH_DIR = "first-batch"  # of the second look at two trainings that part
MOST_STEPS, LEAST_STEPS = 20, 5  # of which all but the first come after an update
MOST_FLOPS = 2e11  # of all steps together, and of all evaluations: some seconds on two cores
PASSES = 3  # a forward pass, and a backward one that costs about twice as much


@dataclass(frozen=True)
class ProofJob:
    """The first steps of one row in 64 bits.

    Attributes:
      path: its folder, within the comparison's.
      data_sha256: of the data set.
    """

    variant: Variant
    implementation: str
    mode: Mode
    config: TrainConfig
    data_sha256: str

    @property
    def name(self) -> str:
        return row_name(self.implementation, self.mode)

    @property
    def title(self) -> str:
        return row_title(self.implementation, self.mode)

    @property
    def path(self) -> Path:
        return proof_path(dict(self.variant.values), self.name)


class ProofRecord(BaseModel):
    """`proof.json`, beside the files of the run in 64 bits.

    Attributes:
      digest: over configuration, data, code and versions; the same proof is not made twice.
      failure: why there is no result; None where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2]
    digest: str
    failure: str | None


def proof_path(variant: Values, name: str) -> Path:
    """Of the run in 64 bits of a row, within the comparison's folder."""
    return Path(*filter(None, ["proofs", variant_name(variant), name.replace(" ", "-")]))


def proof_jobs(variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]], seed: int) -> list[ProofJob]:
    """One for each row, with the first seed: another seed is the same code."""
    jobs = []
    for variant in variants:
        experiment = Experiment.make(variant.config.replace(seed=seed))
        flops = experiment.network.flops_per_image
        steps = verify_steps(flops * variant.config.examples_per_step)
        cut = cut_evaluation(variant.config.replace(verify_steps=steps), experiment.dataset, flops)
        for implementation, mode in contenders:
            changes = {"precision": "64", "verify_steps": steps, "seed": seed, "mode": mode, "log_every_n_steps": steps}
            changes |= {"checkpoint_every": None, "logger": (), "profile": None}
            config = variant.config.replace(**changes, **cut)
            jobs.append(ProofJob(variant, implementation, mode, config, experiment.dataset.sha256))
    return jobs


def verify_steps(flops: int) -> int:
    """How many steps are taken: fewer where one takes long. `flops`: of a forward pass over the examples of a step."""
    return max(LEAST_STEPS, min(MOST_STEPS, int(MOST_FLOPS / (PASSES * flops))))


def cut_evaluation(config: TrainConfig, dataset: Dataset, flops: int) -> dict[str, int]:
    """Options for a smaller test set where evaluating all of it takes long: two batches no larger than in training.

    And a remainder, so that the number of examples divides by the devices if and only if that of all of them does.

    Args:
      flops: of a forward pass of one image.
    """
    count, size = len(dataset.test_images), min(config.batch_size, config.eval_batch_size)
    plan = config.plan(len(dataset.train_images))
    evaluations = plan.num_epochs + 1  # and the predictions for the report
    if evaluations * count * flops <= MOST_FLOPS:
        return {}
    devices = 1 if config.devices == "auto" else config.devices
    kept = 2 * size + (count - 2 * size) % devices
    if count % config.eval_batch_size and kept % size == 0:
        kept += devices  # an incomplete last batch, as it would be
    return {"test_size": kept, "eval_batch_size": size} if kept < count else {}
