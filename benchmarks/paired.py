"""Runs programs in turns, or one after the other, and compares their speeds.

Every program takes the options of a run. Those that train in turns (`comparison.run.turns`) write their turns to
`metrics.jsonl`; ratios are from turns of the same cycle. The others write what they measure to `result.json`, as an
implementation does, or to `speed.json`; ratios are from runs of the same round.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from benchmarks.within_a_run import SPEED_FILE
from common.implementations import IMPLEMENTATIONS, interpreter_of
from common.platform.errors import UserError
from common.platform.files import write_text
from common.platform.machine import REPOSITORY, describe_machine
from common.record.facts import git_state
from common.record.results import PlanLine, TurnLine, read_metrics
from common.record.run_folder import new_run_dir
from common.spec.options import Mode, TrainConfig
from comparison.plan.jobs import Contender
from comparison.ratios import MIN_CYCLES, Ratio, paired_ratio, pairs_of_turns, ratio_of_turns, typical_speed
from comparison.run.follower import QuietFollower
from comparison.run.load_meter import quiet
from comparison.run.program import Program
from comparison.run.runner import run_program
from comparison.run.store import LOG_FILE
from comparison.run.turns import run_in_turns

TIMEOUT_SECONDS = 4 * 3600  # of one program


# Those for which there is a bare loop.
MEASURED = [name for name in IMPLEMENTATIONS if (REPOSITORY / "benchmarks" / "loops" / f"{name}_limit.py").exists()]


def _known(name: str) -> str:
    if name not in MEASURED:
        raise ValueError(f"not one of {', '.join(MEASURED)}")
    return name


Implementation = Annotated[str, AfterValidator(_known)]


class FolderConfig(BaseModel):
    """The options that all benchmarks have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output_dir: Path | None = Field(None, description="folder for runs and results; unset: a new one under results/")


class RoundsConfig(FolderConfig):
    """The option of benchmarks that repeat what they measure."""

    rounds: int = Field(7, gt=0, description="rounds; each runs every program once")


class DataConfig(FolderConfig):
    """The option of benchmarks that train on real data sets."""

    data_dir: Path = Field(Path("data"), description="folder of data sets, as for a run")


class ImplementationsConfig(FolderConfig):
    """The options of benchmarks that measure implementations."""

    implementations: list[Implementation] = Field(MEASURED, min_length=1, description="which are measured")


class ModesConfig(ImplementationsConfig):
    """The options of benchmarks that measure implementations in several modes."""

    mode: list[Mode] = Field(["plain", "tuned"], min_length=1, description="the modes to measure, a row each")

    @property
    def rows(self) -> list[Contender]:
        return [Contender(implementation, mode) for implementation in self.implementations for mode in self.mode]


@dataclass(frozen=True)
class TimedProgram:
    """A program to measure: `python -m <module>` with the options of `config`."""

    name: str
    module: str
    config: TrainConfig

    def at(self, run_dir: Path) -> Program:
        """The program with its run folder, to be started."""
        config, words = self.config.replace(run_dir=run_dir.absolute()), ["-m"]
        if self.module.startswith("benchmarks.loops.pt_") and config.devices not in (1, "auto"):
            # Workers that pt_impl started by itself would lack what the loop has changed in it.
            words += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(config.devices), "-m"]
            config = config.replace(devices="auto")
        return Program(
            implementation=self.module,
            interpreter=interpreter_of(self.module.rpartition(".")[2].partition("_")[0]),
            config=config,
            words=(*words, self.module),
        )


@dataclass(frozen=True)
class Pair:
    """The ratio of `name` to `reference`, and its target."""

    name: str
    reference: str
    at_least: float | None = None


Samples = dict[str, list[float]]  # name of a program -> a value for each round
RunDirs = dict[str, list[Path]]  # name of a program -> the run folder of each round


