"""CSV: a line for each row, and one for each run."""

import csv
import io

from common.record.timeline import PHASES
from comparison.jobs import variant_name
from comparison.row import Row
from comparison.summary import Summary


def to_csv(summary: Summary) -> str:
    """A line for each row; lists and variants as text."""
    lines = [
        {**row.flat(), "variant": variant_name(row.variant), "run_dirs": " ".join(row.run_dirs)} for row in summary.rows
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, Row.columns(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
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
        values["variant"] = variant_name(sample.record.variant)
        if sample.result:
            values |= {name: getattr(sample.result, name) for name in result_fields}
            values |= {f"{phase}_seconds": value for phase, value in sample.result.phase_seconds.items()}
        writer.writerow(values | {"table": sample.table, "run_dir": sample.run_dir})
    return file.getvalue()
