"""Makes the runs of a comparison, its proofs and its profiles.

A run's record is written as soon as it has ended, the tables when its round has.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record.audited_states import STATES_DIR
from common.record.results import MetricsLine, PlanLine, TurnLine
from common.spec.options import TrainConfig
from comparison.measure.comparison import Comparison, find_runs, further_rounds
from comparison.measure.rounds import is_round_disturbed
from comparison.numbers import SHARE
from comparison.plan.jobs import Job, Variant, comparison_jobs, contenders, make_variants, rate_search_jobs
from comparison.plan.request import Request
from comparison.prove.audits import choose_audited_steps, make_audits_side_by_side, read_audits
from comparison.prove.learning import make_memorising_runs, make_whole_set_runs
from comparison.prove.proof import proof_jobs
from comparison.prove.prover import Prover
from comparison.run.load_meter import QUIET_ADVICE, quiet
from comparison.run.program import Program, RunEnd
from comparison.run.runner import Follower, run_programs
from comparison.run.side_runs import SideRunner, make_profiles
from comparison.run.store import Run, check_name, store_run
from comparison.run.turns import run_in_turns
from comparison.show.export import write_tables
from comparison.show.live import LiveView
from comparison.show.terminal import tables_so_far


def make_runs(folder: Path, request: Request, console: Console) -> None:
    """Makes every missing run, proof and profile."""
    options = request.options
    variants = make_variants(options, request.config)
    found, missing = find_runs(folder, request, failed=False)
    if missing:
        check_data(variants, found)

    with LiveView(console, len(found) + len(missing), found) as view:
        maker = RunMaker(folder, request, view, found, missing)
        maker.audit_interrupted()
        maker.make(list(rate_search_jobs(options, variants)))
        variants = with_best_learning_rates(variants, maker.runs, options.target_accuracy)
        prover = Prover(folder, request, view.say)
        if options.verify == "auto":
            prover.make(proof_jobs(variants, contenders(options), options.seeds[0]))
        side_runner = SideRunner(folder, request, variants, view.say)
        if options.check_learning:
            make_memorising_runs(side_runner)
        maker.make(list(comparison_jobs(options, variants)))
        maker.make_further(variants)
        if options.verify == "auto":
            rows = Comparison(folder, request, maker.runs, missing=0).all_rows
            prover.look_closer(row.unexplained_jump for row in rows if row.unexplained_jump)
            prover.look_at_skipped_steps(maker.runs)
        if options.check_learning:
            make_whole_set_runs(side_runner)
        if options.profile is not None:
            make_profiles(side_runner, options.profile)


def check_data(variants: Sequence[Variant], runs: Sequence[Run]) -> None:
    """Raises UserError if the data set is not the one on which the runs that have finished were trained."""
    for variant in variants:
        finished = [run for run in runs if run.result and run.record.variant == dict(variant.values)]
        for seed, run in {run.record.seed: run for run in finished}.items():
            config = variant.config.replace(seed=seed)
            if run.result and run.result.data_sha256 != Experiment.make(config).dataset.sha256:
                raise UserError(
                    f"--dataset {config.dataset}: holds other data than when {run.run_dir} was made; put it back,"
                    " or start a new comparison"
                )


# --- Learning rates ---


def with_best_learning_rates(variants: list[Variant], runs: list[Run], target_accuracy: float | None) -> list[Variant]:
    """Each variant with the best of the learning rates that it was tuned over; unchanged if it was not tuned.

    A variant that has already been run for the tables keeps the rate of these runs.

    Raises:
      UserError: no rate could be trained for a variant.
    """
    chosen = []
    for variant in variants:
        of_variant = [run for run in runs if run.record.variant == dict(variant.values)]
        searches = [run for run in of_variant if run.record.rate_search]
        if not searches:
            chosen.append(variant)
            continue
        rates: dict[float, list[Run]] = {}
        for run in searches:
            if run.result and run.result.config.learning_rate:
                rates.setdefault(run.result.config.learning_rate, []).append(run)
        if not rates:
            why = ": ".join([str(searches[0].record.failure), *searches[0].last_log_lines(1)])
            raise UserError(f"--sweep-learning-rate: none of the rates could be trained for {variant.name}: {why}")
        used = [run.result.config.learning_rate for run in of_variant if run.result and not run.record.rate_search]
        best = used[0] if used else max(sorted(rates), key=lambda rate: _merit(rates[rate], target_accuracy))
        chosen.append(Variant(variant.values, variant.config.replace(learning_rate=best)))
    return chosen


def _merit(runs: Sequence[Run], target_accuracy: float | None) -> tuple[float, ...]:
    """Criteria for the runs of a rate that have succeeded, the most important first; the larger, the better.

    They are the seeds that finished; the seeds that reached the target accuracy; the mean epochs until then, the fewer
    the better; the mean test accuracy; the mean test loss. Without a target, the second and the third do not apply.
    """
    results = [run.result for run in runs if run.result]
    reached = [epochs for run in runs if not math.isnan(epochs := run.reach(target_accuracy).epochs)]
    accuracy = statistics.fmean(result.test_accuracy or 0 for result in results)
    loss = statistics.fmean(result.test_loss for result in results)
    return len(results), len(reached), -statistics.fmean(reached or [0.0]), accuracy, -loss


# --- Runs ---

SURE_TURNS = 3  # disturbed ones, before it is told: a single one may be chance


@dataclass
class RunMaker:
    """Makes the runs of a comparison, and follows them.

    Attributes:
      folder: the comparison's folder.
      runs: the runs that have ended, including those that were there before.
      missing: the jobs that have not begun.
    """

    folder: Path
    request: Request
    view: LiveView
    runs: list[Run]
    missing: list[Job]
    _jobs: dict[Path, Job] = field(default_factory=dict)  # run folder -> job
    _disturbed: list[float] = field(default_factory=list)  # load by others in each disturbed turn so far

    def make(self, jobs: Sequence[Job]) -> None:
        """Makes the missing runs, round by round.

        The runs of a round form pairs: they train in turns or, on several nodes and with --turns never, one after the
        other.
        """
        options, follower = self.request.options, Follower(self._ended, self._started, self._see)
        missing = {job.path for job in self.missing}
        for _, of_round in itertools.groupby(jobs, key=lambda job: (job.variant, job.seed, job.round)):
            in_round = [job for job in of_round if job.path in missing]
            audited_steps: tuple[int, ...] = ()  # the same in all runs of a round; nobody can know them earlier
            audited = options.verify != "never"
            if in_round and not in_round[0].rate_search and audited:
                experiment, number = Experiment.make(in_round[0].config), in_round[0].round
                audited_steps = choose_audited_steps(experiment, number, random.SystemRandom())
            programs, before = [], len(self.runs)
            for job in in_round:
                run_dir = self.folder.absolute() / job.path
                self._jobs[run_dir] = job
                more = {"is_reference": job.contender == contenders(options)[0], "audited_steps": audited_steps}
                config = job.config.replace(run_dir=run_dir)
                programs.append(Program.of(self.request, job.implementation, config, **more))
            if options.turns == "auto" and len(programs) > 1 and not any(program.starter for program in programs):
                run_in_turns(programs, options.timeout, follower)
            else:
                run_programs(programs, options.timeout, follower)
            if in_round:
                so_far = Comparison(self.folder, self.request, self.runs, len(self.missing))
                write_tables(so_far)
                if self.missing and not (in_round[0].rate_search or options.sweep):
                    self.view.show(tables_so_far(self.view.console, so_far))
            # After the table, which need not wait for the audits: the next one says what they have found.
            if audited_steps:
                self._audit([run for run in self.runs[before:] if run.result], in_round[0].config, audited_steps)

    def make_further(self, variants: Sequence[Variant]) -> None:
        """Makes further rounds by the rules of `rounds.py`."""
        made: list[Job] = []
        while again := self._next_rounds(variants):
            if again == made:  # no progress: the same runs are still missing
                return
            new = [job for job in again if job.path not in {missing.path for missing in self.missing}]
            self.missing += new
            self.view.more(len(new))
            rounds = len({(job.variant, job.seed, job.round) for job in again})
            within = self.request.options.ratio_within
            why = "other programs kept the machine busy"
            if within is not None and not any(map(is_round_disturbed, self.runs)):
                why = f"not all intervals are within {within:.3g} of the ratio"
            self.view.say(f"{why}: making {rounds} more round{'s' if rounds > 1 else ''}")
            self.make(again)
            made = again

    def _next_rounds(self, variants: Sequence[Variant]) -> list[Job]:
        ended = {run.shown_dir(self.folder): run for run in self.runs}
        return further_rounds(self.request.options, variants, lambda job: ended.get(str(job.path)))[1]

    def _started(self, program: Program) -> None:
        if program.run_dir not in self._jobs:  # the first row once more, for a further group of the round
            self._jobs[program.run_dir] = self._jobs[program.run_dir.with_suffix("")]
            self.view.more(1)
        job = self._jobs[program.run_dir]
        self.missing = [missing for missing in self.missing if missing.path != job.path]
        self.view.start(job)

    def _see(self, program: Program, line: MetricsLine) -> None:
        job = self._jobs[program.run_dir]
        if isinstance(line, PlanLine):
            check_name(line.implementation, job.implementation)
        self.view.see(job, line)
        if isinstance(line, TurnLine) and not quiet([line]):
            self._disturbed.append(line.other_load or 0.0)
            if len(self._disturbed) == SURE_TURNS:  # while there is still time to end the other programs
                load = statistics.median(self._disturbed)
                self.view.say(
                    f"other programs use {load:{SHARE}} of the cores; turns and rounds that they disturb are left out"
                    f" unless all are disturbed; {QUIET_ADVICE}"
                )

    def audit_interrupted(self) -> None:
        """Audits the runs that had ended when the comparison was interrupted, but were not audited yet."""
        for run in self.runs:
            if run.result and (run.run_dir / STATES_DIR).exists() and not read_audits(run.run_dir):
                self._audit([run], run.result.config)

    def _audit(self, runs: Sequence[Run], config: TrainConfig, steps: Sequence[int] | None = None) -> None:
        """Audits these steps of runs with such options; None: all that they have kept."""
        began, titles = time.monotonic(), {run.run_dir: run.record.title for run in runs}

        def tell(run_dir: Path, number: int, count: int) -> None:
            self.view.audit(titles[run_dir], number, count)

        for run_dir, why in make_audits_side_by_side(titles, config, steps, tell).items():
            self.view.say(f"{titles[run_dir]}: its steps can't be audited: {why}")
        self.view.end_audits(time.monotonic() - began)

    def _ended(self, program: Program, ended: RunEnd) -> None:
        job = self._jobs[program.run_dir]
        run = store_run(job, program, ended)
        self.runs.append(run)
        self.view.end(job, run)