def measure_in_turns(
    programs: Sequence[TimedProgram], pairs: Sequence[Pair], rounds: int, folder: Path, console: Console
) -> RunDirs:
    """Runs the programs. In each round, those that pairs connect are alive together and train in turns.

    Raises:
      UserError: a program fails; the message names its log. Or the programs of a group do not fit into memory together.
    """
    run_dirs: RunDirs = {program.name: [] for program in programs}
    for number in range(1, rounds + 1):
        for group in _connected(programs, pairs):
            started = {program.name: program.at(_run_dir(folder, number, program)) for program in group}
            failures: dict[Path, str | None] = {}
            run_in_turns([*started.values()], TIMEOUT_SECONDS, QuietFollower(failures.__setitem__))
            if len(failures) > len(started):  # one was run again, with those that were left
                raise UserError(f"{', '.join(started)}: do not fit into memory together")
            for name, program in started.items():
                _check(name, program.run_dir, failures[program.run_dir])
                run_dirs[name].append(program.run_dir)
                turns = read_metrics(program.run_dir, TurnLine)
                shown = f"{typical_speed([turn.images_per_second for turn in turns]):,.0f}" if turns else "no"
                console.print(f"round {number}/{rounds}: {name} {shown} images per second in {len(turns)} turns")
    return run_dirs


def _connected(programs: Sequence[TimedProgram], pairs: Sequence[Pair]) -> list[list[TimedProgram]]:
    """The programs in groups: any two of a pair are in the same one."""
    groups = {program.name: {program.name} for program in programs}
    for pair in pairs:
        joined = groups[pair.name] | groups[pair.reference]
        groups |= dict.fromkeys(joined, joined)
    names = dict.fromkeys(frozenset(group) for group in groups.values())
    return [[program for program in programs if program.name in group] for group in names]


def measure(programs: Sequence[TimedProgram], rounds: int, folder: Path, console: Console, what: str) -> Samples:
    """Runs the programs one after the other, in rotating order; returns the samples of `what` that each has measured.

    Raises:
      UserError: a program fails; the message names its log.
    """
    samples: Samples = {program.name: [] for program in programs}
    for number in range(1, rounds + 1):
        shift = (number - 1) % len(programs)
        for program in [*programs[shift:], *programs[:shift]]:
            samples[program.name].append(run(program, _run_dir(folder, number, program))[what])
            shown = _shown(samples[program.name][-1])
            console.print(f"round {number}/{rounds}: {program.name} {what.replace('_', ' ')} {shown}")
    return samples


def run(program: TimedProgram, run_dir: Path) -> dict[str, Any]:
    """Runs a program to its end; returns the results that it has written."""
    ended = run_program(program.at(run_dir), TIMEOUT_SECONDS, lambda line: None)
    _check(program.name, run_dir, ended.failure)
    path = run_dir / SPEED_FILE
    found: dict[str, Any] = json.loads((path if path.exists() else run_dir / "result.json").read_text())
    return found


def _run_dir(folder: Path, number: int, program: TimedProgram) -> Path:
    return folder / f"round-{number}" / program.name.replace(" ", "-").replace(",", "")


def _check(name: str, run_dir: Path, failure: str | None) -> None:
    if failure is not None:
        raise UserError(f"{name}: {failure}; see {run_dir / LOG_FILE}")


def ratio_in_turns(run_dirs: Sequence[Path], reference: Sequence[Path]) -> Ratio | None:
    """The ratio of two programs' speeds from their undisturbed turns; None if no round has MIN_CYCLES pairs of them."""
    rounds = []
    for run_dir, other in zip(run_dirs, reference, strict=True):
        plan, other_plan = (read_metrics(folder, PlanLine)[0] for folder in (run_dir, other))
        turns, other_turns = (quiet(read_metrics(folder, TurnLine)) for folder in (run_dir, other))
        rounds.append(pairs_of_turns(turns, other_turns, plan.steps_per_epoch, other_plan.steps_per_epoch))
    rounds = [of_round for of_round in rounds if len(of_round) >= MIN_CYCLES]
    return ratio_of_turns(rounds) if rounds else None


