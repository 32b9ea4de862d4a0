"""The results of a comparison: the content of `results.json`, of tables, figures and the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from common.record.results import RunResult
from comparison.baseline import Change
from comparison.record import Record
from comparison.row import Row
from comparison.store import Request, Run
from comparison.table import Table


class RunSample(BaseModel):
    """A single run: its record and its own result, which is null if the run failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: int = Field(ge=0)
    run_dir: str
    record: Record
    result: RunResult | None


class Results(BaseModel):
    """`results.json`. `results.schema.json` beside it is its JSON schema.

    Attributes:
      command: the command that made the comparison; the last one if it was resumed.
      rows: see `Row`.
      runs: all runs, in the order in which they were made.
      warnings: lines on what might mislead a reader of the rows.
      baseline: lines on what has changed since the comparison named by --baseline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_file: Literal["results.schema.json"] = Field("results.schema.json", alias="$schema")
    schema_version: Literal[3]
    created: str
    command: str
    target_accuracy: float | None
    warnings: list[str]
    baseline: list[str]
    rows: list[Row]
    runs: list[RunSample]


@dataclass(frozen=True)
class Summary:
    """All that tables, figures and reports show.

    Attributes:
      folder: the comparison's folder.
      runs: all runs that have ended, including those for tuning.
      missing: how many runs are still to be made.
      baseline: the changes as lines of text, or why there are none.
      changes: the changes of the rows since the baseline.
    """

    folder: Path
    request: Request
    tables: Sequence[Table]
    runs: Sequence[Run]
    missing: int
    warnings: list[str]
    baseline: list[str]
    changes: list[Change]

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables for row in table.rows]

    @property
    def succeeded(self) -> bool:
        """Whether all runs that were asked for have succeeded, and are the same training."""
        apart = any(table.apart for table in self.tables)
        return not self.missing and not apart and all(row.status == "ok" for row in self.rows)

    @property
    def numbered_runs(self) -> list[tuple[int, Run]]:
        """All runs, the earliest first, each with the number of its table; 0 if it is in no table."""
        numbers = {id(run): table.number for table in self.tables for entry in table.entries for run in entry.runs}
        runs = sorted(self.runs, key=lambda run: run.record.started)
        return [(numbers.get(id(run), 0), run) for run in runs]

    def results(self) -> Results:
        return Results(
            schema_version=3,
            created=self.request.created,
            command=self.request.commands[-1],
            target_accuracy=self.request.options.target_accuracy,
            warnings=self.warnings,
            baseline=self.baseline,
            rows=self.rows,
            runs=[
                RunSample(table=table, run_dir=run.shown_dir(self.folder), record=run.record, result=run.result)
                for table, run in self.numbered_runs
            ],
        )
