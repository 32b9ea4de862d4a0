"""Makes docs/gallery.md and its pictures: comparisons of several kinds, each with its command, findings and charts.

    python docs/gallery.py FOLDER --data-dir DIR

FOLDER gets a sub-folder for each comparison, with its report. A comparison that is already finished there is only read.
DIR contains MNIST and CIFAR-10. A data set that is missing there is downloaded.
"""

import shlex
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from comparison.measure.summary import Summary, find_runs, summarise
from comparison.measure.sweep import make_sweep_study
from comparison.plan.request import Request
from comparison.show.export import markdown_grid
from comparison.show.report.charts import Chart
from comparison.show.report.page import table_charts
from comparison.show.report.sweep_figures import study_charts
from comparison.show.sentences import conclusions, remarks, study_conclusions
from comparison.show.tables import row_tables, study_tables

PAGE, PICTURES = REPOSITORY / "docs" / "gallery.md", REPOSITORY / "docs" / "gallery"


@dataclass(frozen=True)
class Exhibit:
    """A comparison of the gallery.

    Attributes:
      name: the name of its sub-folder.
      why: what a reader can learn from it.
      options: command-line options of compare.py; `DIR` stands for the folder of data sets.
      charts: names of the charts of its report that the page shows.
    """

    name: str
    title: str
    why: str
    options: str
    charts: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"python compare.py {self.options}"


EXHIBITS = (
    Exhibit(
        "digits",
        "Three modes",
        "What each framework costs as its documentation teaches it, what its data path costs, and what tuning gains, in"
        " a network so small that the framework's own overhead dominates.",
        "--mode tutorial plain tuned --implementations tf keras pt ptl --epochs 40 --repeats 3",
        ("throughput", "ratio"),
    ),
    Exhibit(
        "mnist",
        "MNIST",
        "The classic task, with the time that each framework takes to reach a test accuracy of 98 %.",
        "--dataset mnist --data-dir DIR --model lenet --epochs 2 --repeats 3 --target-accuracy 0.98",
        ("throughput", "accuracy-seconds"),
    ),
    Exhibit(
        "cifar10",
        "CIFAR-10",
        "A residual network, where nearly all of the time goes into the arithmetic of a training step.",
        "--mode plain --dataset cifar10 --data-dir DIR --model resnet8 --train-size 5000 --epochs 3 --repeats 3",
        ("throughput", "breakdown"),
    ),
    Exhibit(
        "devices",
        "One device and two",
        "Speed-up on the CPU, where each device has its share of the cores. Its intervals are wide: the variants of a"
        " sweep do not run at the same time, so their turns cannot be paired.",
        "--mode plain --sweep devices=1,2 --scaling strong --epochs 40 --repeats 3",
        ("sweep-speed-up", "sweep-images-per-second"),
    ),
    Exhibit(
        "batch-size",
        "Batch size",
        "What a larger batch gains in speed, and what it costs in epochs.",
        "--mode plain --sweep batch-size=16,64,256 --epochs 20 --repeats 3 --target-accuracy 0.97",
        ("sweep-images-per-second", "sweep-target-epochs"),
    ),
)
INTRODUCTION = """# A gallery of comparisons

Each section shows a command, its findings, and two charts of its report. The report has more: every round, curves, how
far the losses differ, the images that were guessed wrong. The commands were run on {machine}, which other tenants
share. These commands make all reports, this page and its pictures:

```
python docs/gallery.py results/gallery --data-dir DIR
```
"""


def make(exhibit: Exhibit, folder: Path, data_dir: Path) -> Summary:
    """Runs a comparison unless it is finished, and reads its results. Raises CalledProcessError if compare.py fails."""
    if not (folder / "results.json").exists():
        options = [str(data_dir) if word == "DIR" else word for word in shlex.split(exhibit.options)]
        command = [sys.executable, str(REPOSITORY / "compare.py"), *options, "--output-dir", str(folder)]
        subprocess.run(command, cwd=REPOSITORY, check=True)
    request = Request.read(folder, "FOLDER")
    runs, missing = find_runs(folder, request)
    return summarise(folder, request, runs, len(missing))


def pictures(exhibit: Exhibit, summary: Summary) -> list[Chart]:
    study = make_sweep_study(summary)
    charts = study_charts(study) if study else table_charts(summary.tables[0])
    by_name = {chart.name: chart for chart in charts if chart.name in exhibit.charts}
    return [by_name[name] for name in exhibit.charts]


def section(exhibit: Exhibit, summary: Summary, charts: list[Chart]) -> str:
    study = make_sweep_study(summary)
    table = summary.tables[0]
    grid = study_tables(study)[0] if study else row_tables(table.rows, details=False)[0]
    sentences = study_conclusions(study) if study else conclusions(table)
    lines = [f"## {exhibit.title}", "", exhibit.why, "", "```", exhibit.command, "```", ""]
    lines += [*(f"- {line}" for line in sentences), "", *markdown_grid(grid), ""]
    for chart in charts:
        source = f"gallery/{exhibit.name}-{chart.name}.svg"
        lines += [f'<img src="{source}" width="420" alt="{chart.words}">', ""]
    lines += [f"{chart.title}: {chart.about}  " for chart in charts if chart.about]
    if notes := remarks(summary):
        lines += ["", "What compare.py remarked:", "", "```", *notes, "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = ArgumentParser(description="Makes docs/gallery.md and its pictures.")
    parser.add_argument("folder", type=Path, help="for the comparisons; what is finished there is only read")
    parser.add_argument("--data-dir", type=Path, required=True, help="where MNIST and CIFAR-10 are")
    given = parser.parse_args()
    sections, machines = [], []
    for exhibit in EXHIBITS:
        summary = make(exhibit, given.folder / exhibit.name, given.data_dir)
        charts = pictures(exhibit, summary)
        for chart in charts:
            (PICTURES / f"{exhibit.name}-{chart.name}.svg").write_text(chart.for_any_page)
        sections.append(section(exhibit, summary, charts))
        machines += [
            f"{run.result.machine.cores} cores of an {run.result.machine.processor}"
            for run in summary.runs
            if run.result
        ]
    introduction = INTRODUCTION.format(machine=" and on ".join(dict.fromkeys(machines)))
    PAGE.write_text("\n".join([introduction, *sections]))


if __name__ == "__main__":
    main()
