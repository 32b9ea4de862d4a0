"""A run from outside its processes: `Program`, what is asked for; `RunEnd`, how it ended; `RunRecord`, what is kept."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from common.platform.files import Count, Natural
from common.spec.options import Mode, TrainConfig
from comparison.plan.jobs import Contender, Job, VariantValues
from comparison.plan.request import Request

RECORD_FILE = "run.json"
NO_START = "1970-01-01T00:00:00+00:00"


class Program(BaseModel, frozen=True, extra="forbid"):
    """A command line and a run folder.

    Attributes:
      interpreter: path of a Python interpreter.
      config: all options; the run folder is an absolute path.
      session: number of the request's command that asks for this program, see `RunRecord`.
      is_reference: whether it is the program of the first row, which the other programs are compared with.
      audited_steps: the steps before and after which it keeps a state, see `comparison.prove.audits`.
    """

    implementation: str
    interpreter: str
    config: TrainConfig
    session: Count = 1
    is_reference: bool = False
    audited_steps: tuple[int, ...] = ()

    @classmethod
    def of(cls, request: Request, implementation: str, config: TrainConfig, **more: Any) -> Self:
        """The program that a comparison needs for these options, which have a run folder; `more`: its other fields."""
        interpreter, session = request.options.interpreters()[implementation], len(request.commands)
        return cls(implementation=implementation, interpreter=interpreter, config=config, session=session, **more)

    @property
    def run_dir(self) -> Path:
        assert self.config.run_dir is not None
        return self.config.run_dir

    @property
    def starter(self) -> tuple[str, ...]:
        """The words that start the program on several nodes of a Slurm job; empty on one node."""
        config = self.config
        if config.nodes == 1:
            return ()
        assert config.devices != "auto"
        each = 1 if self.implementation == "tf" and config.accelerator == "gpu" else config.devices  # processes
        threads = () if config.threads_per_device == "auto" else (f"--cpus-per-task={config.threads_per_device}",)
        tasks = (f"--nodes={config.nodes}", f"--ntasks={config.nodes * each}", f"--ntasks-per-node={each}")
        return ("srun", *tasks, "--cpu-bind=none", "--kill-on-bad-exit=1", *threads)


class RunEnd(BaseModel, frozen=True, extra="forbid"):
    """How a program has ended.

    Attributes:
      started: ISO 8601, UTC.
      process_seconds: from before the process was started until it had ended.
      other_load: share of all cores that other programs used meanwhile, or that other tenants of the hardware took.
        None if not known: processes that srun has started do not count as this program's own.
      throttled: share of the scheduler's periods in which a container's limit stopped processes; None without a limit.
      failure: one line that says why there is no result; None if the program exited with 0.
      group: from 1; programs of a round that do not fit into memory together train in turns in several groups.
    """

    started: str
    process_seconds: float = Field(0.0, ge=0, allow_inf_nan=False)
    other_load: float | None = Field(None, ge=0, allow_inf_nan=False)
    throttled: float | None = Field(None, ge=0, le=1)
    failure: str | None
    group: Count = 1


def now() -> str:
    """The current time, in the format of `RunEnd.started`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunRecord(RunEnd):
    """`run.json`: which run of a comparison it is, see `Job`, and how it has ended; written when it has.

    Attributes:
      session: number of the request's command that made the run, from 1; those that resumed the comparison come later.
      failure: one line that says why there is no result, also if its files are not valid; None if there is one.
    """

    schema_version: Literal[7]
    implementation: str
    mode: Mode
    variant: VariantValues
    session: Count
    seed: Natural
    round: Count
    rate_search: bool

    @property
    def contender(self) -> Contender:
        return Contender(self.implementation, self.mode)

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def title(self) -> str:
        return self.contender.title

    @classmethod
    def make(cls, job: Job, session: int, ended: RunEnd) -> Self:
        return cls(
            schema_version=7,
            implementation=job.implementation,
            mode=job.config.mode,
            variant=dict(job.variant.values),
            session=session,
            seed=job.seed,
            round=job.round,
            rate_search=job.rate_search,
            **ended.model_dump(),
        )
