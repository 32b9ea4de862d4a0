"""The results of a comparison: the content of `results.json`, of tables, figures and the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from common.platform.errors import UserError, option_name
from common.record.results import RunResult
from comparison.measure.baseline import Change, what_changed
from comparison.measure.cautions import find_warnings
from comparison.measure.columns import columns_of
from comparison.measure.grouping import make_tables
from comparison.measure.rounds import further_rounds
from comparison.measure.table import Row, Table
from comparison.plan.jobs import Job, comparison_jobs, make_variants, tuning_jobs, variant_name
from comparison.plan.request import REQUEST_FILE, Request
from comparison.run.program import Record
from comparison.run.store import Run, read_run, read_runs_again

# A row in `results.json`, which has the columns of `results.csv`.
_fields: dict[str, Any] = {one.name: (one.type, Field(description=one.about)) for one in columns_of(Row)}
StoredRow: Any = create_model("Row", __config__=ConfigDict(frozen=True, extra="forbid"), **_fields)


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
      rows: with the columns of `results.csv`.
      runs: all runs, in the order in which they were made.
      warnings: lines on what might mislead a reader of the rows.
      baseline: lines on what has changed since the comparison named by --baseline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_file: Literal["results.schema.json"] = Field("results.schema.json", alias="$schema")
    schema_version: Literal[4]
    created: str
    command: str
    target_accuracy: float | None
    warnings: list[str]
    baseline: list[str]
    rows: list[StoredRow]
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
        numbers = {id(run): table.number for table in self.tables for row in table.rows for run in row.runs}
        runs = sorted(self.runs, key=lambda run: run.record.started)
        return [(numbers.get(id(run), 0), run) for run in runs]

    def results(self) -> Results:
        return Results(
            schema_version=4,
            created=self.request.created,
            command=self.request.commands[-1],
            target_accuracy=self.request.options.target_accuracy,
            warnings=self.warnings,
            baseline=self.baseline,
            rows=[StoredRow(**{one.name: getattr(row, one.name) for one in columns_of(Row)}) for row in self.rows],
            runs=[
                RunSample(table=table, run_dir=run.shown_dir(self.folder), record=run.record, result=run.result)
                for table, run in self.numbered_runs
            ],
        )


def find_runs(folder: Path, request: Request, failed: bool = True) -> tuple[list[Run], list[Job]]:
    """The runs that have ended, and the jobs still to be made. Without `failed`, failed runs are to be made again."""
    options, variants = request.options, make_variants(request.options, request.config)

    known: dict[Path, Run | None] = {}
    again: list[Run] = []  # made once more for a further group of the round

    def read(job: Job) -> Run | None:
        if job.path not in known:
            run = read_run(folder, job)
            known[job.path] = None if run is None or (run.result is None and not failed) else run
            again.extend(read_runs_again(folder, job) if known[job.path] else ())
        return known[job.path]

    jobs = [*tuning_jobs(options, variants), *comparison_jobs(options, variants)]
    missing = [job for job in jobs if read(job) is None]
    further, to_be_taken = further_rounds(options, variants, read)
    return [*(run for job in jobs if (run := read(job))), *further, *again], missing or to_be_taken


def summarise(folder: Path, request: Request, runs: Sequence[Run], missing: int) -> Summary:
    """Tables, warnings and changes since the baseline, from the runs that have ended so far."""
    request, corrections = _as_trained(request, runs)
    tables = make_tables(folder, request, runs)
    baseline: list[str] = []
    changes: list[Change] = []
    if request.options.baseline:
        try:
            earlier = Request.read(request.options.baseline, "--baseline")
            earlier_runs, _ = find_runs(request.options.baseline, earlier)
            earlier_tables = make_tables(request.options.baseline, earlier, earlier_runs)
            changes = what_changed(tables, earlier_tables)
            baseline = [f"{change.title}: {line}" for change in changes for line in change.lines()]
        except UserError as error:  # the baseline was there at the start; without it the results are still shown
            baseline = [str(error)]
    warnings = find_warnings(tables, runs, request.options.verify != "never", request.options.repeats)
    warnings = [*corrections, *warnings]
    return Summary(folder, request, tables, list(runs), missing, warnings, baseline, changes)


def _as_trained(request: Request, runs: Sequence[Run]) -> tuple[Request, list[str]]:
    """The request with the options with which the runs were really trained, and a line for each that had to be changed.

    Left out is what a run decides by itself: options that are not given, and the learning rate, which may be tuned.
    """
    asked_for = {variant.name: variant.config for variant in make_variants(request.options, request.config)}
    found: dict[str, tuple[object, object]] = {}
    for run in runs:
        asked = asked_for.get(variant_name(run.record.variant))
        if run.result is None or asked is None:
            continue
        used = run.result.config.training_fields()
        for name, value in asked.training_fields().items():
            if name not in ("seed", "mode", "learning_rate") and value not in ("auto", None, used[name]):
                found[name] = value, used[name]
    lines = [
        f"{REQUEST_FILE} has {option_name(name)} {stated}, but the runs were trained with {used}; it was changed since"
        for name, (stated, used) in found.items()
    ]
    config = request.config.model_copy(update={name: used for name, (_, used) in found.items()})
    return request.model_copy(update={"config": config}), lines
