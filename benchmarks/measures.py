"""Measures of tuned mode that no option switches: tuned mode's speed divided by that without a measure, in pairs.

Each speed is relative to the bare loop in the same process, as in benchmarks.limit. The two runs of a pair follow each
other, and meanwhile the machine's speed changes by more than most measures gain. All runs are in 32-bit floats, without
a compiler.

    python -m benchmarks.measures --data-dir DIR
"""

from rich.console import Console

from benchmarks.limit import SAME_STEP, TasksConfig, task_config
from benchmarks.paired import Pair, Program, make_folder, measure, ratios_of_runs, report
from benchmarks.without import MEASURES, NOTHING
from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.platform.program import as_program


def main() -> None:
    options = parse_options(TasksConfig, "python -m benchmarks.measures", "Measures tuned mode piece by piece.")
    names = [name for name in options.implementations if name in MEASURES]
    if not names:
        raise UserError("--implementations ptl: Lightning has PyTorch's measures; pt")
    console = Console(highlight=False)
    folder = make_folder(options, "measures")
    for task in options.tasks:
        config = task_config(task, options).replace(mode="tuned", **SAME_STEP)
        programs, pairs = [], []
        for name in names:
            module, tuned = f"benchmarks.loops.{name}_without", f"{name} tuned"
            programs.append(Program(tuned, module, config, (NOTHING,)))
            for one in MEASURES[name]:
                programs.append(Program(f"{name} without {one}", module, config, (one,)))
                pairs.append(Pair(tuned, f"{name} without {one}"))
        samples = measure(programs, options.rounds, folder / task, console, "efficiency")
        document = {"config": config.training_fields()}
        report(f"measures {task}", "efficiency", samples, ratios_of_runs(samples, pairs), folder, console, document)


if __name__ == "__main__":
    with as_program("python -m benchmarks.measures"):
        main()
