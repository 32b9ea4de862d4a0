"""How far compare.py's ratios can be trusted: makes the same comparison again and again.

    python -m benchmarks.repeat --options="--implementations tf pt ptl --repeats 4 --verify never"
    python -m benchmarks.repeat --copy-of pt --options="--verify never"

The second command compares an implementation with a copy of itself (A/A): each "faster" or "slower" is then wrong.
`--output-dir` of an earlier call continues it.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import Field
from rich.table import Table

from benchmarks.paired import CONSOLE, FolderConfig, Implementation
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from common.record.run_folder import new_run_dir
from comparison import load

HEADINGS = "comparisons", "median", "deviation", "half-width", "with median", "faster", "slower"


class RepeatConfig(FolderConfig):
    comparisons: int = Field(10, ge=1, description="comparisons to make, with those in --output-dir")
    copy_of: Implementation | None = Field(None, description="compare this one with a copy of itself")
    options: str = Field("", description='options of compare.py, in one text: --options="--repeats 3"')


def make_copy(name: str, tree: Path) -> None:
    """Makes a copy of the code with one more implementation, `name` with a 2, which is a copy of `name`."""
    for package in REPOSITORY.glob("*/__init__.py"):
        shutil.copytree(package.parent, tree / package.parent.name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "compare.py", tree)
    for path in shutil.copytree(tree / f"{name}_impl", tree / f"{name}2_impl").rglob("*.py"):
        text = re.sub(rf"\b{name}_impl\b", f"{name}2_impl", path.read_text())
        calls_itself = path.name in ("__main__.py", "backend.py")  # elsewhere the name is that of a network's file
        path.write_text(text.replace(f'"{name}"', f'"{name}2"') if calls_itself else text)
    with open(tree / "common" / "implementations.py", "a") as registry:
        registry.write(f'IMPLEMENTATIONS["{name}2"] = IMPLEMENTATIONS["{name}"]\n')


def spread(rows: pd.DataFrame) -> list[str]:
    """The numbers that HEADINGS name, of one row's ratios in several comparisons."""
    ratios, low, high = rows.dropna(subset="ratio_low")[["ratio", "ratio_low", "ratio_high"]].to_numpy(float).T
    median, deviation = np.median(ratios), np.log(ratios).std(ddof=1) if len(ratios) > 1 else np.nan
    found = [f"{len(rows)}", f"{median:.3f}", f"{deviation:.1%}", f"{np.median(np.sqrt(high / low)) - 1:.1%}"]
    inside = int(((low <= median) & (median <= high)).sum())
    claims = [str(int((rows["verdict"] == verdict).sum())) for verdict in ("faster", "slower")]
    return [*found, f"{inside}/{len(ratios)}", *claims]


def main() -> None:
    options = parse_options(RepeatConfig, "python -m benchmarks.repeat", "Repeats a comparison.")
    folder = (options.output_dir or new_run_dir("repeat", Path("results"))).absolute()
    tree, words = REPOSITORY, shlex.split(options.options)
    if options.copy_of:
        tree, words = folder / "tree", ["--implementations", options.copy_of, f"{options.copy_of}2", *words]
        if not tree.exists():
            make_copy(options.copy_of, tree)
    for number in range(len([*folder.glob("comparison-*")]), options.comparisons):
        command = [sys.executable, "compare.py", *words, "--output-dir", str(folder / f"comparison-{number + 1:03}")]
        if status := subprocess.run(command, cwd=tree).returncode:
            raise UserError(f"compare.py: ended with status {status}")
    rows = pd.concat([load(path).rows for path in sorted(folder.glob("comparison-*"))])
    table = Table("", *HEADINGS, title="ratios to the first row, and their 95 % intervals", box=None)
    for (name, mode), of_row in rows.groupby(["implementation", "mode"], sort=False):
        if of_row["ratio_low"].notna().any():
            table.add_row(f"{name} {mode}", *spread(of_row))
    CONSOLE.print(table)


if __name__ == "__main__":
    with as_program("python -m benchmarks.repeat"):
        main()
