"""Results as tables: on the terminal, Markdown, CSV and JSON."""

import csv
import io
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from common.devices import describe_devices
from common.errors import UserError
from common.results import RunResult, write_text
from comparison.lockstep import FIRST_STEPS, TOLERANCE, Lockstep, different_settings, find_departure, lockstep
from comparison.runner import Outcome

RESULTS_VERSION = 1


@dataclass(frozen=True)
class Row:
    """One implementation's line. Shares and seconds as in `RunResult`; None where there is nothing to say.

    Attributes:
      table: runs of the same table were asked for the same and counted the same; from 1, 0 for failures.
      status: ok, failed, or different training.
      ratio: images per second over those of the table's first row.
      note: one line for a person, on what the status says.
    """

    table: int
    implementation: str
    status: str
    test_accuracy: float | None = None
    test_loss: float | None = None
    images_per_second: float | None = None
    ratio: float | None = None
    startup_seconds: float | None = None
    train_seconds: float | None = None
    eval_seconds: float | None = None
    wall_seconds: float | None = None
    peak_memory_bytes: int | None = None
    device_peak_memory_bytes: int | None = None
    devices: int | None = None
    loss_difference_first_steps: float | None = None
    loss_difference_all_steps: float | None = None
    note: str | None = None
    run_dir: str = ""


def make_rows(outcomes: list[Outcome]) -> list[Row]:
    """In the order of `outcomes`. Each finished run joins the first table whose first run it can be set beside."""
    references: list[Outcome] = []
    rows = []
    for outcome in outcomes:
        result = outcome.result
        if result is None:
            row = Row(0, outcome.implementation, "failed", note=outcome.failure, run_dir=str(outcome.run_dir))
            rows.append(row)
            continue
        table = next((n for n, one in enumerate(references, 1) if not _differ(one, outcome)), None)
        note = None
        if table is None:
            if references:
                assert references[0].result is not None
                note = "; ".join(different_settings(references[0].result, result))
                note = f"not in the same table as {references[0].implementation}: {note}"
            references.append(outcome)
            table = len(references)
        rows.append(_row(table, references[table - 1], outcome, result, note))
    return rows


def _differ(one: Outcome, two: Outcome) -> list[str]:
    assert one.result is not None and two.result is not None
    return different_settings(one.result, two.result)


def _row(table: int, reference: Outcome, outcome: Outcome, result: RunResult, note: str | None) -> Row:
    precision = result.config.precision
    found = (
        lockstep(reference.losses, outcome.losses, precision)
        if outcome is not reference
        else Lockstep(None, None, True)
    )
    assert reference.result is not None
    speed, reference_speed = result.images_per_second, reference.result.images_per_second
    if not found.same_training:
        try:
            departure = find_departure(reference.run_dir, outcome.run_dir, TOLERANCE[precision])
        except UserError as error:  # a file of the run is damaged: no reason to lose the table
            departure = f"where they part cannot be told: {error}"
        note = f"not the training of {reference.implementation}, so no ratio is given: {departure}"
    return Row(
        table=table,
        implementation=outcome.implementation,
        status="ok" if found.same_training else "different training",
        test_accuracy=result.test_accuracy,
        test_loss=result.test_loss,
        images_per_second=speed,
        ratio=speed / reference_speed if found.same_training and speed and reference_speed else None,
        startup_seconds=result.startup_seconds,
        train_seconds=sum(result.epoch_train_seconds),
        eval_seconds=sum(result.eval_seconds),
        wall_seconds=result.wall_seconds,
        peak_memory_bytes=result.peak_memory_bytes,
        device_peak_memory_bytes=result.device_peak_memory_bytes,
        devices=result.devices,
        loss_difference_first_steps=found.first_steps,
        loss_difference_all_steps=found.all_steps,
        note=note,
        run_dir=str(outcome.run_dir),
    )


def what_was_compared(result: RunResult) -> list[str]:
    """The lines above a table."""
    config = result.config
    images = f"{result.train_count:,} training and {result.test_count:,} test images"
    epochs = f"{config.epochs} epoch{'s' if config.epochs != 1 else ''}"
    rate = f"learning rate {config.learning_rate:g}, {config.schedule}"
    if config.warmup_steps:
        rate += f" after {config.warmup_steps} steps of warm-up"
    momentum = f"momentum {config.momentum:g}{' (Nesterov)' if config.nesterov else ''}"
    decay = f", weight decay {config.weight_decay:g}" if config.weight_decay else ""
    return [
        f"{config.model} on {config.dataset}: {images}, {result.num_parameters:,} parameters",
        f"batch {config.batch_size}, {epochs}, {result.num_steps:,} steps, {config.precision}-bit, seed {config.seed}",
        f"{rate}, {momentum}{decay}",
        describe_devices(config, result.device_name),
    ]


# --- Columns, for people: a heading of two lines each, so that the table fits 80 columns ---

