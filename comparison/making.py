"""Makes the runs of a comparison. As soon as a run has ended, its record and the tables are written."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.record.results import MetricsLine
from comparison.export.write import write_tables
from comparison.jobs import Job, Variant
from comparison.launchers import Launcher
from comparison.live import LiveView
from comparison.program import Ended, Program
from comparison.request import summarise
from comparison.rounds import taken_again
from comparison.store import Request, Run, record_run


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
                )
                group.append(program)
            groups.append(group)
        self.launcher.run(groups, 1, options.timeout, self)

    def take_again(self, variants: Sequence[Variant]) -> None:
        """Makes new rounds for those that other programs have disturbed, by the rule of `comparison.rounds`."""
        made: list[Job] = []
        while again := self._next_rounds(variants):
            if again == made:  # no progress: the same runs are still missing
                return
            new = [job for job in again if job.path not in {one.path for one in self.missing}]
            self.missing += new
            self.view.more(len(new))
            rounds = len({(job.variant, job.seed, job.round) for job in again})
            self.view.say(
                f"other programs kept the machine busy: making {rounds} more round{'s' if rounds > 1 else ''}"
            )
            self.make(again)
            made = again

    def _next_rounds(self, variants: Sequence[Variant]) -> list[Job]:
        ended = {run.shown_dir(self.folder): run for run in self.runs}
        return taken_again(self.request.options, variants, lambda job: ended.get(str(job.path)))[1]

    def started(self, program: Program) -> None:
        job = self._jobs[program.run_dir]
        self.missing = [one for one in self.missing if one.path != job.path]
        self.view.start(job, self.missing)

    def see(self, program: Program, line: MetricsLine) -> None:
        self.view.see(self._jobs[program.run_dir], line)

    def ended(self, program: Program, ended: Ended) -> None:
        job = self._jobs[program.run_dir]
        run = record_run(job, program, ended)
        self.runs.append(run)
        self.view.end(job, run)
        write_tables(summarise(self.folder, self.request, self.runs, len(self.missing)))
