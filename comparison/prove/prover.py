"""Makes the proofs that are missing, and keeps them in a cache for later comparisons."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common.platform.errors import UserError
from common.platform.files import read_json_model, user_cache, write_json_model, writing
from common.platform.machine import code_sha256, describe_machine, list_gpus, num_cores
from common.platform.processor import LIMIT_VARIABLE
from common.record.audited_states import STATES_DIR
from common.record.predictions import PREDICTIONS_FILE
from common.record.results import WEIGHTS_FILE, read_result
from common.spec.options import DEVICES_OF, TrainConfig
from common.spec.own_network import digest_of
from comparison.plan.request import Request
from comparison.prove.audits import (
    audited_steps_that_fit,
    make_audits_side_by_side,
    read_audits,
    steps_around_skipped,
)
from comparison.prove.proof import (
    CLOSER_DIR,
    FIRST_BATCH_DIR,
    PROOF_FILE,
    SKIPPED_DIR,
    LossJump,
    ProofJob,
    ProofRecord,
    check_proof_complete,
    judge,
    proof_path,
)
from comparison.run.program import Program, RunEnd
from comparison.run.runner import Follower, run_programs
from comparison.run.store import Run, check_name

ProofPrograms = Mapping[Path, tuple[str, TrainConfig]]  # run folder -> implementation and options


@dataclass(frozen=True)
class Prover:
    """Makes proofs; several run at the same time, since nothing is timed.

    Attributes:
      folder: the comparison's folder.
      say: called with messages for people, if there is something to do.
    """

    folder: Path
    request: Request
    say: Callable[[str], None]

    def make(self, jobs: Sequence[ProofJob]) -> None:
        """Makes the proofs that are missing in the comparison's folder.

        If two trainings differ, both proofs are made again, and save what is computed on the first batch. This shows in
        which layer they begin to differ.
        """
        digests = {job.path: self._digest(job) for job in jobs}
        missing = [job for job in jobs if not _is_proof(self.folder / job.path, digests[job.path])]
        missing = [job for job in missing if not _restore(self.folder / job.path, digests[job.path])]
        if missing:
            names = ", ".join(dict.fromkeys(job.title for job in missing))
            self.say(f"checking that all rows are the same training, by their first steps in 64-bit precision: {names}")
            self._run(missing, digests)

        for variant in dict.fromkeys(job.variant for job in jobs):
            first, *others = (job for job in jobs if job.variant == variant)
            values = dict(variant.values)
            parted = [job for job in others if judge(self.folder, values, first.name, job.name).same is False]
            if not all(read_audits(self.folder / job.path / FIRST_BATCH_DIR) for job in parted):
                self.say(f"losses differ; looking for the layer and the step: {', '.join(row.title for row in parted)}")
                self._look_again([first, *parted])

    def _run(self, jobs: Sequence[ProofJob], digests: dict[Path, str]) -> None:
        """Runs the proofs. As soon as a proof has succeeded on this machine, it is kept for later comparisons."""
        code = code_sha256()
        jobs_by_dir = {self.folder.absolute() / job.path: job for job in jobs}

        def note(program: Program, ended: RunEnd) -> None:
            run_dir, failure, digest = program.run_dir, ended.failure, digests[jobs_by_dir[program.run_dir].path]
            if failure is None:
                try:
                    result = read_result(run_dir)
                    check_name(result.implementation, program.implementation)
                    if result.code_sha256 != code:
                        failure = "the code was changed meanwhile"
                except UserError as error:
                    failure = str(error)
            write_json_model(run_dir / PROOF_FILE, ProofRecord(schema_version=2, digest=digest, failure=failure))
            if _is_proof(run_dir, digest):
                for name in (WEIGHTS_FILE, PREDICTIONS_FILE):  # larger than the other files, and not needed
                    (run_dir / name).unlink(missing_ok=True)
                _keep(run_dir, digest)

        self._run_side_by_side({path: (job.implementation, job.config) for path, job in jobs_by_dir.items()}, note)

    def _look_again(self, jobs: Sequence[ProofJob]) -> None:
        """Makes the proofs again, in separate folders: saves what is computed on the first batch, and audits steps."""
        again = {
            self.folder.absolute() / job.path / FIRST_BATCH_DIR: (
                job.implementation,
                job.config.replace(save_first_batch=_shows_layers(job.config)),
            )
            for job in jobs
        }
        self._audit(again, audited_steps_that_fit(jobs[0].config))

    def look_closer(self, jumps: Iterable[LossJump]) -> None:
        """Makes runs once more that suddenly part from the first row's, and audits the steps around; nothing is timed.

        In a comparison's rounds, chance decides which steps are audited.
        """
        by_first: dict[Path, list[LossJump]] = {}
        for jump in jumps:
            by_first.setdefault(jump.first.run_dir, []).append(jump)
        for parted in by_first.values():
            first = parted[0].first
            titles = " and ".join(f"{jump.run.record.title} at step {jump.step}" for jump in parted)
            self.say(
                f"losses suddenly part from those of {first.record.title} (seed {first.record.seed}): {titles};"
                " training again, to audit the steps around"
            )
            again = {self._proof_dir(run) / CLOSER_DIR: run for run in (first, *(jump.run for jump in parted))}
            steps = {step for jump in parted for step in jump.audited_steps}
            self._audit(_as_before(again), tuple(sorted(steps)))

    def look_at_skipped_steps(self, runs: Sequence[Run]) -> None:
        """Makes runs in float16 once more if loss scaling has skipped steps in one of them, and audits these steps.

        Nobody knows beforehand which steps overflow. In all rows, those are audited that any row has skipped, as far
        as the states of so many steps fit, and the steps after them.
        """
        rows: dict[tuple[Path, int], dict[Path, Run]] = {}  # variant and seed -> folder -> the row's first run
        for run in runs:
            if run.result and run.result.skipped_steps is not None and not run.record.rate_search:
                path = self._proof_dir(run)
                rows.setdefault((path.parent, run.record.seed), {}).setdefault(path / SKIPPED_DIR, run)
        for again in rows.values():
            have_skipped = any(run.result and run.result.skipped_steps for run in again.values())
            if not have_skipped or all(map(read_audits, again)):
                continue
            self.say("loss scaling has skipped steps; training again, to audit them")
            programs = _as_before(again)
            _, config = next(iter(programs.values()))
            self._audit(programs, audited_steps_that_fit(config), only_skipped=True)

    def _proof_dir(self, run: Run) -> Path:
        """The folder of the proof of the run's row."""
        return self.folder.absolute() / proof_path(run.record.variant, run.record.name)

    def _audit(self, programs: ProofPrograms, steps: tuple[int, ...], only_skipped: bool = False) -> None:
        """Runs the programs, and audits these steps; with `only_skipped` those that any of them has skipped."""
        succeeded = []

        def note(program: Program, ended: RunEnd) -> None:
            if ended.failure is None:
                succeeded.append(program.run_dir)

        try:
            self._run_side_by_side(programs, note, steps)
            asked = {*steps} & steps_around_skipped(succeeded) if only_skipped else steps
            _, config = next(iter(programs.values()))
            make_audits_side_by_side(succeeded, config, asked)  # without an audit, nothing more is known of a run
        finally:
            for run_dir in programs:
                if not read_audits(run_dir):  # it was interrupted, or has failed: its states are of no use
                    shutil.rmtree(run_dir / STATES_DIR, ignore_errors=True)

    def _run_side_by_side(
        self, programs: ProofPrograms, ended: Callable[[Program, RunEnd], None], audited_steps: tuple[int, ...] = ()
    ) -> None:
        """Runs each program in its folder.

        One job more runs at once than the cores allow, since each of them waits for files now and then. On GPUs only
        one job runs, since TensorFlow takes all GPU memory.
        """
        devices, at_once = 1, len(programs)
        for _, config in programs.values():
            devices = max(devices, DEVICES_OF.get(config.strategy, 1) if config.devices == "auto" else config.devices)
            at_once = min(at_once, max(1, num_cores() // devices) + 1 if config.accelerator == "cpu" else 1)
        made = []
        for run_dir, (implementation, config) in programs.items():
            with writing(run_dir):
                shutil.rmtree(run_dir, ignore_errors=True)
            threads = 1 if at_once > 1 else config.threads_per_device
            config = config.replace(run_dir=run_dir, threads_per_device=threads)
            made.append(Program.of(self.request, implementation, config, audited_steps=audited_steps))
        run_programs(made, self.request.options.timeout, Follower(ended), at_once)

    def _digest(self, job: ProofJob) -> str:
        """Hex digest over everything that the losses of a proof depend on."""
        here = describe_machine().model_dump(exclude={"hostname", "memory_bytes"})
        parts = {
            "implementation": job.implementation,
            "config": job.config.training_fields(),
            "data": job.data_sha256,
            "network": digest_of(job.config.model) if job.config.has_own_network else None,
            "code": code_sha256(),
            "environment": {name: os.environ.get(name) for name in PROVED_ENVIRONMENT},
            "versions": _versions(self.request.options.interpreters()[job.implementation]),
            "machine": here,
            "gpus": list_gpus() if job.config.accelerator == "gpu" else None,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _as_before(runs: Mapping[Path, Run]) -> dict[Path, tuple[str, TrainConfig]]:
    """The programs that make runs once more, each in another folder."""
    return {
        run_dir: (run.record.implementation, run.result.config.replace(resume=None, logger=()))
        for run_dir, run in runs.items()
        if run.result
    }


def _shows_layers(config: TrainConfig) -> bool:
    """Whether layers' outputs can be saved.

    Not with compiled networks, `--strategy dp` or `pipeline` in PyTorch, nor of a network of the user's, whose layers
    `python -m port` compares.
    """
    return not config.has_own_network and config.compile is not True and config.strategy not in ("dp", "pipeline")


def _is_proof(path: Path, digest: str) -> bool:
    """Whether the folder has a complete, successful proof with this digest."""
    try:
        record = read_json_model(ProofRecord, path / PROOF_FILE)
        check_proof_complete(path)
    except UserError:
        return False
    return record.digest == digest and record.failure is None


def _restore(path: Path, digest: str) -> bool:
    """Copies a proof that an earlier comparison has kept in the cache; False if there is no complete one."""
    shutil.rmtree(path, ignore_errors=True)
    if not _is_proof(_cache() / digest, digest):
        return False
    with writing(path):
        shutil.copytree(_cache() / digest, path)
    return True


def _keep(run_dir: Path, digest: str) -> None:
    """Copies a proof into the cache for later comparisons; all of its files or none."""
    kept = _cache() / digest
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f".{digest}.{run_dir.stat().st_ino}")
        shutil.copytree(run_dir, new)
        shutil.rmtree(kept, ignore_errors=True)  # a damaged one, or one that another comparison has just made
        new.rename(kept)
    except OSError as error:
        print(f"compare.py: a proof cannot be kept in {kept.parent}, and will be made again: {error}", file=sys.stderr)


def _cache() -> Path:
    return user_cache() / "proofs"


# --- What a proof is of ---

# Environment variables that change which kernels a framework uses.
PROVED_ENVIRONMENT = (
    *(LIMIT_VARIABLE, "DNNL_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"),
    "CUDA_VISIBLE_DEVICES",
)
VERSIONS_SECONDS = 60.0  # for the following lines; an interpreter that needs longer will be reported by its runs
PRINT_VERSIONS = """import importlib.metadata, sys
print(sys.version, sorted((str(one.name), one.version) for one in importlib.metadata.distributions()))"""


@cache
def _versions(interpreter: str) -> str:
    """The versions of an interpreter and of all packages that are installed for it."""
    command = [interpreter, "-c", PRINT_VERSIONS]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=VERSIONS_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):  # the runs of this interpreter will report it
        return ""
