"""Whether rows are the same training: proved in 64 bits, where rounding leaves a billion times less than a mistake.

Each implementation takes the first steps of the very same configuration, code path and number of devices with
`--precision 64`, and evaluates. No fixed bound on 32-bit losses could tell rounding from a mistake: their differences
grow with every step, in some configurations tenfold in three.
"""

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import BaseModel, ConfigDict

from common.config import Mode, TrainConfig
from common.errors import UserError
from common.experiment import Experiment
from common.machine import REPOSITORY, describe_machine, num_cores
from common.predictions import PREDICTIONS_FILE
from common.results import (
    METRICS_FILE,
    RESULT_FILE,
    WEIGHTS_FILE,
    read_model,
    read_result,
    read_step_losses,
    write_text,
)
from comparison.lockstep import OTHER_SETTINGS, find_departure, loss_differences
from comparison.runner import Program, run_side_by_side
from comparison.store import LOG_FILE
from comparison.study import Values, Variant, row_name, variant_name

PROOF_FILE = "proof.json"
TOLERANCE = 1e-10  # on losses, relative above 1; equal trainings are about 1e-15 apart
MOST_STEPS, LEAST_STEPS = 20, 4  # of 4 steps three come after an update
MOST_FLOPS = 2e11  # of all steps together: some seconds on two cores
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

    schema_version: Literal[1]
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
        steps = verify_steps(experiment.model.flops_per_image * variant.config.batch_size)
        for implementation, mode in contenders:
            changes = {"precision": "64", "verify_steps": steps, "seed": seed, "mode": mode, "log_every_n_steps": steps}
            config = variant.config.replace(**changes)
            jobs.append(ProofJob(variant, implementation, mode, config, experiment.dataset.sha256))
    return jobs


def verify_steps(flops: int) -> int:
    """How many steps are taken: fewer where one takes long. `flops`: of a forward pass over a batch."""
    return max(LEAST_STEPS, min(MOST_STEPS, int(MOST_FLOPS / (PASSES * flops))))


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
    missing = [job for job in jobs if _read(folder / job.path, digests[job.path]) is None]
    for job in missing:
        shutil.rmtree(folder / job.path, ignore_errors=True)
        if (kept := _cache() / digests[job.path]).exists():
            shutil.copytree(kept, folder / job.path)
    to_run = [job for job in missing if not (folder / job.path).exists()]
    if to_run:
        names = ", ".join(dict.fromkeys(job.name for job in to_run))
        say(f"proving that all are the same training: first steps in 64 bits, {names}")
        _run(folder, to_run, digests, interpreters, timeout)

    parted: list[ProofJob] = []
    for variant in dict.fromkeys(job.variant for job in jobs):
        first, *others = (job for job in jobs if job.variant == variant)
        found = [job for job in others if judge(folder, dict(variant.values), first.name, job.name).same is False]
        parted += [first, *found] if found else []
    again = [job for job in parted if job in missing]
    if again and not any(job.config.compile is True for job in parted):
        say(f"not all are the same training; looking for the layer: {', '.join(job.name for job in parted)}")
        _run(folder, parted, digests, interpreters, timeout, save_first_batch=True)


