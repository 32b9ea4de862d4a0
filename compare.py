#!/usr/bin/env python
"""Trains the same network with every implementation and tabulates accuracy and speed.

    python compare.py
    python compare.py --dataset mnist --data-dir DIR --model lenet --epochs 3
    python compare.py --help

Exit status: 0 if all implementations have finished and are the same training; 1 if not; 2 for a mistake in
the options, before anything is started; 130 after Ctrl-C.
"""

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from common.cli import parse_options
from common.errors import UserError, one_line_errors
from common.experiment import Experiment
from common.rundir import new_run_dir
from comparison.live import LiveView
from comparison.options import CompareConfig
from comparison.runner import Outcome, run_implementation
from comparison.table import make_rows, print_tables, write_tables

ABOUT = "Trains the same network with every implementation and tabulates accuracy and speed."


def main() -> int:
    """Runs the command line; returns the exit status."""
    options = parse_options(CompareConfig, "compare.py", ABOUT)
    options.check_implementations()
    interpreters = options.interpreters()
    Experiment.make(options.train_config())  # downloads what is missing, and finds mistakes before anything is started
    folder = options.output_dir
    if folder is None:
        folder = new_run_dir(f"{options.dataset}-{options.model}", Path("results"))
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output-dir {folder}: exists and is not an empty folder")

    console = Console(highlight=False)
    command = shlex.join(["python", "compare.py", *sys.argv[1:]])
    outcomes: list[Outcome] = []
    interrupted = False
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with LiveView(console) as view:
            for name in options.implementations:
                view.start(name)
                config = options.train_config(folder.absolute() / name)
                outcome = run_implementation(name, interpreters[name], config, options.timeout, view.see)
                view.end(outcome.failure)
                outcomes.append(outcome)
                write_tables(folder, command, make_rows(outcomes), outcomes)
    except KeyboardInterrupt:
        interrupted = True

    rows = make_rows(outcomes)
    if rows:
        print_tables(console, rows, outcomes)
        console.print(f"results: {folder}", markup=False, soft_wrap=True)
    if interrupted:
        left = ", ".join(options.implementations[len(outcomes) :])
        print(f"compare.py: interrupted; without a result: {left}; what is finished is in {folder}", file=sys.stderr)
        return 130
    return 0 if all(row.status == "ok" and row.table == 1 for row in rows) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Being asked to end is treated like Ctrl-C: the children end too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    with one_line_errors("compare.py"):
        sys.exit(main())
