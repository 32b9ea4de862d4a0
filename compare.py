#!/usr/bin/env python
"""Trains the same network in several frameworks and tabulates accuracy and speed.

    python compare.py
    python compare.py --repeats 5 --seeds 0 1 2
    python compare.py --sweep batch-size=32,64,128 --target-accuracy 0.97
    python compare.py --help

Exit status:
    0: all runs have succeeded, they share a table (one for each variant of a sweep), and no row is a different training
       or not proved
    1: at least one of these is not true
    2: a mistake in the options, found before anything is started
    130: Ctrl-C
"""

# ruff: noqa: E402
import gc

gc.disable()  # during imports: the garbage collector would take an eighth of their time and find nothing

import common.platform.quiet_start  # noqa: F401 - see there; isort: skip

import signal
import sys

from rich.console import Console

from common.platform.cli import parse_options
from common.platform.ending import as_program, exit_now, take_signals
from common.platform.errors import FileError, UserError
from common.platform.files import writing
from comparison.plan.options import CompareConfig
from comparison.prepare import prepare_comparison

ABOUT = "Trains the same network in several frameworks and tabulates accuracy and speed."


def main() -> int:
    """Runs the command line; returns the exit status."""
    take_signals(signal.default_int_handler)
    given = parse_options(CompareConfig, "compare.py", ABOUT)
    console = Console(highlight=False, markup=False, emoji=False)
    folder, request = prepare_comparison(given, console)
    # Here, since pandas, SciPy and Altair take seconds: neither --help nor a mistake waits for them.
    from comparison.measure.comparison import Comparison, find_runs
    from comparison.run_maker import make_runs
    from comparison.show.export import write_tables
    from comparison.show.report.page import write_report
    from comparison.show.terminal import print_conclusions, print_tables

    gc.freeze()
    gc.enable()
    interrupted = False
    failure: UserError | None = None
    if given.report_only is None:
        try:
            make_runs(folder, request, console)
        except FileError as error:  # the finished runs are still shown
            failure = error
        except KeyboardInterrupt:
            interrupted = True
            take_signals(signal.SIG_IGN)  # until the report of the finished runs is made, in a second or two

    runs, missing = find_runs(folder, request)
    if runs:
        summary = Comparison(folder, request, runs, len(missing))
        try:
            with writing(folder):
                write_tables(summary)
                write_report(summary)
        except UserError as error:
            failure = failure or error
        print_tables(console, summary)
        if failure is None:
            console.print(f"\nresults: {folder}; open {folder / 'report.html'} in a browser", soft_wrap=True)
        print_conclusions(console, summary)
    if failure:
        again = "" if missing else f"; python compare.py --report-only {folder} makes tables and report again"
        print(f"compare.py: error: {failure}{again}", file=sys.stderr)
    if missing:
        shown = f"{missing[0].path} and {len(missing) - 1} more" if missing[1:] else str(missing[0].path)
        prefix = "interrupted; " if interrupted else ""
        print(
            f"compare.py: {prefix}no result yet: {shown}; finished runs are kept in {folder},"
            f" and python compare.py --resume {folder} makes the rest",
            file=sys.stderr,
        )
    if interrupted:
        return 130
    return 0 if runs and summary.succeeded and not failure else 1


if __name__ == "__main__":
    with as_program("compare.py"):
        exit_now(main())
