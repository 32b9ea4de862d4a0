"""CSV: a line for each row, and one for each run."""

import csv
import io
from typing import Any

from common.record.timeline import PHASES
from comparison.jobs import variant_name
from comparison.row import Row
from comparison.summary import Summary


def to_csv(summary: Summary) -> str:
    """A line for each row; lists and variants as text."""
    lines = [
        {**row.flat(), "variant": variant_name(row.variant), "run_dirs": " ".join(row.run_dirs)} for row in summary.rows
    ]
    return _csv(Row.columns(), lines)


def runs_to_csv(summary: Summary) -> str:
    """A line for each run: the raw samples."""
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
    lines = []
    for sample in samples:
        values = sample.record.model_dump(include=set(record_fields))
        values["variant"] = variant_name(sample.record.variant)
        if sample.result:
            values |= {name: getattr(sample.result, name) for name in result_fields}
            values |= {f"{phase}_seconds": value for phase, value in sample.result.phase_seconds.items()}
        lines.append(values | {"table": sample.table, "run_dir": sample.run_dir})
    return _csv(["table", *record_fields, *result_fields, *phases, "run_dir"], lines)


def _csv(columns: list[str], lines: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()
