"""Audits: single steps of the timed runs, held against the same steps in plain NumPy, in 64 bits (`reference.py`).

Of a network of the user's, another framework computes the forward and backward passes (`recomputed.py`).

A step is a function of the state before it, its batch and the seed. The recorder keeps the states before and after some
steps of each timed run (`common/record/audited_states.py`). NumPy takes the same steps from the state before. The state
after must be the same, but for what the rounding of these steps explains. Nothing grows over steps, so a training
that amplifies rounding can't be taken for another one.

How much that is: see `differences.py`. What may be wrong: see `causes.py`.
"""

import math
import random
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np
import psutil
from pydantic import BaseModel, Field
from threadpoolctl import threadpool_limits

from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.files import (
    Arrays,
    Count,
    read_json_model,
    read_safetensors,
    read_safetensors_metadata,
    write_json_model,
)
from common.platform.machine import num_cores
from common.record.audited_states import AUDITED_KEY, STATES_DIR, audited_state_path, audited_state_steps
from common.record.checkpoints import read_checkpoint_state, with_checkpoint
from common.record.predictions import Predictions
from common.record.results import WEIGHTS_FILE, EpochLine, read_metrics, read_result, read_step_losses
from common.spec.batches import Plan
from common.spec.options import TrainConfig
from common.spec.state import ScaleState, TrainState
from common.spec.update_rule import LossScaling
from comparison.lockstep import ROUNDOFF, number_format_of, suspects_of_evaluation
from comparison.prove.causes import cause_of_step
from comparison.prove.differences import Difference, compare, compute_steps, finish_steps, state_arrays
from comparison.prove.recomputed import RecomputedNetwork
from comparison.prove.reference import evaluate

AUDITS_FILE = "audits.json"
MOST_STEPS = 7  # audited steps of a run
MOST_BYTES = 2**28  # of the states of a run in 64 bits
# Most operations of a run's audited steps: ten seconds of them; in a short run a tenth of its time, which is some for
# its start and a share of what it computes.
MOST_FLOPS, START_FLOPS, TRAINING_SHARE = 1.5e11, 1e10, 0.03
# Of memory for each output of a layer: itself, what was multiplied, their errors; a kernel's nine inputs.
BYTES_PER_OUTPUT = 96
PASSES_PER_AUDIT = 9  # cost of an audit in forward passes: two recomputations, one of which also computes its errors

# How often the step is taken with errors, if the first time does not explain the differences; less for large networks.
MOST_SAMPLES, LEAST_SAMPLES = 12, 6
PROVABLE_SHARE = 0.3  # of the change in the step: where rounding explains more, a difference proves nothing


class Audit(BaseModel, frozen=True, extra="forbid"):
    """Of one step; of the steps of one call, where a call takes several and can't be shorter; or of an evaluation.

    Attributes:
      of_evaluation: whether it is of the evaluation after its only step.
      same: whether rounding explains the differences; None if that is not known.
      difference: the largest one beyond rounding or, without one, the largest: of an array of the state, as a share of
        the change of this array.
      explained: the share of what the step changes that rounding explains.
      note: what differs, or why nothing is proved; None if it is the same.
    """

    first_step: Count
    last_step: Count
    of_evaluation: bool = False
    same: bool | None
    difference: float = Field(0.0, ge=0, allow_inf_nan=False)
    explained: float = Field(0.0, ge=0, allow_inf_nan=False)
    note: str | None = None

    @classmethod
    def unproved(cls, step: int, why: str, of_evaluation: bool = False) -> Self:
        return cls(first_step=step, last_step=step, of_evaluation=of_evaluation, same=None, note=why)

    @property
    def what(self) -> str:
        """`step 23`, `steps 21 to 30` or `evaluation after step 138`."""
        if self.of_evaluation:
            return f"evaluation after step {self.last_step}"
        if self.first_step == self.last_step:
            return f"step {self.first_step}"
        return f"steps {self.first_step} to {self.last_step}"


class Audits(BaseModel, frozen=True, extra="forbid"):
    """`audits.json` of a run.

    Attributes:
      evaluations: those after which a state was kept. The last one is that of the run's final weights, and of the
        predictions, too. Empty if no state was kept.
    """

    schema_version: Literal[3] = 3
    steps: list[Audit]
    evaluations: list[Audit]

    def proves(self, steps: int) -> bool:
        """Whether each of the first `steps` steps is proved, and the last evaluation."""
        right = [range(audit.first_step, audit.last_step + 1) for audit in self.steps if audit.same]
        evaluated = bool(self.evaluations) and all(audit.same for audit in self.evaluations)
        return evaluated and {*chain(*right)} >= {*range(1, steps + 1)}

    @property
    def different(self) -> list[Audit]:
        """Those that have found a difference, in the order of the steps."""
        return [audit for audit in (*self.steps, *self.evaluations) if audit.same is False]


