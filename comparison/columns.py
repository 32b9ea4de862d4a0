"""Rows as text: on the terminal within 80 columns, Markdown, CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table as TextTable

from common.record.timeline import PHASES
from common.spec.resolve import describe_devices
from comparison.gains import what_tuning_gives
from comparison.lockstep import FIRST_STEPS, SETTINGS_FIELDS
from comparison.rows import Entry, Row, Table
from comparison.summary import Summary
from comparison.sweep import Study, StudyRow, make_study

Kind = TypeVar("Kind")

# --- Numbers, for people ---


def text(value: float | None, form: str = "{}") -> str:
    """Empty where there is nothing to say; never a zero."""
    return "" if value is None else form.format(value)


def rate(value: float | None) -> str:
    """In millions where there are many, so that no column outgrows the terminal."""
    return f"{value / 1e6:.1f}M" if value and value >= 1e6 else text(value, "{:,.0f}")


def short_rate(value: float) -> str:
    """Three digits: `26.9k`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def difference(value: float | None) -> str:
    return "0" if value == 0 else text(value, "{:.0e}")


def mebibytes(value: int | None) -> str:
    return text(value and value / 2**20, "{:,.0f}")


def plus_minus(row: Row) -> str:
    if row.test_accuracy_low is None or row.test_accuracy_high is None:
        return ""
    return f"±{50 * (row.test_accuracy_high - row.test_accuracy_low):.2f}"


def span(low: float | None, high: float | None, form: Callable[[float], str]) -> str:
    return "" if low is None or high is None else f"{form(low)}-{form(high)}"


def seconds(value: float | None) -> str:
    """Never a bare 0.0 for what took some time."""
    return text(value, "{:.2f}" if value is not None and value < 1 else "{:.1f}")


def row_name(row: Row) -> str:
    return row.name if row.status in ("ok", "some failed") else f"{row.name}: {row.status}"


# --- Columns: a heading of two lines each, so that the tables fit 80 columns ---


@dataclass(frozen=True)
class Column(Generic[Kind]):
    """Left out of a table in which all its cells are empty."""

    first: str
    second: str
    cell: Callable[[Kind], str]

    @property
    def heading(self) -> str:
        return f"{self.first} {self.second}".replace("- ", "").strip()


LOCKSTEP = [
    Column[Row]("same", "training", lambda row: same_training(row)),
    Column[Row]("rounding", f"1-{FIRST_STEPS}", lambda row: difference(row.loss_difference_first_steps)),
    Column[Row]("rounding", "all", lambda row: difference(row.loss_difference_all_steps)),
]
RESULTS = [
    Column[Row]("test", "acc.", lambda row: text(row.test_accuracy, "{:.2%}")),
    Column[Row]("95 %", "points", plus_minus),
    Column[Row]("test", "loss", lambda row: text(row.test_loss, "{:.4f}")),
    Column[Row]("images", "/s", lambda row: rate(row.images_per_second)),
    Column[Row](
        "middle",
        "half",
        lambda row: span(row.images_per_second_q1, row.images_per_second_q3, short_rate) if row.num_runs > 1 else "",
    ),
    Column[Row]("ratio", "", lambda row: text(row.ratio, "{:.2f}")),
    Column[Row]("ratio", "95 %", lambda row: span(row.ratio_low, row.ratio_high, "{:.2f}".format)),
    Column[Row]("", "verdict", lambda row: row.verdict or ""),
]
TIMES = [
    Column[Row]("im-", "ports", lambda row: seconds(row.imports_seconds)),
    Column[Row]("data", "s", lambda row: seconds(row.data_seconds)),
    Column[Row]("build", "s", lambda row: seconds(row.build_seconds)),
    Column[Row]("train", "s", lambda row: seconds(row.training_seconds)),
    Column[Row]("eval.", "s", lambda row: seconds(row.evaluation_seconds)),
    Column[Row]("rest", "s", lambda row: seconds(row.rest_seconds)),
    Column[Row]("wall", "s", lambda row: seconds(row.wall_seconds)),
    Column[Row]("CPU", "use", lambda row: text(row.cpu_utilisation, "{:.0%}")),
    Column[Row]("mem.", "MiB", lambda row: mebibytes(row.peak_memory_bytes)),
    Column[Row]("dev-", "ices", lambda row: text(row.devices)),
]
DEVICE = [
    Column[Row]("GPU", "use", lambda row: text(row.gpu_utilisation, "{:.0%}")),
    Column[Row]("GPU mem.", "MiB", lambda row: mebibytes(row.device_peak_memory_bytes)),
    Column[Row]("joules", "/image", lambda row: text(row.joules_per_image, "{:.2g}")),
    Column[Row]("target", "reached", lambda row: reached(row)),
    Column[Row]("target", "epochs", lambda row: text(row.target_epochs, "{:.1f}")),
    Column[Row]("target", "steps", lambda row: text(row.target_steps, "{:,.0f}")),
    Column[Row]("target", "s", lambda row: seconds(row.target_seconds)),
    Column[Row](
        "target", "half", lambda row: span(row.target_seconds_q1, row.target_seconds_q3, seconds) * (row.num_runs > 1)
    ),
    Column[Row]("start", "s", lambda row: seconds(row.startup_seconds) * (row.target_reached is not None)),
]
LEGEND = (
    "ratio: images per second over the first row's, in pairs of the same round. same training: as the first row's,"
    " proved by the first steps in 64 bits, with the largest difference in their losses. rounding: the same"
    f" difference in the runs themselves, in steps 1 to {FIRST_STEPS} and in all; relative, below 1 absolute."
    " seconds: of the run of middle length, from imports to the rest, adding up to wall. CPU use: of the cores the"
    " run may use. mem.: peak of the run's processes."
)


