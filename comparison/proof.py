"""Whether rows are the same training: proved in 64 bits, where rounding leaves a billion times less than a mistake.

Each implementation takes the first steps of the very same configuration, code path and number of devices with
`--precision 64`, and evaluates; with one thread each where several proofs run side by side. No fixed bound on 32-bit
losses could tell rounding from a mistake: their differences grow with every step, at times from 1e-7 to 1e-3 in ten. In
64 bits they begin a billion times smaller, and stay far below `TOLERANCE` over so few steps.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import BaseModel, ConfigDict

from common.data.datasets import Dataset
from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.files import read_model, write_model
from common.platform.machine import code_sha256, describe_machine, num_cores
from common.platform.probing import LIMIT_VARIABLES
from common.record.predictions import PREDICTIONS_FILE
from common.record.results import (
    METRICS_FILE,
    RESULT_FILE,
    WEIGHTS_FILE,
    EpochLine,
    RunResult,
    read_metrics,
    read_result,
    read_step_losses,
)
from common.spec.batches import Plan
from common.spec.options import Mode, TrainConfig
from comparison.devices import list_gpus
from comparison.jobs import Values, Variant, row_name, variant_name
from comparison.lockstep import OTHER_SETTINGS, find_departure, loss_differences
from comparison.runner import Program, run_side_by_side
from comparison.store import LOG_FILE, Run

PROOF_FILE = "proof.json"
FIRST_BATCH_DIR = "first-batch"  # of the second look at two trainings that part
TOLERANCE = 1e-10  # on losses, relative above 1; equal trainings are about 1e-15 apart
MOST_STEPS, LEAST_STEPS = 20, 5  # of which all but the first come after an update
MOST_FLOPS = 2e11  # of all steps together, and of all evaluations: some seconds on two cores
PASSES = 3  # a forward pass, and a backward one that costs about twice as much
KEPT_FILES = (PROOF_FILE, RESULT_FILE, METRICS_FILE, LOG_FILE)


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
    def path(self) -> Path:
        return proof_path(dict(self.variant.values), self.name)


class Record(BaseModel):
    """`proof.json`, beside the files of the run in 64 bits.

    Attributes:
      digest: over configuration, data, code and versions; the same proof is not made twice.
      failure: why there is no result; None where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[2]
    digest: str
    failure: str | None


@dataclass(frozen=True)
class Proof:
    """What the runs in 64 bits say of a row and of the table's first one.

    Attributes:
      same: whether they are the same training; None where that is not known.
      difference: the largest one in the loss of a step; None where there is none.
      note: where they part, or why it is not known.
    """

    same: bool | None
    difference: float | None = None
    note: str | None = None


def proof_path(variant: Values, name: str) -> Path:
    """Of the run in 64 bits of a row, within the comparison's folder."""
    return Path(*filter(None, ["proofs", variant_name(variant), name.replace(" ", "-")]))


def proof_jobs(variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]], seed: int) -> list[ProofJob]:
    """One for each row, with the first seed: another seed is the same code."""
    jobs = []
    for variant in variants:
        experiment = Experiment.make(variant.config.replace(seed=seed))
        flops = experiment.network.flops_per_image
        steps = verify_steps(flops * variant.config.batch_size)
        cut = cut_evaluation(variant.config.replace(verify_steps=steps), experiment.dataset, flops)
        for implementation, mode in contenders:
            changes = {"precision": "64", "verify_steps": steps, "seed": seed, "mode": mode, "log_every_n_steps": steps}
            config = variant.config.replace(**changes, **cut)
            jobs.append(ProofJob(variant, implementation, mode, config, experiment.dataset.sha256))
    return jobs


def verify_steps(flops: int) -> int:
    """How many steps are taken: fewer where one takes long. `flops`: of a forward pass over a batch."""
    return max(LEAST_STEPS, min(MOST_STEPS, int(MOST_FLOPS / (PASSES * flops))))


def cut_evaluation(config: TrainConfig, dataset: Dataset, flops: int) -> dict[str, int]:
    """Options for a smaller test set where evaluating all of it takes long: two batches no larger than in training.

    And a remainder, so that the number of examples divides by the devices if and only if that of all of them does.

    Args:
      flops: of a forward pass of one image.
    """
    count, size = len(dataset.test_images), min(config.batch_size, config.eval_batch_size)
    plan = Plan.make(len(dataset.train_images), config.batch_size, config.epochs, config.max_steps, config.verify_steps)
    evaluations = max(1, plan.num_epochs) + 1  # and the predictions for the report
    if evaluations * count * flops <= MOST_FLOPS:
        return {}
    devices = 1 if config.devices == "auto" else config.devices
    kept = 2 * size + (count - 2 * size) % devices
    if count % config.eval_batch_size and kept % size == 0:
        kept += devices  # an incomplete last batch, as it would be
    return {"test_size": kept, "eval_batch_size": size} if kept < count else {}


# --- Making proofs ---


