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
from types import FrameType

from rich.console import Console

from common.cli import parse_options
from common.errors import one_line_errors
from common.experiment import Experiment
from comparison.devices import same_devices
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
    folder = options.make_output_dir()

    console = Console(highlight=False, markup=False, emoji=False)
    command = shlex.join(["python", "compare.py", *sys.argv[1:]])
    outcomes: list[Outcome] = []
    interrupted = False
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        config = same_devices(options.train_config(), interpreters, options.timeout, console)
        with LiveView(console) as view:
            for name in options.implementations:
                view.start(name)
                run_config = config.replace(run_dir=folder.absolute() / name)
                outcome = run_implementation(name, interpreters[name], run_config, options.timeout, view.see)
                outcomes.append(outcome)
                view.end(outcome.failure)
                write_tables(folder, command, make_rows(outcomes), outcomes)
    except KeyboardInterrupt:
        interrupted = True

    rows = make_rows(outcomes)
    if rows:
        write_tables(folder, command, rows, outcomes)
        print_tables(console, rows, outcomes)
        console.print(f"results: {folder}", soft_wrap=True)
    if interrupted:
        left = ", ".join(options.implementations[len(outcomes) :]) or "none"
        print(f"compare.py: interrupted; without a result: {left}; what is finished is in {folder}", file=sys.stderr)
        return 130
    return 0 if all(row.status == "ok" and row.table == 1 for row in rows) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Being asked to end, or losing the terminal, is treated like Ctrl-C: the children end too."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    with one_line_errors("compare.py"):
        sys.exit(main())
