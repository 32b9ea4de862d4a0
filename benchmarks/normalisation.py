"""Batch normalisation on several replicas: how far the training differs from that on one device.

PyTorch is measured, in 64 bits. tests/parity/test_residual_networks.py checks that the other implementations give the
same losses on as many devices.

    python -m benchmarks.normalisation
"""

from rich.console import Console
from rich.table import Table

from benchmarks.paired import FolderConfig, Program, make_folder, write_document
from benchmarks.rules import largest_differences, losses
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig

STEPS = (1, 10, 100)


def main() -> None:
    options = parse_options(FolderConfig, "python -m benchmarks.normalisation", "Compares numbers of replicas.")
    console = Console(highlight=False)
    folder = make_folder(options, "normalisation")
    config = TrainConfig(model="resnet8", max_steps=max(STEPS), precision="64", accelerator="cpu", devices=1)
    reference = losses(Program("1", "pt_impl", config), folder)
    table = Table(title="largest relative difference of a loss from one device's, up to step", box=None)
    for heading in ("devices", "sync-batchnorm", *map(str, STEPS)):
        table.add_column(heading, justify="right")
    found: dict[str, list[float]] = {}
    for devices in (2, 4):
        for sync in (False, True):
            name = f"{devices} {str(sync).lower()}"
            program = Program(name, "pt_impl", config.replace(devices=devices, sync_batchnorm=sync))
            found[name] = largest_differences(reference, losses(program, folder), STEPS)
            table.add_row(*name.split(), *(f"{value:.0e}" for value in found[name]))
    console.print(table)
    write_document("normalisation", folder, console, {"steps": STEPS, "largest_relative_differences": found})


if __name__ == "__main__":
    with as_program("python -m benchmarks.normalisation"):
        main()
