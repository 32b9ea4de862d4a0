"""Makes the runs of a comparison. As soon as a run has ended, its record and the tables are written."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.record.results import MetricsLine, PlanLine, TurnLine
from comparison.export.write import write_tables
from comparison.integrity import check_name
from comparison.jobs import Job, Variant, contenders, row_name
from comparison.launchers import Launcher
from comparison.live import LiveView
from comparison.load_meter import QUIETER, busiest_others, quiet
from comparison.program import Ended, Program
from comparison.request import summarise
from comparison.rounds import further_rounds, is_disturbed, other_load
from comparison.store import Request, Run, record_run

SURE_TURNS = 3  # disturbed ones, before it is told: a single one may be chance


@dataclass
class RunMaker:
    """Gives programs to a launcher and follows them, see `comparison.launchers.Follower`.

    Attributes:
      folder: the comparison's folder.
      runs: the runs that have ended, including those that were there before.
      missing: the jobs that have not begun.
    """

    folder: Path
    request: Request
    launcher: Launcher
    view: LiveView
    runs: list[Run]
    missing: list[Job]
    _jobs: dict[Path, Job] = field(default_factory=dict)  # run folder -> job, for jobs given to the launcher
    _disturbed: list[float] = field(default_factory=list)  # load by others in each disturbed turn so far

    def make(self, jobs: Sequence[Job]) -> None:
        """Makes the missing runs. The runs of a round form pairs, so they run one after the other on one machine."""
        options, missing = self.request.options, {job.path for job in self.missing}
        interpreters, session = options.interpreters(), len(self.request.commands)
        groups = []
        for _, in_round in itertools.groupby(jobs, key=lambda job: (job.variant, job.seed, job.round)):
            group = []
            for job in in_round:
                if job.path not in missing:
                    continue
                run_dir = self.folder.absolute() / job.path
                self._jobs[run_dir] = job
                program = Program(
                    implementation=job.implementation,
                    interpreter=interpreters[job.implementation],
                    config=job.config.replace(run_dir=run_dir),
                    session=session,
                    is_reference=job.name == row_name(*contenders(options)[0]),
                )
                group.append(program)
            groups.append(group)
        self.launcher.run(groups, 1, options.timeout, self, turns=options.turns == "auto")

    def make_further(self, variants: Sequence[Variant]) -> None:
        """Makes further rounds by the rules of `comparison.rounds`."""
        made: list[Job] = []
        while again := self._next_rounds(variants):
            if again == made:  # no progress: the same runs are still missing
                return
            new = [job for job in again if job.path not in {one.path for one in self.missing}]
            self.missing += new
            self.view.more(len(new))
            rounds = len({(job.variant, job.seed, job.round) for job in again})
            within = self.request.options.ratio_within
            why = "other programs kept the machine busy"
            if within is not None and not any(map(is_disturbed, self.runs)):
                why = f"not all intervals are within {within:.3g} of the ratio"
            self.view.say(f"{why}: making {rounds} more round{'s' if rounds > 1 else ''}")
            self.make(again)
            made = again

    def _next_rounds(self, variants: Sequence[Variant]) -> list[Job]:
        ended = {run.shown_dir(self.folder): run for run in self.runs}
        return further_rounds(self.request.options, variants, lambda job: ended.get(str(job.path)))[1]

    def started(self, program: Program) -> None:
        if program.run_dir not in self._jobs:  # the first row once more, for a further group of the round
            self._jobs[program.run_dir] = self._jobs[program.run_dir.with_suffix("")]
            self.view.more(1)
        job = self._jobs[program.run_dir]
        self.missing = [one for one in self.missing if one.path != job.path]
        self.view.start(job, self.missing)

    def see(self, program: Program, line: MetricsLine) -> None:
        job = self._jobs[program.run_dir]
        if isinstance(line, PlanLine):
            check_name(line.implementation, job.implementation)
        self.view.see(job, line)
        if isinstance(line, TurnLine) and not quiet([line]):
            self._disturbed.append(line.other_load or 0.0)
            if len(self._disturbed) == SURE_TURNS:
                self._say_disturbed(statistics.median(self._disturbed))

    def _say_disturbed(self, load: float) -> None:
        """Tells once that other programs disturb the measurement, while there is still time to end them."""
        busiest = "" if self.launcher.place else ", ".join(busiest_others())
        follows = "left out" if self.request.options.disturbed == "retake" else "kept (--disturbed keep)"
        self.view.say(
            f"other programs use {load:.0%} of the cores{f': {busiest}' if busiest else ''}; turns and rounds that they"
            f" disturb are {follows}; {QUIETER}"
        )

    def ended(self, program: Program, ended: Ended) -> None:
        job = self._jobs[program.run_dir]
        run = record_run(job, program, ended)
        self.runs.append(run)
        if not run.turns and is_disturbed(run) and not self._disturbed:
            self._disturbed.append(other_load(run) or 0.0)
            self._say_disturbed(self._disturbed[0])
        self.view.end(job, run)
        write_tables(summarise(self.folder, self.request, self.runs, len(self.missing)))
