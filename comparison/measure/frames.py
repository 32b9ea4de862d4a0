"""Runs, epochs, turns and steps of a comparison as DataFrames. docs/columns.md says what is in each column.

A column has the type of the field that it comes from, even if all its values are missing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pandas as pd
from pydantic import BaseModel

from common.record.results import EpochLine, RunResult, TurnLine
from common.record.timeline import PHASES
from common.spec.options import TRAINED, TrainConfig, options_of_kind
from comparison.measure.rounds import is_round_disturbed
from comparison.plan.jobs import variant_name
from comparison.run.program import Record
from comparison.run.store import Run

# Int64 and boolean are pandas' own types: whole numbers stay whole although some values are missing.
DTYPES = {int: "Int64", float: "float64", bool: "boolean", str: "str"}
WHICH_RUN = ["run_dir", "table", "implementation", "mode", "variant", "seed", "round"]
# Runs that agree in all of these were made in turns, or one after the other: a pair.
ROUND = ["seed", "round", "session", "group"]


def _fields(schema: type[BaseModel], names: Collection[str] | None = None) -> dict[str, Any]:
    """Name -> type, in the order of the schema: the fields in `names`, or else all but the schema's version."""
    chosen = schema.model_fields.keys() - {"schema_version"} if names is None else names
    return {name: field.annotation for name, field in schema.model_fields.items() if name in chosen}


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


# The columns of runs with their types. The result also has a number called warmup_steps; the column is the option.
OF_A_RUN = {"run_dir": str, "table": int, **_fields(Record)}
OF_A_RUN |= _fields(TrainConfig, options_of_kind(TrainConfig, *TRAINED))
OF_A_RUN |= {
    name: kind for name, kind in _fields(RunResult).items() if _leaves(kind) <= DTYPES.keys() and name not in OF_A_RUN
}
OF_A_RUN |= {f"{phase}_seconds": float for phase in PHASES}
OF_AN_EPOCH = _fields(EpochLine, EpochLine.model_fields.keys() - {"kind"})
OF_A_TURN = _fields(TurnLine, TurnLine.model_fields.keys() - {"kind"}) | {"images_per_second": float}


def runs_frame(folder: Path, runs: Sequence[Run], tables: Sequence[int], keep_disturbed: bool) -> pd.DataFrame:
    """A line for each run, with the columns of OF_A_RUN and with those that rows of tables are computed from.

    Args:
      folder: the comparison's folder.
      tables: the table in which each run is shown; 0 for none.
      keep_disturbed: whether rounds and turns that other programs have disturbed count like all others.

    These columns are:
      run: the `Run`.
      name, title: of its row.
      shown_in: the number of its table, also if it failed; `table` is then 0.
      speed: images per second in usual turns.
      train_seconds, eval_seconds: of all epochs.
      loop_seconds: of training and evaluation.
      untimed_steps: the number of steps before the clock starts.
      whole: whether its times are those of a whole training.
      disturbed: whether other programs may have slowed its training down.
      left_out: whether its times do not count, since a run of its round was disturbed.
      measured: whether its times count.
    """
    frame = make_frame((_line_of(folder, run, number) for run, number in zip(runs, tables, strict=True)), OF_A_RUN)
    more: dict[str, Sequence[Any]] = {
        "run": runs,
        "name": [run.record.name for run in runs],
        "title": [run.record.title for run in runs],
        "shown_in": tables,
        "speed": [run.images_per_second for run in runs],
        "train_seconds": [sum(run.result.epoch_train_seconds) if run.result else None for run in runs],
        "eval_seconds": [sum(run.result.eval_seconds) if run.result else None for run in runs],
        "loop_seconds": [run.loop_seconds for run in runs],
        "untimed_steps": [run.result.warmup_steps if run.result else None for run in runs],
        "whole": [run.is_measured for run in runs],
        "disturbed": [is_round_disturbed(run) for run in runs],
    }
    frame = pd.concat([frame, pd.DataFrame(more, index=frame.index)], axis=1)
    numbers = ("speed", "train_seconds", "eval_seconds", "untimed_steps")
    frame = frame.astype(dict.fromkeys(numbers, float) | {"whole": bool, "disturbed": bool})
    of_round = frame.groupby(["shown_in", "seed", "round"])["disturbed"].transform("any")
    return frame.assign(left_out=of_round & (not keep_disturbed)).assign(
        measured=lambda frame: frame["whole"] & ~frame["left_out"]
    )


def _line_of(folder: Path, run: Run, table: int) -> dict[str, Any]:
    line: dict[str, Any] = {}
    if run.result:
        phases = {f"{phase}_seconds": seconds for phase, seconds in run.result.phase_seconds.items()}
        line = {**dict(run.result), **dict(run.result.config), **phases}
    else:
        table = 0
    return {**line, **dict(run.record), "run_dir": run.shown_dir(folder), "table": table}


def epochs_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """A line for each evaluation of each run that has succeeded."""
    return _lines_frame(runs, OF_AN_EPOCH, lambda run: run.epochs)


def turns_frame(runs: pd.DataFrame, keep_disturbed: bool) -> pd.DataFrame:
    """A line for each turn of each run that has succeeded: the samples that ratios are from.

    `epochs_begun` is the number of epochs whose first step is in the turn, and `counts` says whether the turn counts:
    neither it nor its round was disturbed.
    """
    frame = _lines_frame(runs, OF_A_TURN, lambda run: run.turns)
    begun = [
        turn.epochs_begun(run.result.plan.steps_per_epoch) for run in runs["run"] if run.result for turn in run.turns
    ]
    quiet = [turn.cycle in cycles for run in runs["run"] for cycles in [_quiet_cycles(run)] for turn in run.turns]
    frame = frame.assign(epochs_begun=begun, quiet=pd.array(quiet, dtype=bool))
    frame = frame.merge(runs[["run_dir", "name", "session", "group", "whole", "left_out"]], on="run_dir", how="left")
    return frame.assign(counts=~frame["left_out"].astype(bool) & (frame["quiet"] | keep_disturbed))


def _quiet_cycles(run: Run) -> set[int]:
    return {turn.cycle for turn in run.quiet_turns}


def steps_frame(runs: pd.DataFrame) -> pd.DataFrame:
    """A line for each training step of each run that has succeeded."""

    def steps(run: Run) -> list[dict[str, Any]]:
        epoch_of = run.result.plan.epoch_of if run.result else int
        return [{"epoch": epoch_of(step), "step": step, "loss": loss} for step, loss in enumerate(run.losses, 1)]

    return _lines_frame(runs, {"epoch": int, "step": int, "loss": float}, steps)


def _lines_frame(
    runs: pd.DataFrame, columns: Mapping[str, Any], lines: Callable[[Run], Sequence[BaseModel | dict[str, Any]]]
) -> pd.DataFrame:
    """A line for each of a run's `lines`, with the columns WHICH_RUN and `columns`, which are name -> type."""
    of_run = [
        [line if isinstance(line, dict) else {name: getattr(line, name) for name in columns} for line in lines(run)]
        for run in runs["run"]
    ]
    which = runs.loc[runs.index.repeat([*map(len, of_run)]), WHICH_RUN].reset_index(drop=True)
    return pd.concat([which, make_frame((line for lines in of_run for line in lines), columns)], axis=1)


def make_frame(lines: Iterable[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
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


def _dtype(annotation: Any) -> str:
    """The pandas dtype of a column: `str` unless all values have one type of DTYPES."""
    (*several, leaf) = _leaves(annotation)
    return "str" if several else DTYPES.get(leaf, "str")
