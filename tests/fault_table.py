"""The table of faults in docs/reliability.md: tests record what they saw, and a run of all of them writes the table.

python -m pytest -m fault --fault-table=docs/reliability.md
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
LONGEST = 120  # characters of a quoted line

# Heading -> {name of a fault in tests: its text in the table}, in the table's order.
FAULTS = {
    "Processes": {
        "replica killed": "One replica is killed at a random step",
        "replica stopped": "One replica is stopped (SIGSTOP)",
        "first killed": "The first process of a run is killed",
        "compare killed": "`compare.py` is killed",
        "signal": "SIGTERM, SIGHUP or SIGUSR1",
        "signal with checkpoints": "SIGTERM, SIGUSR1 or Ctrl-C, with `--checkpoint-every`",
        "ctrl-c": "Ctrl-C once, twice or three times, at a random moment of a run",
        "ctrl-c comparison": "Ctrl-C once, twice or three times, at a random moment of a comparison",
        "instruction": "The processor dies of an instruction",
    },
    "Memory and numbers": {
        "memory": "A batch does not fit into memory",
        "memory later": "Memory runs out in the middle of training",
        "nan": "The loss is not finite any more",
    },
    "Folders and ports": {
        "no space": "No space for a run's files",
        "no space for a checkpoint": "No space for a checkpoint",
        "no space for a comparison": "No space for a comparison's files or its report",
        "no space for data": "No space for a data set",
        "read-only": "The folder can't be written to",
        "gone": "The folder is gone",
        "port": "The port in `MASTER_PORT` is taken",
        "one folder": "Two comparisons in one folder",
        "two folders": "Two comparisons at once in two folders",
    },
    "Data and results": {
        "data": "A data set's file is damaged or cut off",
        "download": "A download is endless, crawls, is silent, redirects for ever, or is something else",
        "checkpoint": "A checkpoint is damaged, cut off, missing or foreign",
        "results": "A run's results have been changed",
        "schema": "Results have an older schema",
        "commit": "A comparison continues with other code",
    },
}
TITLES = {name: title for faults in FAULTS.values() for name, title in faults.items()}


@pytest.fixture
def fault(request):
    """A function that records one observed fault for the table. Its arguments:

    name: the fault's name in `FAULTS`.
    whom: the program or the part that met the fault.
    status: the exit status; None if it was not a whole program.
    said: the line that was printed, or None.
    then: what the test has checked afterwards.
    seconds: the time until the end, or None.
    """

    def note(name, whom, status, said, then, seconds=None):
        assert name in TITLES
        whom = whom.removesuffix(", 1 devices")
        seen = {"name": name, "whom": whom, "status": status, "said": said, "then": then, "seconds": seconds}
        request.node.user_properties.append(("fault", seen))

    return note


def table(seen):
    """The faults in Markdown: a table under each heading, with a row for each fault."""
    cases = defaultdict(list)
    for one in seen:
        cases[one["name"]].append(one)
    lines = []
    for heading, faults in FAULTS.items():
        lines += ["", f"### {heading}", ""]
        lines += ["| fault | tried with | exit status | one of the lines | ended after | then |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        lines += [f"| {title} | {' | '.join(_row(cases[name]))} |" for name, title in faults.items()]
    return "\n".join([BEGIN, *lines, "", END])


def _row(cases):
    times = defaultdict(int)
    for case in cases:
        times[case["whom"]] += 1
    whom = "; ".join(f"{one} ({count})" if count > 1 else one for one, count in sorted(times.items()))
    statuses = ", ".join(map(str, sorted({case["status"] for case in cases if case["status"] is not None})))
    said = sorted({_quoted(case["said"]) for case in cases if case["said"]}, key=lambda line: (len(line), line))
    seconds = [case["seconds"] for case in cases if case["seconds"] is not None]
    then = "; ".join(dict.fromkeys(part for case in cases for part in case["then"].split("; ")))
    return whom, statuses, f"`{said[0]}`" if said else "", f"{max(seconds):.1f} s" if seconds else "", then


def _quoted(line):
    """A line without the parts that differ in each run: temporary folders and process ids. Shortened to `LONGEST`."""
    line = " ".join(line.split()).replace("`", "'").replace("|", "/")
    line = re.sub(r"(/[\w.-]+)*/pytest-of-[\w.-]+(/[\w.-]+)*/(?=[\w.-])", "", line)
    line = re.sub(r"process \d+", "process N", line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."


class Collected:
    """A pytest plugin that collects what the tests of all processes have recorded, and writes the table at the end."""

    def __init__(self, path):
        self.path, self.seen, self.failed = path, [], False

    def pytest_runtest_logreport(self, report):
        self.failed |= report.failed
        if report.when == "call" and report.passed:
            self.seen += [value for name, value in report.user_properties if name == "fault"]

    def pytest_terminal_summary(self, terminalreporter):
        missing = TITLES.keys() - {item["name"] for item in self.seen}
        if self.failed or missing:
            reason = f"nothing was tried of: {', '.join(sorted(missing))}" if missing else "tests failed"
            terminalreporter.write_line(f"{self.path}: no table is written; {reason}", red=True)
            return
        text = self.path.read_text()
        before, rest = text.split(BEGIN)
        self.path.write_text(before + table(self.seen) + rest.split(END)[1])
        terminalreporter.write_line(f"{self.path}: the table is written, of {len(self.seen)} faults", green=True)


def add_option(parser):
    parser.addoption("--fault-table", type=Path, metavar="FILE", help="write the table of faults into this document")


def configure(config):
    path = config.getoption("--fault-table")
    if path and not hasattr(config, "workerinput"):
        if not Path(path).is_file():  # noticed before the tests, which take a quarter of an hour
            raise pytest.UsageError(f"--fault-table {path}: no such file; the table goes into an existing page")
        config.pluginmanager.register(Collected(path))


def mark(items):
    """Marks all tests that record a fault, so that `-m fault` selects them."""
    for item in items:
        if "fault" in item.fixturenames:
            item.add_marker(pytest.mark.fault)
