"""What is known of a run from outside."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from common.spec.options import Mode
from comparison.jobs import Job, Values, row_name

RECORD_FILE = "run.json"
NEVER = "1970-01-01T00:00:00+00:00"


def _moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("without a time zone")
    return text


class Record(BaseModel):
    """`run.json`: what is known of a run from outside, written when it has ended, however that was.

    Attributes:
      variant: of a sweep, see `comparison.jobs`.
      started: ISO 8601, UTC.
      process_seconds: from before the process was started until it had ended.
      other_load: share of all cores that other programs used meanwhile, or other tenants of the hardware took.
      session: which of the request's commands made it, from 1: those that resumed it came later.
      failure: one line on why there is no result; None where there is one.
      files_sha256: over its files as they were when it ended, see `comparison.integrity`; None where it failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[4]
    implementation: str
    mode: Mode
    variant: Values
    session: int = Field(gt=0)
    seed: int
    round: int = Field(gt=0)
    tuning: bool
    started: Annotated[str, AfterValidator(_moment)]
    process_seconds: float = Field(ge=0)
    other_load: float = Field(ge=0)
    failure: str | None
    files_sha256: str | None = None

    @property
    def name(self) -> str:
        """Of its row."""
        return row_name(self.implementation, self.mode)

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
    def failed(cls, job: Job, failure: str) -> Self:
        """Of a run of which nothing else is known."""
        unknown = {"session": 1, "started": NEVER, "process_seconds": 0.0, "other_load": 0.0}
        return cls(schema_version=4, **cls.identity_of(job), **unknown, failure=failure)