def same_training(row: Row) -> str:
    """`yes (4e-16)`, with the largest difference in 64 bits."""
    if row.same_training is None:
        return "not proved" if row.status == "not proved" else ""
    answer = "yes" if row.same_training else "no"
    return f"{answer} ({difference(row.proof_difference)})" if row.proof_difference is not None else answer


def reached(row: Row) -> str:
    if row.target_reached is None:
        return ""
    if row.num_runs == 1:
        return "yes" if row.target_reached else "no"
    return f"{row.target_reached} of {row.num_runs}"


def column_groups(rows: Sequence[Row]) -> list[list[Column[Row]]]:
    """The columns of each table of numbers, without the empty ones; the lockstep stands where there is room."""
    one_round = not any(row.verdict or row.ratio_low or row.test_accuracy_low is not None for row in rows)
    groups = [RESULTS + LOCKSTEP, TIMES, DEVICE] if one_round else [RESULTS, TIMES, LOCKSTEP + DEVICE]
    filled = [[column for column in group if any(map(column.cell, rows))] for group in groups]
    return [group for group in filled if group]


def study_name(row: StudyRow) -> str:
    return f"{row.x} {row.series}"


def study_columns(study: Study) -> list[list[Column[StudyRow]]]:
    """The same numbers for a sweep, without the empty columns: speed and scaling, then what was reached."""
    of_row = {(column.first, column.second): column for column in RESULTS + DEVICE}

    def lifted(first: str, second: str) -> Column[StudyRow]:
        column = of_row[first, second]
        return Column(first, second, lambda one: column.cell(one.row))

    speed = [
        lifted("images", "/s"),
        lifted("middle", "half"),
        lifted("ratio", ""),
        lifted("", "verdict"),
        Column[StudyRow]("speed", "up", lambda one: text(one.speed_up.estimate if one.speed_up else None, "{:.2f}")),
        Column[StudyRow]("speed-up", "95 %", lambda one: span(*_ends(one), "{:.2f}".format)),
        Column[StudyRow]("effi-", "ciency", lambda one: text(one.efficiency, "{:.0%}")),
    ]
    learning = [
        Column[StudyRow]("learning", "rate", lambda one: text(one.row.learning_rate, "{:g}")),
        lifted("test", "acc."),
        lifted("95 %", "points"),
        lifted("test", "loss"),
        lifted("target", "reached"),
        lifted("target", "epochs"),
        lifted("target", "steps"),
        lifted("target", "s"),
        Column[StudyRow]("same", "training", lambda one: same_training(one.row)),
    ]
    groups = [[column for column in group if any(map(column.cell, study.rows))] for group in (speed, learning)]
    return [group for group in groups if group]


