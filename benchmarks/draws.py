"""The cost of dropout and augmentation in lockstep, compared with each framework's own.

python -m benchmarks.draws
"""

from rich.console import Console

from benchmarks.paired import FolderConfig, Program, make_folder, make_table, run, write_document
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig

WHAT = {
    "dropout": "dropout of 0.25, 128 images of 12 x 12 x 64",
    "augmentation": "crop, flip and normalise 128 images of 32 x 32 x 3",
}


def main() -> None:
    options = parse_options(FolderConfig, "python -m benchmarks.draws", "Times dropout and augmentation by themselves.")
    console = Console(highlight=False)
    folder = make_folder(options, "draws")
    config = TrainConfig(
        dataset="synthetic",
        image_shape=(32, 32, 3),
        train_size=128,
        batch_size=128,
        random_crop=4,
        horizontal_flip=True,
        accelerator="cpu",
        devices=1,
    )
    table = make_table("milliseconds", "", "", "in lockstep", "its own")
    found: dict[str, dict[str, float]] = {}
    for implementation, title in (("pt", "PyTorch"), ("tf", "TensorFlow")):
        program = Program(title, f"benchmarks.loops.{implementation}_draws", config)
        found[implementation] = run(program, folder / implementation)
        for name, shown in WHAT.items():
            values = (found[implementation][one] for one in (name, f"own_{name}"))
            table.add_row(title, shown, *(f"{value:.1f}" for value in values))
    console.print(table)
    write_document("draws", folder, console, found)


if __name__ == "__main__":
    with as_program("python -m benchmarks.draws"):
        main()