def report_turns(
    title: str, run_dirs: RunDirs, pairs: Sequence[Pair], folder: Path, console: Console, more: dict[str, Any]
) -> None:
    """Prints images per second and ratios of programs that have trained in turns; writes them to `<title>.json`."""
    turns = {name: [read_metrics(folder, TurnLine) for folder in of_rounds] for name, of_rounds in run_dirs.items()}
    speeds = {
        name: [typical_speed([turn.images_per_second for turn in of_round]) for of_round in rounds if of_round]
        for name, rounds in turns.items()
    }
    ratios = {pair: ratio_in_turns(run_dirs[pair.name], run_dirs[pair.reference]) for pair in pairs}
    lines = {name: [[turn.model_dump() for turn in of_round] for of_round in rounds] for name, rounds in turns.items()}
    report(title, "images_per_second", speeds, ratios, folder, console, {"turns": lines, **more})
    every = [turn for rounds in turns.values() for of_round in rounds for turn in of_round]
    if disturbed := len(every) - len(quiet(every)):
        console.print(f"other programs have disturbed {disturbed} of {len(every)} turns, which ratios leave out")


def ratios_of_runs(samples: Samples, pairs: Sequence[Pair]) -> dict[Pair, Ratio | None]:
    """Ratios from whole runs of the same round."""
    return {pair: paired_ratio(samples[pair.name], samples[pair.reference]) for pair in pairs}


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def _reach(value: float, at_least: float | None) -> str:
    return "" if at_least is None else f">= {at_least} {'yes' if value >= at_least else 'NO'}"


def report(
    title: str,
    what: str,
    samples: Samples,
    ratios: Mapping[Pair, Ratio | None],
    folder: Path,
    console: Console,
    more: dict[str, Any],
    targets: Mapping[str, float] | None = None,
) -> None:
    """Prints medians and ratios, and writes all samples to `<title>.json`.

    Args:
      targets: name of a program -> the least median that it should have.
    """
    table = make_table(f"{title}: {what.replace('_', ' ')}", "", "median", "middle half", "reach")
    for name, values in samples.items():
        if values:
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
            reach = _reach(median, (targets or {}).get(name))
            table.add_row(name, _shown(median), f"{_shown(low)}-{_shown(high)}", reach)
    console.print(table)
    table = make_table(f"{title}: ratios", "", "ratio", "95 % interval", "reach")
    for pair, ratio in ratios.items():
        cells = ["not measured"]
        if ratio is not None and ratio.estimate is not None:
            reach = _reach(ratio.estimate, pair.at_least)
            cells = [f"{ratio.estimate:.3f}", f"{ratio.low:.3f}-{ratio.high:.3f}", reach]
        table.add_row(f"{pair.name} / {pair.reference}", *cells)
    if ratios:
        console.print(table)
    shown = [{**vars(pair), "ratio": ratio and vars(ratio)} for pair, ratio in ratios.items()]
    write_document(title, folder, console, {"measured": what, "samples": samples, "ratios": shown, **more})


def make_table(title: str, *headings: str) -> Table:
    """An empty table; the columns without a heading are of words, the others of numbers."""
    table = Table(title=title, box=None)
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    return table


def write_document(title: str, folder: Path, console: Console, found: dict[str, Any]) -> None:
    """Writes the results, with the command, the machine and the commit, to `<title>.json`, and prints its path."""
    document = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "machine": describe_machine().model_dump(),
        "git": git_state(),
        **found,
    }
    path = folder / f"{title.replace(' ', '-')}.json"
    write_text(path, json.dumps(document, indent=2) + "\n")
    console.print(f"results: {path}")


def make_folder(config: FolderConfig, name: str) -> Path:
    """The folder for all that a benchmark writes. Raises UserError if it is not empty."""
    folder = config.output_dir or new_run_dir(name, Path("results"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"--output-dir {folder}: is not empty")
    return folder
