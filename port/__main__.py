"""`python -m port --network FOLDER`: whether the files of a network's folder are the same network."""

import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.platform.errors import UserError
from common.spec.options import ImageShape
from common.spec.own_network import NETWORK_FILES
from port.check import make_probe, run_all
from port.departure import PortComparison

ABOUT = (
    "Checks whether a network written for several frameworks is the same network in each: outputs, gradients, one"
    " update and evaluation, in 64 bits, layer by layer. Runs the files pt.py, tf.py and jax.py of the folder."
)


class PortConfig(BaseModel, frozen=True, extra="forbid"):
    """The options of the check."""

    network: Path = Field(description="folder with at least two of pt.py, tf.py and jax.py")
    image_shape: ImageShape = Field((32, 32, 3), description="height, width and channels of the images")
    num_classes: int = Field(10, gt=0, description="number of classes")
    implementations: list[Literal["pt", "tf", "jax"]] | None = Field(
        None, min_length=2, description="the files to compare, the reference first; unset: all that the folder has"
    )


def main() -> int:
    options = parse_options(PortConfig, "python -m port", ABOUT)
    if not options.network.is_dir():
        raise UserError(f"--network {options.network}: no such folder")
    found = [name for name, file in NETWORK_FILES.items() if (options.network / file).is_file()]
    names = options.implementations or found
    if missing := [NETWORK_FILES[name] for name in names if name not in found]:
        raise UserError(f"--network {options.network}: has no {' and no '.join(missing)}")
    if len(names) < 2:
        has = NETWORK_FILES[names[0]] if names else "none"
        raise UserError(f"--network {options.network}: needs two of {', '.join(NETWORK_FILES.values())}, has {has}")
    probe = make_probe(options.image_shape, options.num_classes)
    first, *ports = run_all(options.network, names, probe).items()
    console = Console(highlight=False, markup=False, emoji=False)
    same = True
    for name, result in ports:
        comparison = PortComparison(first[1], result, NETWORK_FILES[first[0]], NETWORK_FILES[name], probe)
        table = Table(box=None, pad_edge=False)
        for heading in (comparison.here, comparison.there, "kind", "output", "gradient", ""):
            table.add_column(heading, justify="right" if heading in ("output", "gradient") else "left")
        for row in comparison.rows():
            table.add_row(*row)
        console.print(table)
        for line in comparison.lines():
            console.print(f"\n{line}")
        console.print()
        same &= comparison.departure is None
    return 0 if same else 1


if __name__ == "__main__":
    with as_program("python -m port"):
        sys.exit(main())
