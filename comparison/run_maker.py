"""Begins or continues a comparison, and makes its runs.

A run's record is written as soon as it has ended, the tables when its round has.
"""

import functools
import itertools
import math
import os
import random
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from common.data.datasets import data_spec, num_examples
from common.experiment import Experiment
from common.implementations import IMPLEMENTATIONS
from common.platform.cli import as_typed, option_name
from common.platform.errors import UserError
from common.record.audited_states import STATES_DIR
from common.record.loggers import check_loggers
from common.record.results import MetricsLine, PlanLine, TurnLine
from common.resolve import tutorial_obstacle
from common.spec.options import Mode, TrainConfig
from common.spec.own_network import NETWORK_FILES, copy_into, own_files, prepare_network, read_prepared
from comparison.measure.comparison import Comparison, further_rounds
from comparison.measure.rounds import is_round_disturbed
from comparison.numbers import SHARE
from comparison.plan.jobs import Job, Variant, contenders, make_variants
from comparison.plan.options import REPORT_WITH, RESUME_WITH, CompareConfig
from comparison.plan.request import Request, hold_folder, make_output_dir, take_request
from comparison.prove.audits import choose_audited_steps, make_audits, read_audits
from comparison.run.devices import same_devices
from comparison.run.load_meter import QUIET_ADVICE, quiet
from comparison.run.program import Program, RunEnd, now
from comparison.run.runner import Follower, run_programs
from comparison.run.store import Run, check_name, store_run
from comparison.run.turns import run_in_turns
from comparison.show.export import write_tables
from comparison.show.live import LiveView
from comparison.show.terminal import tables_so_far


def prepare_comparison(given: CompareConfig, console: Console) -> tuple[Path, Request]:
    """The folder of the comparison, and its request, which is stored there. Downloads data sets that are missing.

    Raises:
      UserError: something can't be run or read. This is found before any run is started.
    """
    command = shlex.join(["python", "compare.py", *sys.argv[1:]])
    given = given.with_absolute_paths(given.model_fields_set)
    if given.report_only:
        stored = take_request(given.report_only, "--report-only")
        options = given.applied_to(stored.options, given.report_only, REPORT_WITH)
        return given.report_only, stored.model_copy(update={"options": options})
    if given.resume:
        stored = take_request(given.resume, "--resume")
        options = given.applied_to(stored.options, given.resume, RESUME_WITH)
        _check(options, stored.config)
        request = stored.model_copy(update={"options": options, "commands": [*stored.commands, command]})
        request.write(given.resume)
        return given.resume, request
    given = given.with_absolute_paths(["data_dir"])
    if given.has_own_network:
        given = _with_own_network(given, console)
    config = given.train_config()
    _check(given, config)
    folder = make_output_dir(given)
    hold_folder(folder, "--output-dir")
    if given.has_own_network:
        data = data_spec(config)
        copy = copy_into(given.model, folder, data.image_shape, len(data.class_names))
        given, config = given.model_copy(update={"model": copy}), config.replace(model=copy)
    config, warnings = same_devices(config, given.interpreters(), given.timeout)
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    if not given.mode:
        given = given.with_mode(*default_modes(given, config, console))
        config = config.replace(mode=given.mode[0])
    request = Request(
        schema_version=2, created=now(), commands=[command], options=given, config=config, warnings=warnings
    )
    request.write(folder)
    return folder, request


def _with_own_network(given: CompareConfig, console: Console) -> CompareConfig:
    """The options with the implementations for which the user's folder has a file, unless they are given.

    Pairs the layers of its files, in some seconds. Raises UserError where one is another network than the first.
    """
    given.check_implementations()
    has = {path.stem for path in own_files(Path(given.model))}
    if "implementations" not in given.model_fields_set:
        names = [name for name in IMPLEMENTATIONS if IMPLEMENTATIONS[name].network_file in has]
        usual = [name for name in given.implementations if name in names]
        given = given.model_copy(update={"implementations": usual or names[:1]})
    files = (IMPLEMENTATIONS[name].network_file for name in given.implementations if name in IMPLEMENTATIONS)
    frameworks = list(dict.fromkeys(files))
    console.print(f"pairing the layers of {', '.join(NETWORK_FILES[name] for name in frameworks)} in {given.model}")
    data = data_spec(given.train_config())
    for seed in given.seeds:
        place = prepare_network(given.model, data.image_shape, len(data.class_names), frameworks, seed)
    if read_prepared(place).drops:
        console.print(
            f"note: {given.network_name} has dropout, for which each framework draws random numbers of its own: the"
            " proof runs without dropout",
            soft_wrap=True,
        )
    return given


def _check(options: CompareConfig, config: TrainConfig) -> None:
    """Raises UserError for an option that some run can't follow."""
    options.check_implementations()
    check_loggers(options.logger)
    options.interpreters()
    for variant in make_variants(options, config):
        nodes = variant.config.nodes
        if nodes > int(os.environ.get("SLURM_JOB_NUM_NODES", "1")):
            raise UserError(
                f"--num-nodes {nodes}: needs a Slurm job with so many nodes:"
                f" sbatch --nodes={nodes} launch/slurm/compare.slurm"
            )
        if nodes > 1 and variant.config.devices == "auto":
            raise UserError(f"--num-nodes {nodes}: needs --devices N, the number of devices of each node")
        experiment = Experiment.make(variant.config)
        for option in ("target_accuracy", "check_learning"):
            if (value := getattr(options, option)) and not experiment.network.scores_classes:
                why = f"--model {options.network_name} has other outputs than a score for each class"
                raise UserError(f"{option_name(option)} {as_typed(value)}: {why}")


def default_modes(options: CompareConfig, config: TrainConfig, console: Console) -> list[Mode]:
    """Tutorial and plain, or plain alone where the tutorials' programs can't run or would be another training."""
    for variant in make_variants(options, config):
        known = variant.config if variant.config.devices != "auto" else variant.config.replace(devices=1)
        shards, (examples, _) = known.num_shards, num_examples(known)
        obstacle = tutorial_obstacle(known)
        if not obstacle and examples % shards:
            obstacle = f"{shards} devices can't share {examples:,} training examples equally"
        if obstacle:
            console.print(f"note: only --mode plain: {obstacle}", soft_wrap=True)
            return ["plain"]
    return ["tutorial", "plain"]


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
        best = used[0] if used else max(rates, key=lambda rate: _merit(rates[rate], target_accuracy))
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
            for run in self.runs[before:]:
                if run.result and audited_steps:
                    self._audit(run, audited_steps)

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
                self._audit(run)

    def _audit(self, run: Run, steps: Sequence[int] | None = None) -> None:
        """Audits these steps of the run; None: all that it has kept."""
        began, title = time.monotonic(), run.record.title
        try:
            make_audits(run.run_dir, steps, tell=functools.partial(self.view.audit, title))
        except (UserError, MemoryError) as error:
            self.view.say(f"{title}: its steps can't be audited: {str(error) or 'too little memory'}")
        self.view.end_audits(time.monotonic() - began)

    def _ended(self, program: Program, ended: RunEnd) -> None:
        job = self._jobs[program.run_dir]
        run = store_run(job, program, ended)
        self.runs.append(run)
        self.view.end(job, run)