def _ends(one: StudyRow) -> tuple[float | None, float | None]:
    return (one.speed_up.low, one.speed_up.high) if one.speed_up else (None, None)


# --- What stands above and below a table ---


def what_was_compared(table: Table) -> list[str]:
    """The lines above a table."""
    result = table.first_result
    if result is None:
        return ["no implementation has finished", *_variant_line(table)]
    config = result.config
    images = f"{result.train_count:,} training and {result.test_count:,} test images"
    epochs = f"{config.epochs} epoch{'s' if config.epochs != 1 else ''}"
    records = [run.record for entry in table.entries for run in entry.runs]
    seeds = list(dict.fromkeys(record.seed for record in records))
    shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {' '.join(map(str, sorted(seeds)))}"
    rounds = len({(record.seed, record.round) for record in records})
    shown += f", {rounds} rounds" if rounds > 1 else ""
    rate = f"learning rate {config.learning_rate:g}, {config.schedule}"
    if config.warmup_steps:
        rate += f" after {config.warmup_steps} steps of warm-up"
    momentum = f"momentum {config.momentum:g}{' (Nesterov)' if config.nesterov else ''}"
    decay = f", weight decay {config.weight_decay:g}" if config.weight_decay else ""
    return [
        f"{config.model} on {config.dataset}: {images}, {result.num_parameters:,} parameters",
        f"batch {config.batch_size}, {epochs}, {result.num_steps:,} steps, {shown}",
        f"{rate}, {momentum}{decay}",
        # Of a sweep over settings the lines above are of all variants: the variant says them.
        *([] if table.variant.keys() & {*SETTINGS_FIELDS} else [_settings(table)]),
        describe_devices(config, result.device_name),
        *_variant_line(table),
    ]


def _settings(table: Table) -> str:
    """`modes plain and tuned: 32-bit; pt tuned bf16-mixed`: the first row's settings, and who differs from them."""
    rows = [row for row in table.rows if row.settings]
    modes = list(dict.fromkeys(row.mode for row in rows))
    first = rows[0].settings
    others = [f"{row.name} {row.settings}" for row in rows if row.settings != first]
    return f"mode{'s' if modes[1:] else ''} {' and '.join(modes)}: {'; '.join([str(first), *others])}"


def _variant_line(table: Table) -> list[str]:
    shown = ", ".join(f"{option} {value}" for option, value in table.variant.items())
    return [f"of the sweep: {shown}"] if shown else []


def notes(tables: Sequence[Table]) -> list[str]:
    """A line on each row that is not as it should be; of a failed run, the end of its log too."""
    lines = []
    for table in tables:
        for entry in table.entries:
            row = entry.row
            if row and row.note:
                status = "" if row.status == "ok" else f" {row.status}:"
                where = ", ".join(f"{option} {value}" for option, value in table.variant.items())
                lines.append(f"{row.name}{f' ({where})' if where else ''}:{status} {row.note}")
            lines += _log_lines(entry)
    return lines


def _log_lines(entry: Entry) -> list[str]:
    if not entry.failed:
        return []
    first = entry.failed[0]
    return [f"  the end of {first.log}:", *(f"  | {line}" for line in first.last_log_lines())]


def remarks(summary: Summary) -> list[str]:
    """Everything below the tables."""
    lines = [f"warning: {line}" for line in summary.warnings]
    return lines + [f"baseline: {line}" for line in summary.baseline] + notes(summary.tables)


# --- Terminal ---


def print_tables(console: Console, summary: Summary) -> None:
    """What was compared, the tables and the remarks; with a sweep, its table instead of one for each variant."""
    study = make_study(summary)
    if study:
        first = next(table for table in summary.tables if table.first_result)
        for line in [*what_was_compared(first), f"swept: {study.option}"]:
            console.print(line)
        for group in study_columns(study):
            console.print()
            console.print(_grid(group, study.rows, study_name, lambda one: one.row.status == "ok"))
        console.print()
        console.print("the tables of each variant are in report.html and results.md", style="dim")
    else:
        for table in summary.tables:
            console.print()
            for line in what_was_compared(table):
                console.print(line)
            for columns in column_groups(table.rows) or [[]]:
                console.print()
                console.print(_grid(columns, table.rows, row_name, lambda row: row.status == "ok"))
            console.print()
            for line in what_tuning_gives(table):
                console.print(line)
        console.print(LEGEND, style="dim")
    for line in remarks(summary):
        console.print(line, soft_wrap=True, style="yellow" if line.startswith("warning: ") else None)


