"""Rows, runs, epochs and steps of a comparison as DataFrames. docs/columns.md says what is in each column.

A column has the type of the field that it comes from, even if all its values are missing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pandas as pd
from pydantic import BaseModel

from common.record.results import EpochLine, RunResult, TurnLine
from common.record.timeline import PHASES
from common.spec.options import TRAINED, TrainConfig, options_of_kind
from comparison.measure.columns import columns_of
from comparison.measure.summary import Summary
from comparison.measure.table import Row
from comparison.plan.jobs import variant_name
from comparison.run.program import Record
from comparison.run.store import Run

# Int64 and boolean are pandas' own types: whole numbers stay whole although some values are missing.
DTYPES = {int: "Int64", float: "float64", bool: "boolean", str: "str"}
OPTIONS = options_of_kind(TrainConfig, *TRAINED)
WHICH_RUN = {
    "run_dir": str,
    "table": int,
    "implementation": str,
    "mode": str,
    "variant": str,
    "seed": int,
    "round": int,
}


def rows_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """A line for each row of the tables."""
    columns = columns_of(Row)
    lines = ({column.name: getattr(row, column.name) for column in columns} for row in rows)
    return _frame(lines, {column.name: column.type for column in columns})


def runs_frame(summary: Summary) -> pd.DataFrame:
    """A line for each run, the earliest first: the raw samples, with the options of the run."""
    columns = {"run_dir": str, "table": int, **_fields(Record), **_fields(TrainConfig, OPTIONS)}
    numbers = {name: kind for name, kind in _fields(RunResult).items() if _leaves(kind) <= DTYPES.keys()}
    # The result also has a number called warmup_steps; the column has the option with this name.
    columns |= {name: kind for name, kind in numbers.items() if name not in columns}
    columns |= {f"{phase}_seconds": float for phase in PHASES}
    return _frame((_run_line(summary, table, run) for table, run in summary.numbered_runs), columns)


def epochs_frame(summary: Summary) -> pd.DataFrame:
    """A line for each evaluation of each run that has succeeded."""
    return _lines_frame(summary, EpochLine, lambda run: run.epochs)


def turns_frame(summary: Summary) -> pd.DataFrame:
    """A line for each turn of each run that has succeeded: the samples that ratios are from."""
    return _lines_frame(summary, TurnLine, lambda run: run.turns, {"images_per_second": float})


def _lines_frame(
    summary: Summary, kind: type[BaseModel], lines: Callable[[Run], Sequence[BaseModel]], more: Mapping[str, Any] = {}
) -> pd.DataFrame:
    """A line for each of a run's `lines`, which are of `kind`; `more`: properties of them that are columns, too."""
    columns = {**_fields(kind, kind.model_fields.keys() - {"kind"}), **more}
    cells = (
        {**_run_line(summary, table, run), **{name: getattr(line, name) for name in columns}}
        for table, run in summary.numbered_runs
        for line in lines(run)
    )
    return _frame(cells, WHICH_RUN | columns)


def steps_frame(summary: Summary) -> pd.DataFrame:
    """A line for each training step of each run that has succeeded."""
    columns = WHICH_RUN | {"epoch": int, "step": int, "loss": float}
    parts = [_frame((), columns)]
    for table, run in summary.numbered_runs:
        if run.result and run.losses:
            steps = range(1, len(run.losses) + 1)
            values = {"epoch": map(run.result.plan.epoch_of, steps), "step": steps, "loss": run.losses}
            line = _run_line(summary, table, run)
            part = pd.DataFrame(values).assign(**{name: _as_cell(line[name]) for name in WHICH_RUN})
            parts.append(part[list(columns)].astype(parts[0].dtypes))
    return pd.concat(parts, ignore_index=True)


def _run_line(summary: Summary, table: int, run: Run) -> dict[str, Any]:
    line: dict[str, Any] = {}
    if run.result:
        phases = {f"{phase}_seconds": seconds for phase, seconds in run.result.phase_seconds.items()}
        line = {**dict(run.result), **dict(run.result.config), **phases}
    return {**line, **dict(run.record), "run_dir": run.shown_dir(summary.folder), "table": table}


def _frame(lines: Iterable[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """The DataFrame of `lines` with the columns that `columns` names, each with its type."""
    cells = [[_as_cell(line.get(name)) for name in columns] for line in lines]
    return pd.DataFrame(cells, columns=list(columns), dtype=object).astype(
        {name: _dtype(annotation) for name, annotation in columns.items()}
    )


def _as_cell(value: Any) -> Any:
    """The value of a cell. Variants of a sweep and lists become text: `batch-size=32,devices=2`, `28 28 1`."""
    if isinstance(value, dict):
        return variant_name(value)
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _fields(schema: type[BaseModel], names: Collection[str] | None = None) -> dict[str, Any]:
    """Name -> type, in the order of the schema: the fields in `names`, or else all but the schema's version."""
    chosen = schema.model_fields.keys() - {"schema_version"} if names is None else names
    return {name: field.annotation for name, field in schema.model_fields.items() if name in chosen}


def _dtype(annotation: Any) -> str:
    """The pandas dtype of a column: `str` unless all values have one type of DTYPES."""
    (*several, leaf) = _leaves(annotation)
    return "str" if several else DTYPES.get(leaf, "str")


def _leaves(annotation: Any) -> set[type]:
    """The types that values may have: `int | None` gives {int}. "auto" is left out: no resolved option has it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return {type(value) for value in parts if value != "auto"}
    if origin is Annotated:
        return _leaves(parts[0])
    if origin in (Union, UnionType):
        return set().union(*map(_leaves, parts))
    return {origin or annotation} - {NoneType}
