"""Logs the whole comparison to the tools that `--logger` names: as a separate run, with the report as an artifact."""

from common.record.loggers import make_tracker
from common.record.loggers.logged_run import as_hyperparameters
from common.record.loggers.tracker import told
from comparison.summary import Summary

FILES = ("report.html", "results.md", "results.json", "results.csv", "runs.csv")


def log_comparison(summary: Summary) -> None:
    """Logs the comparison to each tool. Raises UserError if a tool fails."""
    request, folder = summary.request, summary.folder
    numbers: dict[str, float] = {}
    for row in summary.rows:
        where = "/".join([*(f"{option} {value}" for option, value in row.variant.items()), row.name])
        values = {
            "test_accuracy": row.accuracy.test_accuracy,
            "images_per_second": row.speed.images_per_second,
            "ratio": row.speed.ratio,
        }
        numbers |= {f"{where}/{name}": value for name, value in values.items() if value is not None}
    for name in request.options.logger:
        with told(name):
            tracker = make_tracker(name)
            parameters = {"implementation": "comparison", **as_hyperparameters(request.config)}
            tracker.begin(str(folder), folder, parameters)
            tracker.summary(numbers)
            tracker.files([path for file in FILES if (path := folder / file).exists()])
            tracker.end(summary.succeeded)
