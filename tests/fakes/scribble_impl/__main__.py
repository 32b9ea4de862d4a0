"""Writes a line of metrics that is not valid."""

import sys
from pathlib import Path

from fake_training import run


def scribble():
    folder = Path(sys.argv[sys.argv.index("--run-dir") + 1])
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "step", "loss": 1}\n')


run("scribble", before_finish=scribble)