def make_proofs(
    folder: Path, jobs: Sequence[ProofJob], interpreters: dict[str, str], timeout: float, say: Callable[[str], None]
) -> None:
    """Makes the proofs that are missing in the comparison's folder: side by side, since nothing is timed.

    Where two trainings part, both are made again with what was computed on the first batch, which tells the layer.

    Args:
      say: told what is done, where something has to be done.
    """
    digests = {job.path: _digest(job, interpreters[job.implementation]) for job in jobs}
    missing = [job for job in jobs if not _is_proof(folder / job.path, digests[job.path])]
    to_run = [job for job in missing if not _restore(folder / job.path, digests[job.path])]
    if to_run:
        names = ", ".join(dict.fromkeys(job.name for job in to_run))
        say(f"proving that all are the same training: first steps in 64 bits, {names}")
        _run(folder, to_run, digests, interpreters, timeout)

    for variant in dict.fromkeys(job.variant for job in jobs):
        first, *others = (job for job in jobs if job.variant == variant)
        parted = [job for job in others if judge(folder, dict(variant.values), first.name, job.name).same is False]
        looked = all((folder / job.path / FIRST_BATCH_DIR).exists() for job in parted)
        if parted and not looked and _shows_layers(first.config):
            say(f"not all are the same training; looking for the layer: {', '.join(job.name for job in parted)}")
            _look_again(folder, [first, *parted], interpreters, timeout)


def _run(
    folder: Path, jobs: Sequence[ProofJob], digests: dict[Path, str], interpreters: dict[str, str], timeout: float
) -> None:
    """Runs them, and keeps what has succeeded for the next comparison, each as soon as it has ended."""
    code = code_sha256()

    def ended(run_dir: Path, failure: str | None) -> None:
        if failure is None:
            try:
                if read_result(run_dir).code_sha256 != code:
                    failure = "the code was changed meanwhile"
            except UserError as error:
                failure = str(error)
        digest = digests[run_dir.relative_to(folder.absolute())]
        record = Record(schema_version=2, digest=digest, failure=failure)
        write_model(run_dir / PROOF_FILE, record)
        if failure is None:
            for name in (WEIGHTS_FILE, PREDICTIONS_FILE):  # larger than the rest, and not looked at
                (run_dir / name).unlink(missing_ok=True)
        if _is_proof(run_dir, digest):
            _keep(run_dir, digest)

    _side_by_side({folder.absolute() / job.path: job for job in jobs}, interpreters, timeout, ended)


def _shows_layers(config: TrainConfig) -> bool:
    """Whether a first batch can be looked into: there is one, and PyTorch has not compiled the layers away."""
    return config.compile is not True and 0 not in (config.epochs, config.max_steps)


def _look_again(folder: Path, jobs: Sequence[ProofJob], interpreters: dict[str, str], timeout: float) -> None:
    """Makes the proofs once more, in folders of their own, with what is computed on the first batch."""
    again = {
        folder.absolute() / job.path / FIRST_BATCH_DIR: replace(job, config=job.config.replace(save_first_batch=True))
        for job in jobs
    }
    _side_by_side(again, interpreters, timeout, lambda run_dir, failure: None)