def _grid(
    columns: Sequence[Column[Kind]], rows: Sequence[Kind], name: Callable[[Kind], str], good: Callable[[Kind], bool]
) -> TextTable:
    grid = TextTable(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, show_edge=False)
    names = [name(row) for row in rows]
    grid.add_column("\n", min_width=max(len(one.partition(":")[0]) for one in names) + 1)
    for column in columns:
        # Only words may be wrapped: a number in two lines would be two numbers.
        words = column.second == "verdict"
        grid.add_column(
            f"{column.first}\n{column.second}",
            justify="left" if words else "right",
            no_wrap=not words,
            min_width=13 if words and any("difference" in column.cell(row) for row in rows) else None,
        )
    for row, shown in zip(rows, names, strict=True):
        cells = [column.cell(row) or "-" for column in columns]
        grid.add_row(shown, *cells, style=None if good(row) else "red")
    return grid


# --- Files ---


def to_csv(summary: Summary) -> str:
    """A line for each row; lists and variants as text."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(Row.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in summary.rows:
        values = row.model_dump()
        values["variant"] = ",".join(f"{option}={value}" for option, value in row.variant.items())
        writer.writerow(values | {"run_dirs": " ".join(row.run_dirs)})
    return file.getvalue()


def runs_to_csv(summary: Summary) -> str:
    """A line for each run: the raw samples."""
    file = io.StringIO()
    samples = summary.results().runs
    phases = [f"{phase}_seconds" for phase in PHASES]
    result_fields = [
        "test_accuracy",
        "test_loss",
        "images_per_second",
        "skipped_steps",
        "startup_seconds",
        "wall_seconds",
        "peak_memory_bytes",
        "device_peak_memory_bytes",
        "cpu_utilisation",
        "gpu_utilisation",
        "joules_per_image",
        "cpu_instructions",
    ]
    record_fields = (
        [name for name in type(samples[0].record).model_fields if name != "schema_version"] if samples else []
    )
    writer = csv.DictWriter(file, ["table", *record_fields, *result_fields, *phases, "run_dir"], lineterminator="\n")
    writer.writeheader()
    for sample in samples:
        values = sample.record.model_dump(include=set(record_fields))
        values["variant"] = ",".join(f"{option}={value}" for option, value in sample.record.variant.items())
        if sample.result:
            values |= {name: getattr(sample.result, name) for name in result_fields}
            values |= {f"{phase}_seconds": value for phase, value in sample.result.phase_seconds.items()}
        writer.writerow(values | {"table": sample.table, "run_dir": sample.run_dir})
    return file.getvalue()


def to_markdown(summary: Summary) -> str:
    lines = [f"`{summary.request.commands[-1]}`", ""]
    study = make_study(summary)
    if study:
        for group in study_columns(study):
            lines += [*_markdown_grid(group, study.rows, study_name), ""]
    for table in summary.tables:
        lines += [f"{line}  " for line in what_was_compared(table)]
        for columns in column_groups(table.rows) or [[]]:
            lines += ["", *_markdown_grid(columns, table.rows, row_name)]
        lines += ["", *(f"{line}  " for line in what_tuning_gives(table)), ""]
    lines += [LEGEND, ""]
    if found := remarks(summary):
        lines += ["```", *found, "```", ""]
    return "\n".join(lines)


def _markdown_grid(columns: Sequence[Column[Kind]], rows: Sequence[Kind], name: Callable[[Kind], str]) -> list[str]:
    head = ["", *(column.heading for column in columns)]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * len(columns)]
    return lines + [
        "| " + " | ".join([name(row), *(column.cell(row) or "-" for column in columns)]) + " |" for row in rows
    ]
