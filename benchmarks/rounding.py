"""The effect of 32 bits on a training: how far its losses are from those of the same training in 64 bits, and why.

Each framework in 32 bits is compared with PyTorch in 64 bits, in which only the layers' outputs and their gradients are
rounded to 32 bits. If this training departs from the reference as fast as the frameworks do, the cause is that training
magnifies rounding errors, and not a mistake in a framework.

    python -m benchmarks.rounding
"""

from rich.console import Console

from benchmarks.paired import FolderConfig, Program, make_folder, make_table, write_document
from benchmarks.rules import largest_differences, losses
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import ModelName, TrainConfig

STEPS = (1, 3, 10, 30, 100)
MODELS: tuple[ModelName, ...] = ("cnn", "resnet8")


def main() -> None:
    options = parse_options(FolderConfig, "python -m benchmarks.rounding", "Compares 32 bits with 64.")
    console = Console(highlight=False)
    folder = make_folder(options, "rounding")
    table = make_table("largest relative difference of a loss from 64 bits, up to step", "", "", *map(str, STEPS))
    found: dict[str, dict[str, list[float]]] = {}
    for model in MODELS:
        exact = TrainConfig(
            dataset="synthetic",
            image_shape=(16, 16, 3),
            train_size=1024,
            test_size=16,
            model=model,
            batch_size=32,
            max_steps=max(STEPS),
            learning_rate=0.01,
            precision="64",
            accelerator="cpu",
            devices=1,
        )
        reference = losses(Program(f"{model} 64", "pt_impl", exact), folder)
        programs = {
            f"{name}, 32 bits": Program(f"{model} {name} 32", f"{name}_impl", exact.replace(precision="32"))
            for name in ("tf", "keras", "pt", "ptl")
        }
        programs["tf, 64 bits"] = Program(f"{model} tf 64", "tf_impl", exact)
        programs["pt, 64 bits, layers rounded"] = Program(f"{model} rounded", "benchmarks.loops.pt_rounded", exact)
        found[model] = {}
        for name, program in programs.items():
            found[model][name] = largest_differences(reference, losses(program, folder), STEPS)
            table.add_row(model, name, *(f"{value:.0e}" for value in found[model][name]))
    console.print(table)
    write_document("rounding", folder, console, {"steps": STEPS, "largest_relative_differences": found})


if __name__ == "__main__":
    with as_program("python -m benchmarks.rounding"):
        main()
