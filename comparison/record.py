"""What is known of a run from outside."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from common.spec.options import Mode
from comparison.jobs import Job, Values, row_name, row_title
from comparison.program import Ended, Moment

RECORD_FILE = "run.json"


class Record(BaseModel):
    """`run.json`: what is known of a run from outside, written when it has ended, however that was.

    Attributes:
      variant: of a sweep, see `comparison.jobs`.
      started, process_seconds, other_load, runnable_threads, throttled: see `Ended`.
      session: which of the request's commands made it, from 1: those that resumed it came later.
      failure: one line on why there is no result; None where there is one.
      files_sha256: over its files as they were when it ended, see `comparison.integrity`; None where it failed.
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
    files_sha256: str | None = None

    @property
    def name(self) -> str:
        """Of its row."""
        return row_name(self.implementation, self.mode)

    @property
    def title(self) -> str:
        return row_title(self.implementation, self.mode)

    @staticmethod
    def identity_of(job: Job) -> dict[str, Any]:
        """The fields that say which run it is."""
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
        """Of a run of which nothing else is known."""
        return cls.make(job, 1, Ended.unknown(failure))