# --- Which steps ---


def choose_audited_steps(experiment: Experiment, round_number: int, chance: random.Random) -> tuple[int, ...]:
    """The steps to be audited, the same for all runs of a round.

    They are the first step and the last one, or one of the two by chance if a run has time for a single audit; the last
    one of an epoch, whose batch may be smaller, and the first one of the next; a step in which the learning rate
    changes, and one after a checkpoint; and others at random. Where a single audit takes longer than it may, there is
    one in the first round alone, of a step with the smallest batch. There are none if the network draws random numbers
    that nobody else knows.
    """
    if experiment.network.drops_by_itself:
        return ()
    plan, every = experiment.plan, experiment.config.checkpoint_every
    steps = range(plan.first_step, plan.total_steps + 1)
    flops = PASSES_PER_AUDIT * experiment.network.flops_per_image * plan.examples_per_step
    training = 3 * experiment.network.flops_per_image * plan.images(steps[0], steps[-1])
    fit = int(min(MOST_FLOPS, START_FLOPS + TRAINING_SHARE * training) // flops)
    if not fit and round_number > 1:
        return ()
    number = min(MOST_STEPS, max(1, fit), len(steps))
    ends = [plan.last_step(epoch) for epoch in range(plan.epochs_done + 1, plan.num_epochs)]
    end = chance.choice(ends or [steps[-1]])
    rates = experiment.update_rule.learning_rates
    changed = [step for step in steps[1:] if rates[step - 1] != rates[step - 2]]
    interval = plan.steps_per_epoch if every == "epoch" else every
    saved = [step for step in steps if interval and step > interval and (step - 1) % interval == 0]
    wanted = [
        *chance.sample((steps[0], steps[-1]), 2),
        *(end, end + 1),
        *chance.sample(changed, min(1, len(changed))),
        *chance.sample(saved, min(1, len(saved))),
        *chance.sample(steps, number),
    ]
    wanted = [step for step in dict.fromkeys(wanted) if step in steps]
    if not fit:
        wanted.sort(key=lambda step: plan.images(step, step))
    return tuple(sorted(wanted[:number]))


def audited_steps_around(plan: Plan, step: int) -> tuple[int, ...]:
    """The steps to be audited in a run that suddenly parts from another one at `step`.

    A mistake shows in the loss of the step in which it is made, or of the next one.
    """
    return tuple(range(max(plan.first_step, step - 2), min(plan.total_steps, step + 1) + 1))


def audited_steps_that_fit(config: TrainConfig) -> tuple[int, ...]:
    """The first steps of a run of these options, all of them if their states are not too large."""
    experiment = Experiment.make(config)
    state = 8 * experiment.network.num_parameters * (2 + len(experiment.update_rule.rule.slots))
    return tuple(range(1, 1 + max(1, min(experiment.plan.total_steps, MOST_BYTES // state - 1))))


# --- The audits of a run ---


def _memory_needed(experiment: Experiment) -> int:
    """Bytes, for the audit of a step."""
    outputs = sum(map(math.prod, experiment.network.activations.values())) * experiment.plan.examples_per_step
    return BYTES_PER_OUTPUT * outputs


def make_audits_side_by_side(
    run_dirs: Collection[Path],
    config: TrainConfig,
    asked: Collection[int] | None,
    tell: Callable[[Path, int, int], None] = lambda *_: None,
) -> dict[Path, str]:
    """Audits runs of the same network and batches, as many at once as there are cores and memory for.

    Args:
      config: the options of one of them.
      asked: the steps to audit; None: all whose states were kept.
      tell: called before each audit of a step with the run's folder, and the two numbers of `make_audits`.

    Returns:
      The folders of runs that could not be audited, and why.
    """
    try:
        experiment = Experiment.make(config)
    except UserError as error:  # its data are no longer there
        return dict.fromkeys(run_dirs, str(error))
    stopped, failures = threading.Event(), dict[Path, str]()
    at_once = 1  # of a network of the user's, whose outputs are not known; a single process computes them
    if not experiment.network.is_own:
        at_once = max(1, min(num_cores(), psutil.virtual_memory().available // _memory_needed(experiment)))

    def audit(run_dir: Path) -> None:
        def tell_of_step(number: int, count: int) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt
            tell(run_dir, number, count)

        try:
            make_audits(run_dir, asked, tell_of_step)
        except (UserError, MemoryError) as error:
            failures[run_dir] = str(error) or "too little memory"

    # The limit around all of them: each audit sets it too, and puts back the number that it has found.
    with threadpool_limits(1), ThreadPoolExecutor(at_once) as pool:
        try:
            list(pool.map(audit, run_dirs))
        finally:
            stopped.set()  # where Ctrl-C has ended the waiting: none begins another step
    return failures


def make_audits(run_dir: Path, asked: Collection[int] | None, tell: Callable[[int, int], None] | None = None) -> Audits:
    """Audits what a run that has ended has kept, and stores the result in its folder.

    The states are deleted, unless a difference is found.

    Args:
      asked: the steps to audit; None: all whose states were kept.
      tell: called before each audit of a step with its number, from 1, and how many there are.

    Raises:
      UserError: a file of the run can't be read.
    """
    result = read_result(run_dir)
    experiment = with_checkpoint(Experiment.make(result.config))
    if experiment.network.is_own:
        network = RecomputedNetwork.of(experiment.network, result.implementation)
        experiment = replace(experiment, network=network)
    with threadpool_limits(1):  # beside other load, several threads of BLAS wait for each other most of the time
        audits = Audits(
            steps=_audit_steps(experiment, run_dir, asked, tell),
            evaluations=_audit_evaluations(experiment, run_dir),
        )
    write_json_model(run_dir / AUDITS_FILE, audits)
    if not audits.different:
        shutil.rmtree(run_dir / STATES_DIR, ignore_errors=True)
    return audits


def _audit_steps(
    experiment: Experiment,
    run_dir: Path,
    asked: Collection[int] | None,
    tell: Callable[[int, int], None] | None,
) -> list[Audit]:
    losses, steps = read_step_losses(run_dir), list[Audit]()
    latest = first_state(experiment)
    needed = _memory_needed(experiment)
    calls = _audited_calls(run_dir, asked)
    for number, call in enumerate(calls, 1):
        if tell:
            tell(number, len(calls))
        try:
            before, after = (_state(experiment, run_dir, step) for step in (call[0] - 1, call[-1]))
        except UserError as error:  # such as a weight that is not finite
            steps.append(Audit.unproved(call[-1], str(error)))
            continue
        if latest.step < before.step and (fault := _scaling_fault(experiment, latest, before)) and fault.same is False:
            steps.append(fault)
        latest = after
        if needed > psutil.virtual_memory().available:
            steps.append(Audit.unproved(call[-1], f"it would need {needed / 2**30:.0f} GiB of memory"))
        else:
            found = any(audit.same is False for audit in steps)
            steps.append(_audit_step(experiment, before, after, losses, thorough=not found))
    for step in asked or ():
        if not any(audit.first_step <= step <= audit.last_step for audit in steps):
            steps.append(Audit.unproved(step, "the states before and after it were not kept"))
    return steps


def steps_around_skipped(run_dirs: Iterable[Path]) -> set[int]:
    """Of the steps whose states runs in float16 have kept: those that loss scaling skipped in any run, and the next."""
    steps: set[int] = set()
    for run_dir in run_dirs:
        with suppress(UserError):  # a state can't be read, which the run's audits say
            experiment = with_checkpoint(Experiment.make(read_result(run_dir).config))
            kept = (_state(experiment, run_dir, step) for step in audited_state_steps(run_dir))
            for before, after in pairwise(chain([first_state(experiment)], kept)):
                if before.scale and after.scale and after.scale.skipped > before.scale.skipped:
                    steps |= {*range(before.step + 1, after.step + 2)}
    return steps


def read_audits(run_dir: Path) -> Audits | None:
    """The audits of a run; None if they, or the run, were interrupted. A damaged file proves nothing, either."""
    try:
        return read_json_model(Audits, run_dir / AUDITS_FILE)
    except UserError:
        return None


def _audited_calls(run_dir: Path, asked: Collection[int] | None) -> list[range]:
    """The steps of each call to audit, which mostly takes a single step."""
    calls = []
    for step in audited_state_steps(run_dir):
        number = int(read_safetensors_metadata(audited_state_path(run_dir, step)).get(AUDITED_KEY, 0))
        call = range(step - number + 1, step + 1)
        if call and (asked is None or any(step in call for step in asked)):
            calls.append(call)
    return calls


def _state(experiment: Experiment, run_dir: Path, step: int) -> TrainState:
    if step == experiment.plan.first_step - 1:
        return first_state(experiment)
    return read_checkpoint_state(experiment, audited_state_path(run_dir, step))


def first_state(experiment: Experiment) -> TrainState:
    """The state with which a run of the experiment starts."""
    if experiment.state:
        return experiment.state
    kind = np.float64 if experiment.config.precision == "64" else np.float32
    weights = {name: array.astype(kind) for name, array in experiment.initial_weights.items()}
    zeros = {name: np.zeros_like(weights[name]) for name in experiment.network.trained}
    scale = ScaleState(LossScaling().initial, 0, 0) if experiment.config.precision == "16-mixed" else None
    return TrainState(0, weights, dict.fromkeys(experiment.update_rule.rule.slots, zeros), scale)


# --- A step ---


def _audit_step(
    experiment: Experiment, before: TrainState, after: TrainState, losses: Sequence[float], thorough: bool
) -> Audit:
    """Compares the state after a step, or after the steps of a call, with that of the reference.

    Args:
      losses: of all steps of the run, as it has recorded them.
      thorough: whether a difference is tried with more errors, and its cause is looked for.
    """
    if fault := _scaling_fault(experiment, before, after):
        return fault
    until = after.step
    old, actual = state_arrays(before), state_arrays(after) | {"loss": np.array(losses[before.step : until])}
    flops = PASSES_PER_AUDIT * experiment.network.flops_per_image * experiment.plan.images(before.step + 1, until)
    # Each step rounds its results when it computes them, and when it stores them. The update rule needs about ten
    # operations, each of which rounds, to compute a change from gradients and slots.
    rounding = ROUNDOFF["64" if number_format_of(experiment.config) == "64" else "32"] * (until - before.step)
    wanted, differences = compare(
        lambda roundoff, seed: compute_steps(experiment, before, until, roundoff=roundoff, seed=seed),
        lambda computed: finish_steps(experiment, before, until, computed),
        actual,
        old,
        experiment.config,
        most_samples=max(LEAST_SAMPLES, min(MOST_SAMPLES, int(10 * MOST_FLOPS // flops))) if thorough else 1,
        stored=2 * rounding,
        updated=10 * rounding,
    )
    explained = _explained(differences, experiment.network.trained)
    beyond = [difference for difference in differences if difference.is_beyond]
    worst = max(beyond or differences, key=lambda difference: difference.share)
    same: bool | None = True
    note: str | None = None
    if beyond and thorough:
        same, note = False, cause_of_step(experiment, before, until, differences, wanted, actual)
    elif beyond:
        same, note = None, "differs, like one before it"
    elif explained > PROVABLE_SHARE:
        same, note = None, f"rounding explains {explained:.0%} of what it changes"
    return Audit(
        first_step=before.step + 1,
        last_step=until,
        same=same,
        difference=worst.share,
        explained=explained,
        note=note,
    )


def _explained(differences: Sequence[Difference], trained: Sequence[str]) -> float:
    """The share of the step's change that rounding explains: of the weights or of a slot, whichever shows most.

    Args:
      trained: names of the trained parameters; running statistics don't show whether weights are right.
    """
    shares = []
    for kind in {difference.name.partition(name)[0] for difference in differences for name in trained}:
        of_kind = [difference for difference in differences if difference.name.removeprefix(kind) in trained]
        change = math.hypot(*(difference.change for difference in of_kind))
        if change:
            shares.append(math.hypot(*(difference.explained for difference in of_kind)) / change)
    return min(shares, default=0.0)


def _scaling_fault(experiment: Experiment, before: TrainState, after: TrainState) -> Audit | None:
    """What is wrong with a skipped step, or with the scale after steps; None if nothing is, and none was skipped."""
    if not before.scale or not after.scale:
        return None
    rule, steps, skipped = LossScaling(), after.step - before.step, after.scale.skipped - before.scale.skipped

    def fault(same: Literal[False] | None, note: str) -> Audit:
        return Audit(first_step=before.step + 1, last_step=after.step, same=same, note=note)

    if skipped and steps > 1:
        return fault(None, "loss scaling skipped some of them")
    if skipped:
        scale, good_steps = before.scale.scale * rule.backoff, 0
    else:
        growths, good_steps = divmod(before.scale.good_steps + steps, rule.growth_interval)
        scale = before.scale.scale * rule.growth**growths
    # Relative: PyTorch keeps the scale for one of several devices, in 32 bits.
    if not math.isclose(after.scale.scale, scale, rel_tol=1e-6) or after.scale.good_steps != good_steps:
        actual = f"{after.scale.scale:g}, for {after.scale.good_steps} steps"
        return fault(False, f"the scale of the loss is {actual}, and should be {scale:g}, for {good_steps} steps")
    if not skipped:
        return None
    old, new = before.to_arrays(), after.to_arrays()
    trained = {f"weights.{name}" for name in experiment.network.trained}
    kept = [name for name in new if name.startswith("slots.") or name in trained]
    changed = next((name for name in kept if not np.array_equal(new[name], old[name])), None)
    if changed:
        return fault(False, f"loss scaling skipped it, but {changed} has changed")
    return fault(None, "loss scaling skipped it")


# --- Evaluations ---

EVALUATED_FLOPS = 4e9  # of the audit of an evaluation: with more, only the first test images are classified


def _audit_evaluations(experiment: Experiment, run_dir: Path) -> list[Audit]:
    """Audits the last evaluation and, unless the test set is large, all after which a state was kept."""
    kept, plan, lines = audited_state_steps(run_dir), experiment.plan, read_metrics(run_dir, EpochLine)
    whole = len(experiment.dataset.test_images)
    count = min(whole, max(1, int(EVALUATED_FLOPS // experiment.network.flops_per_image)))
    audits = []
    for line in lines:
        step, is_last = plan.last_step(line.epoch), line is lines[-1]
        if kept and is_last or step in kept and count == whole:
            try:
                state = _state(experiment, run_dir, step) if step in kept else None
            except UserError as error:
                audits.append(Audit.unproved(step, str(error), of_evaluation=True))
                continue
            audits.append(_audit_evaluation(experiment, run_dir, line, state, count, is_last))
    return audits


def _audit_evaluation(
    experiment: Experiment, run_dir: Path, line: EpochLine, state: TrainState | None, count: int, is_last: bool
) -> Audit:
    """Compares the evaluation after an epoch with what the reference makes of the weights after it.

    Args:
      state: after the epoch; None if it was not kept, which only the last one may be: its weights are those of the run.
      count: number of test images that are classified. If it is not all, only the predictions are compared.
    """
    step, config = experiment.plan.last_step(line.epoch), experiment.config
    span = {"first_step": step, "last_step": step, "of_evaluation": True}
    weights = read_safetensors(run_dir / WEIGHTS_FILE) if is_last or state is None else state.weights
    wrong = [name for name, array in weights.items() if state and not np.array_equal(array, state.weights[name])]
    if wrong:
        words = f"{WEIGHTS_FILE} has other weights than those after the last step, in {wrong[0]}"
        return Audit(**span, same=False, difference=1, note=words)

    actual: Arrays = {}
    if is_last:
        actual["scores"] = Predictions.read(run_dir).scores[:count].astype(np.float64)
    if count == len(experiment.dataset.test_images):
        actual |= {"loss": np.array([line.test_loss]), "correct": np.array([line.test_correct])}

    def compute(roundoff: float, seed: int) -> Arrays:
        evaluation = evaluate(experiment, weights, count, roundoff, seed)
        return {name: evaluation[name] for name in actual}

    least = {"correct": 1.0}  # a single answer may be near a tie
    wanted, differences = compare(
        compute, dict, actual, {}, config, MOST_SAMPLES, stored=2 * ROUNDOFF["32"], least=least
    )
    worst = max(differences, key=lambda difference: difference.size / max(difference.explained, 1e-300))
    note: str | None = None
    if worst.is_beyond:
        words = "the predictions are not those of the weights"
        if worst.name == "correct":
            words = f"{line.test_correct} answers are correct, and should be {wanted['correct'][0]:.0f}"
        elif worst.name == "loss":
            words = f"the test loss is {line.test_loss:.6g}, and should be {wanted['loss'][0]:.6g}"
        note = f"{words}: suspect {suspects_of_evaluation(config)}"
    return Audit(
        **span,
        same=not worst.is_beyond,
        difference=worst.share,
        explained=worst.explained / (worst.change or 1.0),
        note=note,
    )
