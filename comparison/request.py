"""The request to compare.py: to make a new comparison, to continue one, or only to show one again."""

import fcntl
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rich.console import Console

from common.experiment import Experiment
from common.platform.errors import UserError, option_name
from common.record.loggers import check_loggers
from common.record.run_folder import new_run_dir
from common.spec.options import TrainConfig
from comparison.baseline import Change, what_changed
from comparison.cautions import find_warnings
from comparison.devices import same_devices
from comparison.grouping import make_tables
from comparison.jobs import Job, comparison_jobs, contenders, make_variants, row_name, tuning_jobs, variant_name
from comparison.launchers.choosing import check_launcher
from comparison.options import REPORT_WITH, RESUME_WITH, CompareConfig
from comparison.rounds import further_rounds
from comparison.store import REQUEST_FILE, Request, Run, read_run, read_runs_again
from comparison.summary import Summary
from comparison.table import Table

LOCK_FILE = ".lock"


def prepare(given: CompareConfig, console: Console) -> tuple[Path, Request]:
    """The folder of the comparison, and its request, which is stored there. Downloads data sets that are missing.

    Raises:
      UserError: something can't be run or read. This is found before any run is started.
    """
    command = shlex.join(["python", "compare.py", *sys.argv[1:]])
    if given.baseline:
        Request.read(given.baseline, "--baseline")
    if given.report_only:
        stored = take(given.report_only, "--report-only")
        options = given.applied_to(stored.options, given.report_only, REPORT_WITH)
        return given.report_only, stored.model_copy(update={"options": options})
    if given.resume:
        stored = take(given.resume, "--resume")
        options = given.applied_to(stored.options, given.resume, RESUME_WITH)
        _check(options, stored.config)
        request = stored.model_copy(update={"options": options, "commands": [*stored.commands, command]})
        request.write(given.resume)
        return given.resume, request
    config = given.train_config()
    _check(given, config)
    folder = make_output_dir(given)
    hold(folder, "--output-dir")
    config = same_devices(config, given.interpreters(), given.timeout, console)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    request = Request(schema_version=2, created=now, commands=[command], options=given, config=config)
    request.write(folder)
    return folder, request


def make_output_dir(options: CompareConfig) -> Path:
    """Makes the folder of the comparison, or uses an empty one. Raises UserError if that is not possible."""
    folder = options.output_dir
    if folder is None:
        return new_run_dir(f"{options.dataset}-{options.model}", Path("results"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--output-dir {folder}: is not empty")
    except OSError as error:
        raise UserError(f"--output-dir {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UserError(f"--output-dir {folder}: not writable")
    return folder


def take(folder: Path, option: str) -> Request:
    """Locks the comparison's folder for this process, and returns the request in it."""
    Request.read(folder, option)  # before the lock file is made: a folder without a request stays as it is
    hold(folder, option)
    return Request.read(folder, option)  # again: the process that had the lock until now may have changed it


_held: list[IO[str]] = []  # lock files, open until this process ends in whatever way


def hold(folder: Path, option: str) -> None:
    """Locks the comparison's folder for this process.

    Raises UserError if another compare.py is at work there."""
    try:
        lock = open(folder / LOCK_FILE, "a+")  # noqa: SIM115 - see _held
    except OSError:  # the next file that is written there will fail with a message
        return
    _held.append(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise UserError(f"{option} {folder}: another compare.py is at work there ({lock.read().strip()})") from None
    except OSError:  # a file system without locks
        return
    lock.truncate(0)
    print(f"process {os.getpid()} on {platform.node()}", file=lock, flush=True)


def _check(options: CompareConfig, config: TrainConfig) -> None:
    options.check_implementations()
    check_loggers(options.logger)
    options.interpreters()
    variants = make_variants(options, config)
    check_launcher(options, config, variants)
    for variant in variants:
        Experiment.make(variant.config)


def find_runs(folder: Path, request: Request, failed: bool = True) -> tuple[list[Run], list[Job]]:
    """The runs that have ended, and the jobs still to be made. Without `failed`, failed runs are to be made again."""
    options, variants = request.options, make_variants(request.options, request.config)

    known: dict[Path, Run | None] = {}
    again: list[Run] = []  # made once more for a further group of the round

    def read(job: Job) -> Run | None:
        if job.path not in known:
            run = read_run(folder, job)
            known[job.path] = None if run is None or (run.result is None and not failed) else run
            again.extend(read_runs_again(folder, job) if known[job.path] else ())
        return known[job.path]

    jobs = [*tuning_jobs(options, variants), *comparison_jobs(options, variants)]
    missing = [job for job in jobs if read(job) is None]
    further, to_be_taken = further_rounds(options, variants, read)
    return [*(run for job in jobs if (run := read(job))), *further, *again], missing or to_be_taken


def summarise(folder: Path, request: Request, runs: Sequence[Run], missing: int) -> Summary:
    """Tables, warnings and changes since the baseline, from the runs that have ended so far."""
    request, corrections = _as_trained(request, runs)
    tables = _tables(folder, request, runs)
    baseline: list[str] = []
    changes: list[Change] = []
    if request.options.baseline:
        try:
            earlier = Request.read(request.options.baseline, "--baseline")
            earlier_runs, _ = find_runs(request.options.baseline, earlier)
            earlier_tables = _tables(request.options.baseline, earlier, earlier_runs)
            changes = what_changed(tables, earlier_tables, (request.options.baseline, folder))
            baseline = [f"{change.title}: {line}" for change in changes for line in change.lines]
        except UserError as error:  # the baseline was there at the start; without it the results are still shown
            baseline = [str(error)]
    warnings = find_warnings(tables, runs, request.options.verify != "never", request.options.repeats)
    warnings = [*corrections, *warnings]
    return Summary(folder, request, tables, list(runs), missing, warnings, baseline, changes)


def _as_trained(request: Request, runs: Sequence[Run]) -> tuple[Request, list[str]]:
    """The request with the options with which the runs were really trained, and a line for each that had to be changed.

    Left out is what a run decides by itself: options that are not given, and the learning rate, which may be tuned.
    """
    asked_for = {variant.name: variant.config for variant in make_variants(request.options, request.config)}
    found: dict[str, tuple[object, object]] = {}
    for run in runs:
        asked = asked_for.get(variant_name(run.record.variant))
        if run.result is None or asked is None:
            continue
        used = run.result.config.training_fields()
        for name, value in asked.training_fields().items():
            if name not in ("seed", "mode", "learning_rate") and value not in ("auto", None, used[name]):
                found[name] = value, used[name]
    lines = [
        f"{REQUEST_FILE} has {option_name(name)} {stated}, but the runs were trained with {used}; it was changed since"
        for name, (stated, used) in found.items()
    ]
    config = request.config.model_copy(update={name: used for name, (_, used) in found.items()})
    return request.model_copy(update={"config": config}), lines


def _tables(folder: Path, request: Request, runs: Sequence[Run]) -> list[Table]:
    options = request.options
    names = [row_name(*contender) for contender in contenders(options)]
    verify, keep = options.verify != "never", options.disturbed == "keep"
    return make_tables(folder, runs, names, options.target_accuracy, verify, keep)
