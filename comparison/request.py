"""What is asked of compare.py: a new comparison, one that goes on, or one that is only looked at again."""

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from common.experiment import Experiment
from common.platform.errors import UserError
from common.spec.options import TrainConfig
from comparison.baseline import what_changed
from comparison.cautions import find_warnings
from comparison.devices import same_devices
from comparison.grouping import make_tables
from comparison.jobs import Job, comparison_jobs, contenders, make_variants, row_name, tuning_jobs
from comparison.options import REPORT_WITH, RESUME_WITH, CompareConfig
from comparison.store import Request, Run, read_run
from comparison.summary import Summary
from comparison.table import Table


def prepare(given: CompareConfig, console: Console) -> tuple[Path, Request]:
    """The folder of the comparison, with its request in it. Downloads what is missing.

    Raises:
      UserError: whatever can't be run or read, found before anything is started.
    """
    command = shlex.join(["python", "compare.py", *sys.argv[1:]])
    if given.baseline:
        Request.read(given.baseline, "--baseline")
    if given.report_only:
        stored = Request.read(given.report_only, "--report-only")
        options = given.applied_to(stored.options, given.report_only, REPORT_WITH)
        return given.report_only, stored.model_copy(update={"options": options})
    if given.resume:
        stored = Request.read(given.resume, "--resume")
        options = given.applied_to(stored.options, given.resume, RESUME_WITH)
        _check(options, stored.config)
        request = stored.model_copy(update={"options": options, "commands": [*stored.commands, command]})
        request.write(given.resume)
        return given.resume, request
    config = given.train_config()
    _check(given, config)
    folder = given.make_output_dir()
    config = same_devices(config, given.interpreters(), given.timeout, console)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    request = Request(schema_version=2, created=now, commands=[command], options=given, config=config)
    request.write(folder)
    return folder, request


def _check(options: CompareConfig, config: TrainConfig) -> None:
    options.check_implementations()
    options.interpreters()
    for variant in make_variants(options, config):
        Experiment.make(variant.config)


def find_runs(folder: Path, request: Request, failed: bool = True) -> tuple[list[Run], list[Job]]:
    """The runs that have ended, and those still to be made; without `failed` these count as still to be made."""
    variants = make_variants(request.options, request.config)
    found, missing = [], []
    for job in [*tuning_jobs(request.options, variants), *comparison_jobs(request.options, variants)]:
        run = read_run(folder, job)
        if run is None or (run.result is None and not failed):
            missing.append(job)
        else:
            found.append(run)
    return found, missing


def summarise(folder: Path, request: Request, runs: Sequence[Run], missing: int) -> Summary:
    """Tables, warnings and what has changed since the baseline, from whatever runs have ended so far."""
    tables = _tables(folder, request, runs)
    baseline: list[str] = []
    if request.options.baseline:
        try:
            earlier = Request.read(request.options.baseline, "--baseline")
            earlier_runs, _ = find_runs(request.options.baseline, earlier)
            earlier_tables = _tables(request.options.baseline, earlier, earlier_runs)
            baseline = what_changed(tables, earlier_tables, (request.options.baseline, folder))
        except UserError as error:  # it was there when the comparison began; that it is gone is no reason to lose this
            baseline = [str(error)]
    warnings = find_warnings(tables, runs, verified=request.options.verify != "never")
    return Summary(folder, request, tables, list(runs), missing, warnings, baseline)


def _tables(folder: Path, request: Request, runs: Sequence[Run]) -> list[Table]:
    options = request.options
    names = [row_name(*contender) for contender in contenders(options)]
    return make_tables(folder, runs, names, options.target_accuracy, options.verify != "never")
