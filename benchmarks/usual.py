"""The usual way: images per second of mode tutorial, divided by those of an independent program.

The program (`make_usual` in benchmarks/loops) is what its framework's documentation teaches, with nothing of this
project but the network and the clock.

    python -m benchmarks.usual --data-dir DIR
"""

from benchmarks.limit import MNIST
from benchmarks.paired import PairedConfig, make_folder, measure
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.options import TrainConfig
from comparison.plan.jobs import Contender

if __name__ == "__main__":
    with as_program("python -m benchmarks.usual"):
        options = parse_options(PairedConfig, "python -m benchmarks.usual", "Measures mode tutorial.")
        config = TrainConfig(**MNIST, mode="tutorial", accelerator="cpu", data_dir=options.data_dir.absolute())
        rows = {Contender(name, "tutorial"): config for name in options.implementations}
        measure("usual", "usual", rows, options.rounds, make_folder(options, "usual"))