def _side_by_side(
    jobs: dict[Path, ProofJob],
    interpreters: dict[str, str],
    timeout: float,
    ended: Callable[[Path, str | None], None],
) -> None:
    """Runs each in its folder, as many at once as the cores allow; on a GPU one, since TensorFlow takes all of it."""
    devices = max((1 if job.config.devices == "auto" else job.config.devices for job in jobs.values()), default=1)
    on_cpu = all(job.config.accelerator == "cpu" for job in jobs.values())
    at_once = min(len(jobs), max(1, num_cores() // devices)) if on_cpu else 1
    programs: list[Program] = []
    for run_dir, job in jobs.items():
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        threads = 1 if at_once > 1 else job.config.threads_per_device
        config = job.config.replace(run_dir=run_dir, threads_per_device=threads)
        programs.append((job.implementation, interpreters[job.implementation], config, run_dir))
    run_side_by_side(programs, at_once, timeout, ended)


def _check(path: Path) -> None:
    """Raises UserError where the run of a proof is not whole: as many steps and evaluations as its plan has."""
    plan, steps, epochs = read_result(path).plan, read_step_losses(path), read_metrics(path, EpochLine)
    if (len(steps), len(epochs)) != (plan.total_steps, max(1, plan.num_epochs)):
        raise UserError(
            f"{path}: has {len(steps)} steps and {len(epochs)} evaluations, and should have {plan.total_steps} and"
            f" {max(1, plan.num_epochs)}"
        )


def _is_proof(path: Path, digest: str) -> bool:
    """Whether a whole proof with that digest is there."""
    try:
        record = read_model(Record, path / PROOF_FILE)
        _check(path)
    except UserError:
        return False
    return record.digest == digest and record.failure is None


def _restore(path: Path, digest: str) -> bool:
    """Takes a proof from where an earlier comparison has kept it; whether it was there, and whole."""
    shutil.rmtree(path, ignore_errors=True)
    if not _is_proof(_cache() / digest, digest):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    copy = path.with_name(f".{path.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_cache() / digest, copy)
    copy.rename(path)
    return True


def _keep(run_dir: Path, digest: str) -> None:
    """Copies the files that a proof needs to where the next comparison looks; all of them or none."""
    kept = _cache() / digest
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f".{digest}.{run_dir.stat().st_ino}")
        new.mkdir()
        for name in KEPT_FILES:
            shutil.copy(run_dir / name, new)
        shutil.rmtree(kept, ignore_errors=True)  # a damaged one, or one that another comparison has just made
        new.rename(kept)
    except OSError as error:
        print(f"compare.py: a proof cannot be kept in {kept.parent}, and will be made again: {error}", file=sys.stderr)


def _cache() -> Path:
    return platformdirs.user_cache_path("cnn-in-lockstep") / "proofs"


# --- Reading them ---


def judge(folder: Path, variant: Values, reference: str, name: str, runs: Sequence[Run] = ()) -> Proof:
    """Of the row `name` against the row `reference` of the same variant; and whether it is a proof of their runs."""
    proof = judge_folders(*(folder / proof_path(variant, one) for one in (reference, name)))
    if proof.same is not None and (note := is_of_others(folder, variant, runs)):
        return Proof(None, note=note)
    return proof


def is_of_others(folder: Path, variant: Values, runs: Sequence[Run]) -> str | None:
    """Why the proofs of a variant's rows are none of these runs; None where they are. Rows without a proof pass."""
    paths = {name: folder / proof_path(variant, name) for name in dict.fromkeys(run.record.name for run in runs)}
    try:
        proofs = {name: read_result(path) for name, path in paths.items() if (path / RESULT_FILE).exists()}
    except UserError as error:
        return str(error)
    for run in runs:
        proved, result = proofs.get(run.record.name), run.result
        if proved is None or result is None:
            continue
        differs = {
            "code": proved.code_sha256 != result.code_sha256,
            "versions": _software(proved) != _software(result),
        }
        if found := [what for what in differs if differs[what]]:
            return (
                f"the proof of {run.record.name} is of other {' and '.join(found)} than its runs;"
                " a new comparison makes both"
            )
    return None


def _software(result: RunResult) -> dict[str, str]:
    """Versions, without that of the operating system."""
    return {name: version for name, version in result.versions.items() if name != "platform"}


def judge_folders(reference: Path, other: Path) -> Proof:
    """Of two runs in 64 bits."""
    try:
        for path in (reference, other):
            if failure := read_model(Record, path / PROOF_FILE, "there is no proof; ").failure:
                return Proof(None, note=f"the 64-bit run of {path.name} failed: {failure}; see {path / LOG_FILE}")
        departure = find_departure(reference, other, TOLERANCE)
        if departure is None:
            for path in (reference, other):
                _check(path)
        differences = loss_differences(read_step_losses(reference), read_step_losses(other))
    except UserError as error:
        return Proof(None, note=str(error))
    if departure and departure.startswith(OTHER_SETTINGS):
        return Proof(None, note=departure)
    difference = float(differences.max()) if len(differences) else None
    if departure:
        with suppress(UserError):  # where nobody has looked a second time, or that has failed
            departure = find_departure(reference / FIRST_BATCH_DIR, other / FIRST_BATCH_DIR, TOLERANCE) or departure
    return Proof(departure is None, difference, departure)


def first_loss(folder: Path, variant: Values, name: str, seed: int) -> float | None:
    """The loss of step 1 in 64 bits; None where there is no proof with that seed."""
    path = folder / proof_path(variant, name)
    try:
        result, losses = read_result(path), read_step_losses(path)
    except UserError:
        return None
    return losses[0] if losses and result.config.seed == seed else None


# --- What a proof is of ---


def _digest(job: ProofJob, interpreter: str) -> str:
    """Hex digest over all that its losses depend on."""
    weights = job.config.initial_weights
    parts = {
        "implementation": job.implementation,
        "config": job.config.training_fields(),
        "data": job.data_sha256,
        "initial_weights": hashlib.sha256(weights.read_bytes()).hexdigest() if weights else None,
        "code": code_sha256(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "versions": _versions(interpreter),
        "machine": describe_machine().model_dump(exclude={"hostname", "memory_bytes"}),
        "gpus": list_gpus() if job.config.accelerator == "gpu" else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# What changes the kernels that a framework takes.
ENVIRONMENT = (*LIMIT_VARIABLES, "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES")
VERSIONS = """import importlib.metadata, sys
print(sys.version, sorted((str(one.name), one.version) for one in importlib.metadata.distributions()))"""


@cache
def _versions(interpreter: str) -> str:
    """Of an interpreter and of everything that is installed for it."""
    if interpreter == sys.executable:
        return f"{sys.version} {sorted((str(one.name), one.version) for one in importlib.metadata.distributions())}"
    try:
        return subprocess.run([interpreter, "-c", VERSIONS], capture_output=True, text=True, check=False).stdout
    except OSError:  # its runs will tell
        return ""