def _run(
    folder: Path,
    jobs: Sequence[ProofJob],
    digests: dict[Path, str],
    interpreters: dict[str, str],
    timeout: float,
    save_first_batch: bool = False,
) -> None:
    """Runs them, as many at once as the cores allow, and keeps what has succeeded for the next comparison."""
    programs: list[Program] = []
    at_once = max(1, len(jobs))
    for job in jobs:
        run_dir = folder.absolute() / job.path
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        config = job.config.replace(run_dir=run_dir, save_first_batch=save_first_batch)
        devices = 1 if config.devices == "auto" else config.devices
        # On a GPU one after the other: TensorFlow takes all of its memory.
        at_once = min(at_once, max(1, num_cores() // devices) if config.accelerator == "cpu" else 1)
        programs.append((job.implementation, interpreters[job.implementation], config, run_dir))
    threads = 1 if at_once > 1 else "auto"
    programs = [(name, path, config.replace(threads_per_device=threads), run) for name, path, config, run in programs]
    failures = run_side_by_side(programs, at_once, timeout)
    for job in jobs:
        run_dir = folder.absolute() / job.path
        failure = failures.get(run_dir)
        if failure is None:
            try:
                read_result(run_dir)
                read_step_losses(run_dir)
            except UserError as error:
                failure = str(error)
        record = Record(schema_version=1, digest=digests[job.path], failure=failure)
        write_text(run_dir / PROOF_FILE, record.model_dump_json(indent=2) + "\n")
        if failure is None:
            for name in (WEIGHTS_FILE, PREDICTIONS_FILE):  # larger than the rest, and not looked at
                (run_dir / name).unlink(missing_ok=True)
            _keep(run_dir, record.digest)


def _keep(run_dir: Path, digest: str) -> None:
    """Copies the files that a proof needs to where the next comparison looks; all of them or none."""
    kept = _cache() / digest
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f".{digest}.{run_dir.stat().st_ino}")
        new.mkdir()
        for name in KEPT_FILES:
            shutil.copy(run_dir / name, new)
        if kept.exists():
            shutil.rmtree(new)
        else:
            new.rename(kept)
    except OSError as error:
        print(f"compare.py: a proof cannot be kept in {kept.parent}, and will be made again: {error}", file=sys.stderr)


def _cache() -> Path:
    return platformdirs.user_cache_path("cnn-in-lockstep") / "proofs"


# --- Reading them ---


def judge(folder: Path, variant: Values, reference: str, name: str) -> Proof:
    """Of the row `name` against the row `reference` of the same variant."""
    return judge_folders(folder / proof_path(variant, reference), folder / proof_path(variant, name))


def judge_folders(reference: Path, other: Path) -> Proof:
    """Of two runs in 64 bits; neither same nor different, and without a note, where one was never made."""
    if not all((path / PROOF_FILE).exists() for path in (reference, other)):
        return Proof(None)
    try:
        for path in (reference, other):
            if failure := read_model(Record, path / PROOF_FILE).failure:
                return Proof(None, note=f"the 64-bit run of {path.name} failed: {failure}; see {path / LOG_FILE}")
        departure = find_departure(reference, other, TOLERANCE)
        differences = loss_differences(read_step_losses(reference), read_step_losses(other))
    except UserError as error:
        return Proof(None, note=str(error))
    if departure and departure.startswith(OTHER_SETTINGS):
        return Proof(None, note=departure)
    difference = float(differences.max()) if len(differences) else None
    return Proof(departure is None, difference, departure)


def first_loss(folder: Path, variant: Values, name: str, seed: int) -> float | None:
    """The loss of step 1 in 64 bits; None where there is no proof with that seed."""
    path = folder / proof_path(variant, name)
    try:
        result, losses = read_result(path), read_step_losses(path)
    except UserError:
        return None
    return losses[0] if losses and result.config.seed == seed else None


def _read(path: Path, digest: str) -> Record | None:
    """The record of a proof that is there and succeeded; None where it has to be made."""
    try:
        record = read_model(Record, path / PROOF_FILE)
    except UserError:
        return None
    return record if record.digest == digest and record.failure is None else None


# --- What a proof is of ---


def _digest(job: ProofJob, interpreter: str) -> str:
    """Hex digest over all that its losses depend on."""
    weights = job.config.initial_weights
    parts = {
        "implementation": job.implementation,
        "config": job.config.training_fields(),
        "data": job.data_sha256,
        "initial_weights": hashlib.sha256(weights.read_bytes()).hexdigest() if weights else None,
        "code": _code_digest(),
        "versions": _versions(interpreter),
        "machine": describe_machine().model_dump(exclude={"hostname", "memory_bytes"}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _code_digest() -> str:
    """Over the Python files of all implementations and of what they share."""
    digest = hashlib.sha256()
    for path in sorted([*REPOSITORY.glob("common/**/*.py"), *REPOSITORY.glob("*_impl/**/*.py")]):
        digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


VERSIONS = "import importlib.metadata as m; print(sorted((d.name, d.version) for d in m.distributions()))"


@cache
def _versions(interpreter: str) -> str:
    """Of everything that is installed for an interpreter."""
    if interpreter == sys.executable:
        return str(sorted((one.name, one.version) for one in importlib.metadata.distributions()))
    try:
        return subprocess.run([interpreter, "-c", VERSIONS], capture_output=True, text=True, check=False).stdout
    except OSError:  # its runs will tell
        return ""
