"""The record of a run: what is known of it apart from the files that it writes itself."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from common.spec.options import Mode
from comparison.jobs import Job, Values, row_name, row_title
from comparison.program import Ended, Moment

RECORD_FILE = "run.json"


class Record(BaseModel):
    """`run.json`: what is known of a run from outside its processes. It is written when the run has ended or failed.

    Attributes:
      variant: the values of a sweep's options, see `comparison.jobs`.
      started, process_seconds, other_load, runnable_threads, throttled, group: see `Ended`.
      session: number of the request's command that made the run, from 1; those that resumed the comparison come later.
      failure: one line that says why there is no result; None if there is one.
      files_sha256: digest of its files when the run ended, see `comparison.integrity`; None if the run failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[5]
    implementation: str
    mode: Mode
    variant: Values
    session: int = Field(gt=0)
    seed: int
    round: int = Field(gt=0)
    tuning: bool
    started: Moment
    process_seconds: float = Field(ge=0)
    other_load: float | None = Field(ge=0)
    runnable_threads: float | None = Field(ge=0)
    throttled: float | None = Field(ge=0, le=1)
    failure: str | None
    group: int = Field(default=1, gt=0)
    files_sha256: str | None = None

    @property
    def name(self) -> str:
        """The name of its row."""
        return row_name(self.implementation, self.mode)

    @property
    def title(self) -> str:
        return row_title(self.implementation, self.mode)

    @staticmethod
    def identity_of(job: Job) -> dict[str, Any]:
        """The fields that identify the run."""
        return {
            "implementation": job.implementation,
            "mode": job.config.mode,
            "variant": dict(job.variant.values),
            "seed": job.seed,
            "round": job.round,
            "tuning": job.tuning,
        }

    @classmethod
    def make(cls, job: Job, session: int, ended: Ended) -> Self:
        return cls(schema_version=5, **cls.identity_of(job), session=session, **ended.model_dump())

    @classmethod
    def failed(cls, job: Job, failure: str) -> Self:
        """The record of a run of which only the failure is known."""
        return cls.make(job, 1, Ended.unknown(failure))