HEADINGS = [
    ("", ""),
    ("test", "acc."),
    ("test", "loss"),
    ("images", "/s"),
    ("ratio", ""),
    ("start", "s"),
    ("train", "s"),
    ("mem.", "MiB"),
    ("dev-", "ices"),
    ("lockstep", f"1-{FIRST_STEPS}"),
    ("lockstep", "all"),
]
LEGEND = (
    "ratio: images per second over the first row's. start: from the command to the end of the first step. mem.: peak"
    " of the run's processes. lockstep: largest difference in step loss from the first row, in steps 1 to"
    f" {FIRST_STEPS} and in all; relative, or absolute for losses below 1."
)


def cells(row: Row) -> list[str]:
    """The texts of a row under HEADINGS."""
    name = row.implementation if row.status == "ok" else f"{row.implementation}: {row.status}"
    return [
        name,
        _text(row.test_accuracy, "{:.2%}"),
        _text(row.test_loss, "{:.4f}"),
        _rate(row.images_per_second),
        _text(row.ratio, "{:.2f}"),
        _text(row.startup_seconds, "{:.1f}"),
        _text(row.train_seconds, "{:.1f}"),
        _text(row.peak_memory_bytes and row.peak_memory_bytes / 2**20, "{:,.0f}"),
        _text(row.devices, "{}"),
        _difference(row.loss_difference_first_steps),
        _difference(row.loss_difference_all_steps),
    ]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _rate(value: float | None) -> str:
    """In millions where there are many, so that no column outgrows the terminal."""
    return f"{value / 1e6:.1f}M" if value and value >= 1e6 else _text(value, "{:,.0f}")


def _difference(value: float | None) -> str:
    return "0" if value == 0 else _text(value, "{:.0e}")


def groups(rows: list[Row]) -> list[list[Row]]:
    """Rows by table; those of failed runs stand with the first."""
    tables = sorted({row.table for row in rows if row.table}) or [0]
    return [[row for row in rows if row.table == table or (not row.table and table == tables[0])] for table in tables]


def notes(rows: list[Row], outcomes: list[Outcome]) -> list[str]:
    """A line on each row that is not as it should be; of a failed run, the end of its log too."""
    lines = []
    for row, outcome in zip(rows, outcomes, strict=True):
        if row.note:
            lines.append(
                f"{row.implementation}: {row.status}: {row.note}"
                if row.status != "ok"
                else f"{row.implementation}: {row.note}"
            )
        if row.status == "failed":
            lines.append(f"  the end of {outcome.log}:")
            lines += [f"  | {line}" for line in outcome.last_log_lines()]
    return lines


def print_tables(console: Console, rows: list[Row], outcomes: list[Outcome]) -> None:
    """What was compared, the table and the notes; a table for each set of runs that can be set side by side."""
    results = {outcome.implementation: outcome.result for outcome in outcomes}
    for group in groups(rows):
        result = next((results[row.implementation] for row in group if results[row.implementation]), None)
        console.print()
        for line in what_was_compared(result) if result else ["no implementation has finished"]:
            console.print(line)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
        longest = max(len(row.implementation) + 1 for row in group)
        for first, second in HEADINGS:
            # Only the name may be wrapped: a number in two lines would be two numbers.
            table.add_column(
                f"{first}\n{second}",
                justify="right" if first else "left",
                no_wrap=bool(first),
                min_width=0 if first else longest,
            )
        for row in group:
            table.add_row(*cells(row), style=None if row.status == "ok" else "red")
        console.print()
        console.print(table)
        console.print()
    console.print(LEGEND, style="dim")
    for line in notes(rows, outcomes):
        console.print(line, soft_wrap=True)


def write_tables(folder: Path, command: str, rows: list[Row], outcomes: list[Outcome]) -> None:
    """`results.csv`, `results.json` and `results.md`."""
    table = io.StringIO()
    writer = csv.DictWriter(table, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(folder / "results.csv", table.getvalue())
    results = {one.implementation: one.result.model_dump(mode="json") for one in outcomes if one.result}
    content: dict[str, Any] = {
        "schema_version": RESULTS_VERSION,
        "command": command,
        "rows": [asdict(row) for row in rows],
        "results": results,
    }
    write_text(folder / "results.json", json.dumps(content, indent=2) + "\n")
    write_text(folder / "results.md", markdown(command, rows, outcomes))


def markdown(command: str, rows: list[Row], outcomes: list[Outcome]) -> str:
    results = {outcome.implementation: outcome.result for outcome in outcomes}
    lines = [f"`{command}`", ""]
    for group in groups(rows):
        result = next((results[row.implementation] for row in group if results[row.implementation]), None)
        lines += [f"{line}  " for line in (what_was_compared(result) if result else ["no implementation has finished"])]
        lines += [
            "",
            "| " + " | ".join(" ".join(heading).replace("- ", "").strip() for heading in HEADINGS) + " |",
            "| --- |" + " ---: |" * (len(HEADINGS) - 1),
        ]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in group] + [""]
    lines += [LEGEND, ""]
    if found := notes(rows, outcomes):
        lines += ["```", *found, "```", ""]
    return "\n".join(lines)
