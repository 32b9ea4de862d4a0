"""The lines of text above and below a table."""

from collections.abc import Sequence
from dataclasses import fields

from common.platform.errors import option_name
from common.resolve import describe_batch, describe_devices
from common.spec.options import TrainConfig, fields_of_kind, neutral_values
from common.spec.rules import RULES
from common.spec.schedules import SCHEDULES
from common.spec.update_rule import peak_rate
from comparison.measure.summary import Summary
from comparison.measure.table import Entry, Table
from comparison.plan.jobs import in_brackets, shown_variant


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
    return [
        f"{config.model} on {config.dataset}: {images}, {result.num_parameters:,} parameters",
        f"{describe_batch(config)}, {epochs}, {result.num_steps:,} steps, {shown}",
        _update_rule(config),
        *_regularisation(config),
        # In a sweep over settings these lines are for all variants; the line of the variant has its settings.
        *([] if _swept_settings(table) else [_settings(table)]),
        describe_devices(config, result.device_name),
        *_variant_line(table),
    ]


def what_was_swept(summary: Summary) -> list[str]:
    """The lines above a sweep: what varies, and what is the same in all variants."""
    tables = [table for table in summary.tables if table.first_result]
    values: dict[str, dict[str, None]] = {}
    for table in tables:
        for option, value in table.variant.items():
            values.setdefault(option, {})[value] = None
    swept = " x ".join(f"{option} ({', '.join(found)})" for option, found in values.items())
    first, *others = (what_was_compared(table) for table in tables)
    return [f"sweep of {swept}", *(line for line in first if all(line in other for other in others))]


def _update_rule(config: TrainConfig) -> str:
    """`sgd: learning rate 0.05, cosine after 20 steps of warm-up, momentum 0.9`; zero and false values are left out."""
    rate = f"learning rate {peak_rate(config):g}, {config.schedule}"
    if config.warmup_steps:
        rate += f" after {config.warmup_steps} steps of warm-up"
    parts = [rate]
    for one in (*fields(SCHEDULES[config.schedule]), *fields(RULES[config.optimizer])):
        if value := getattr(config, one.name):
            parts.append(_shown(one.name, value))
    if config.gradient_clip_val:
        parts.append(f"gradients clipped at {config.gradient_clip_val:g}")
    return f"{config.optimizer}: {', '.join(parts)}"


def _regularisation(config: TrainConfig) -> list[str]:
    """`regularisation: random crop 4, horizontal flip`, without weight decay, which belongs to the update rule."""
    parts = [
        _shown(name, value)
        for name, neutral in neutral_values(TrainConfig, "regularisation").items()
        if (value := getattr(config, name)) != neutral and not hasattr(RULES[config.optimizer], name)
    ]
    return [f"regularisation: {', '.join(parts)}"] if parts else []


def _shown(name: str, value: object) -> str:
    """`momentum 0.9`; `nesterov` if it is true."""
    words = name.replace("_", " ")
    return words if value is True else f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def _swept_settings(table: Table) -> bool:
    return any(option_name(field)[2:] in table.variant for field in fields_of_kind(TrainConfig, "setting"))


def _settings(table: Table) -> str:
    """`modes plain and tuned: 32-bit; pt tuned bf16-mixed`: the first row's settings, and the rows that differ."""
    rows = [row for row in table.rows if row.settings]
    modes = list(dict.fromkeys(row.mode for row in rows))
    first = rows[0].settings
    others = [f"{row.title} {row.settings}" for row in rows if row.settings != first]
    return f"mode{'s' if modes[1:] else ''} {' and '.join(modes)}: {'; '.join([str(first), *others])}"


def _variant_line(table: Table) -> list[str]:
    shown = shown_variant(table.variant)
    return [f"of the sweep: {shown}"] if shown else []


def notes(tables: Sequence[Table]) -> list[str]:
    """A line for each row that has a note; for a failed run, the end of its log too."""
    lines = []
    for table in tables:
        for entry in table.entries:
            row = entry.row
            if row and row.note:
                status = "" if row.status == "ok" else f" {row.status}:"
                lines.append(f"{row.title}{in_brackets(table.variant)}:{status} {row.note}")
            lines += _log_lines(entry)
    return lines


def _log_lines(entry: Entry) -> list[str]:
    if not entry.failed:
        return []
    first = entry.failed[0]
    return [f"  the end of {first.log}:", *(f"  | {line}" for line in first.last_log_lines())]


def remarks(summary: Summary) -> list[str]:
    """All lines below the tables."""
    lines = [f"warning: {line}" for line in summary.warnings]
    return lines + [f"baseline: {line}" for line in summary.baseline] + notes(summary.tables)
