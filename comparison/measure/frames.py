"""Runs, epochs, turns and steps of a comparison as DataFrames. docs/columns.md says what is in each column.

A column has the type of the field that it comes from, even if all its values are missing.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pandas as pd
from pydantic import BaseModel

from common.record.results import RunResult
from common.record.timeline import PHASES
from common.spec.options import TRAINED_KINDS, TrainConfig, options_of_kind
from comparison.measure.rounds import is_round_disturbed
from comparison.plan.jobs import variant_name
from comparison.run.load_meter import quiet
from comparison.run.program import RunRecord
from comparison.run.store import Run

# Int64 and boolean are pandas' own types: whole numbers stay whole although some values are missing.
COLUMN_DTYPES = {int: "Int64", float: "float64", bool: "boolean", str: "str"}
WHICH_RUN = ["run_dir", "table", "implementation", "mode", "variant", "seed", "round"]
# Runs that agree in all of these were made in turns, or one after the other: a pair.
ROUND_COLUMNS = ["seed", "round", "session", "group"]


def frame_fields(schema: type[BaseModel], names: Collection[str] | None = None) -> dict[str, Any]:
    """Name -> type, in the order of the schema: the fields in `names`, or else all but its version and kind."""
    chosen = schema.model_fields.keys() - {"schema_version", "kind"} if names is None else names
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
OF_A_RUN = {"run_dir": str, "table": int, **frame_fields(RunRecord, [*WHICH_RUN, "session", "rate_search"])}
OF_A_RUN |= frame_fields(RunRecord)
OF_A_RUN |= frame_fields(TrainConfig, options_of_kind(TrainConfig, *TRAINED_KINDS))
OF_A_RUN |= {
    name: kind
    for name, kind in frame_fields(RunResult).items()
    if _leaves(kind) <= COLUMN_DTYPES.keys() and name not in OF_A_RUN
}
OF_A_RUN |= {f"{phase}_seconds": float for phase in PHASES}


# What rows are computed from, of a run's record and of its result.
OF_THE_RECORD = (*ROUND_COLUMNS, "failure", "started", "throttled")
OF_THE_RESULT = (
    *("test_accuracy", "test_loss", "skipped_steps", "resumed_from", "warmup_steps", "startup_seconds"),
    *("peak_memory_bytes", "device_peak_memory_bytes", "cpu_utilisation", "gpu_utilisation"),
    *("training_other_load", "joules_per_image"),
)


def lines_of_runs(folder: Path, runs: Sequence[Run], tables: Sequence[int]) -> pd.DataFrame:
    """A line for each run, with what rows are computed from: OF_THE_RECORD, OF_THE_RESULT, and

    run (the `Run`), run_dir (relative to `folder`, which is the comparison's), name and title (of its row), variant;
    table: the number of the table in which the run is shown; 0 for none;
    speed: images per second in usual turns;
    whole: whether its times are those of a whole training;
    in_turns: whether it trained in turns;
    disturbed: whether other programs may have slowed its training down;
    left_out: whether its times do not count, since a run of its round was disturbed;
    busy: whether they count all the same, since this holds for all rounds of its table.
    """
    frame = pd.DataFrame(
        {
            "run": runs,
            "run_dir": [run.shown_dir(folder) for run in runs],
            "name": [run.record.name for run in runs],
            "title": [run.record.title for run in runs],
            "variant": [variant_name(run.record.variant) for run in runs],
            "table": tables,
            **{name: [getattr(run.record, name) for run in runs] for name in OF_THE_RECORD},
            **{name: [getattr(run.result, name, None) for run in runs] for name in OF_THE_RESULT},
            "whole": [run.is_measured for run in runs],
            "in_turns": [len(run.turns) > 0 for run in runs],
            "disturbed": [is_round_disturbed(run) for run in runs],
        }
    ).astype({"throttled": float, "skipped_steps": float})
    words: list[str] = frame.select_dtypes("str").columns.tolist()
    frame = frame.astype(dict.fromkeys(words, object)).copy()  # with few types, slices are fast
    of_round = frame.groupby(["table", "seed", "round"])["disturbed"].transform("any")
    busy = of_round.groupby(frame["table"]).transform("all")
    speeds = pd.Series([run.speed(is_busy) for run, is_busy in zip(runs, busy, strict=True)], frame.index, dtype=float)
    return frame.assign(left_out=of_round & ~busy, busy=busy, speed=speeds)


def lines_of_turns(runs: pd.DataFrame) -> pd.DataFrame:
    """A line for each turn, with what ratios are computed from. `runs`: see `lines_of_runs`.

    `epochs_begun` is the number of epochs whose first step is in the turn. `counts` says whether the turn counts:
    neither it nor its round was disturbed, or all rounds were.
    """
    turns = [(run, turn) for run in runs["run"] for turn in run.turns]
    columns = ["run_dir", "name", "table", *ROUND_COLUMNS, "whole", "left_out", "busy"]
    frame = runs.loc[runs.index.repeat([len(run.turns) for run in runs["run"]]), columns].reset_index(drop=True)
    for name in ("cycle", "images", "seconds", "ended", "other_load", "images_per_second"):
        frame[name] = pd.Series([getattr(turn, name) for _, turn in turns], dtype=float)
    frame["epochs_begun"] = [turn.epochs_begun(run.result.plan.steps_per_epoch) for run, turn in turns]
    frame["quiet"] = pd.Series([bool(quiet([turn])) for _, turn in turns], dtype=bool)
    frame["counts"] = ~frame["left_out"] & (frame["quiet"] | frame["busy"])
    return frame


# --- For files and notebooks. `lines`: see `lines_of_runs`; `runs`: see `runs_frame`, of the same runs ---


def runs_frame(lines: pd.DataFrame) -> pd.DataFrame:
    """A line for each run."""
    cells = []
    for run, run_dir, table in zip(lines["run"], lines["run_dir"], lines["table"], strict=True):
        known: dict[str, Any] = {"table": 0}
        if run.result:
            phases = {f"{phase}_seconds": seconds for phase, seconds in run.result.phase_seconds.items()}
            known = {**dict(run.result), **dict(run.result.config), **phases, "table": table}
        cells.append({**known, **dict(run.record), "run_dir": run_dir})
    return make_frame(cells, OF_A_RUN)


def lines_frame(
    lines: pd.DataFrame,
    runs: pd.DataFrame,
    columns: dict[str, Any],
    parts: Callable[[Run], list[dict[str, Any]]],
) -> pd.DataFrame:
    """A line for each of a run's `parts`, with the columns WHICH_RUN and `columns`, which are name -> type."""
    of_run = [parts(run) for run in lines["run"]]
    which = runs.loc[runs.index.repeat([*map(len, of_run)]), WHICH_RUN].reset_index(drop=True)
    return pd.concat([which, make_frame(itertools.chain(*of_run), columns)], axis=1)


def make_frame(lines: Iterable[dict[str, Any]], columns: dict[str, Any]) -> pd.DataFrame:
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
    """The pandas dtype of a column: `str` unless all values have one type of COLUMN_DTYPES."""
    (*several, leaf) = _leaves(annotation)
    return "str" if several else COLUMN_DTYPES.get(leaf, "str")
