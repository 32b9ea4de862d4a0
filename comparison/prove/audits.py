"""Audits: single steps of the timed runs, held against the same steps in plain NumPy, in 64 bits (`reference.py`).

A step is a function of the state before it, its batch and the seed. The recorder keeps the states before and after some
steps of each timed run (`common/record/audited_states.py`). NumPy takes the same steps from the state before. The state
after must be the same, but for what the rounding of these steps explains. Nothing grows over steps, so a training
that amplifies rounding can't be taken for another one.

How much rounding explains is estimated by taking the step several times with random errors in all sums and products, of
the size of the run's number format, as TTrace does (arXiv 2506.09280). A ReLU unit or a maximum near a tie turns a
rounding error into a jump; the random errors do the same.
"""

import math
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import psutil
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.files import Arrays, Count, Natural, Text, read_arrays, read_metadata, read_model, write_model
from common.record.audited_states import AUDITED, STATES_DIR, kept_steps, state_path
from common.record.checkpoints import read_state, with_checkpoint
from common.record.predictions import Predictions
from common.record.results import WEIGHTS_FILE, RunResult, read_result, read_step_losses
from common.spec.optimizers import SGD
from common.spec.options import Precision, TrainConfig
from common.spec.state import ScaleState, TrainState
from common.spec.update_rule import LossScaling
from comparison.lockstep import ROUNDOFF, roundoff
from comparison.prove.reference import evaluate, take_step

AUDITS_FILE = "audits.json"
MOST_STEPS, LEAST_STEPS = 7, 2  # audited steps of a run
MOST_FLOPS = 4e10  # of all audits of a run, if LEAST_STEPS need less: about two seconds on two cores
BYTES = 24  # of memory for each output of a layer: the output itself, what was multiplied, and their errors
PASSES = 9  # cost of an audit in forward passes: two recomputations, one of which also computes its errors

# Size of the random errors, in units of roundoff. Frameworks add numbers in other orders, with other algorithms. In 64
# and 32 bits there is room for generous errors: a mistake is still a thousand times larger.
ERRORS: dict[Precision, float] = {"64": 16, "32": 16, "16-mixed": 2, "bf16-mixed": 1}
# How often the step is taken with errors, if the first time does not explain the differences; less for large networks.
MOST_SAMPLES, LEAST_SAMPLES = 12, 6
MARGIN = 2.0  # times the largest difference that the samples have shown
PROVABLE = 0.3  # of the change in the step: where rounding explains more, a difference proves nothing


class Audit(BaseModel):
    """Of one step; of the steps of one call, where a call takes several and can't be shorter; or of the evaluation.

    Attributes:
      same: whether rounding explains the differences; None if that is not known.
      difference: the largest one beyond rounding or, without one, the largest: of an array of the state, as a share of
        the change of this array.
      explained: the share of what the step changes that rounding explains.
      note: what differs, or why nothing is proved; None if it is the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_step: Count
    last_step: Count
    same: bool | None
    difference: float = Field(ge=0, allow_inf_nan=False)
    explained: float = Field(ge=0, allow_inf_nan=False)
    note: Text | None = None

    @classmethod
    def unproved(cls, step: int, why: str) -> Self:
        return cls(first_step=step, last_step=step, same=None, difference=0, explained=0, note=why)

    @property
    def what(self) -> str:
        """`step 23`, or `steps 21 to 30`."""
        if self.first_step == self.last_step:
            return f"step {self.first_step}"
        return f"steps {self.first_step} to {self.last_step}"


class Audits(BaseModel):
    """`audits.json` of a run.

    Attributes:
      evaluation: of the last one, and of the predictions; after the last step. None if no state was kept.
      state_bytes: size of one state on the disk.
      seconds: that the audits have taken.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    steps: list[Audit]
    evaluation: Audit | None
    state_bytes: Natural
    seconds: float = Field(ge=0, allow_inf_nan=False)

    def proves(self, steps: int) -> bool:
        """Whether each of the first `steps` steps is proved, and the last evaluation."""
        proved = {
            number for audit in self.steps if audit.same for number in range(audit.first_step, audit.last_step + 1)
        }
        evaluated = self.evaluation is not None and self.evaluation.same is True
        return evaluated and proved >= set(range(1, steps + 1))

    @property
    def different(self) -> list[Audit]:
        """Those that have found a difference, in the order of the steps."""
        audits = [*self.steps, *([self.evaluation] if self.evaluation else [])]
        return [audit for audit in audits if audit.same is False]


# --- Which steps ---


def choose_steps(experiment: Experiment, chance: random.Random) -> tuple[int, ...]:
    """The steps to be audited, the same for all runs of a round.

    They are the first step and the last one; the last one of an epoch, whose batch may be smaller, and the first one of
    the next; a step in which the learning rate changes, and one after a checkpoint; and others at random.
    """
    plan, config = experiment.plan, experiment.config
    steps = range(plan.first_step, plan.total_steps + 1)
    flops = PASSES * experiment.network.flops_per_image * plan.examples_per_step
    number = min(MOST_STEPS, max(LEAST_STEPS, int(MOST_FLOPS // flops)), len(steps))
    ends = [plan.last_step(epoch) for epoch in range(plan.epochs_done + 1, plan.num_epochs)]
    end = chance.choice(ends) if ends else steps[-1]
    rates = experiment.update_rule.learning_rates
    changed = [step for step in steps[1:] if rates[step - 1] != rates[step - 2]]
    every = plan.steps_per_epoch if config.checkpoint_every == "epoch" else config.checkpoint_every
    saved = [step for step in steps if every is not None and step > every and (step - 1) % every == 0]
    wanted = [
        steps[-1],
        steps[0],
        end,
        end + 1,
        *chance.sample(changed, min(1, len(changed))),
        *chance.sample(saved, min(1, len(saved))),
        *chance.sample(steps, min(number, len(steps))),
    ]
    return tuple(sorted([step for step in dict.fromkeys(wanted) if step in steps][:number]))


MOST_BYTES = 2**28  # of the states of a run in 64 bits


def steps_that_fit(config: TrainConfig) -> tuple[int, ...]:
    """The first steps of a run of these options, all of them if their states are not too large."""
    experiment = Experiment.make(config)
    state = 8 * experiment.network.num_parameters * (2 + len(experiment.update_rule.rule.slots))
    return tuple(range(1, 1 + max(1, min(experiment.plan.total_steps, MOST_BYTES // state - 1))))


# --- The audits of a run ---


def make_audits(run_dir: Path, asked: Sequence[int]) -> Audits:
    """Audits what a run that has ended has kept, and stores the result in its folder.

    The states are deleted, unless a difference is found.

    Args:
      asked: the steps that were to be audited.

    Raises:
      UserError: a file of the run can't be read.
    """
    begun = time.monotonic()
    result, losses = read_result(run_dir), read_step_losses(run_dir)
    experiment = with_checkpoint(Experiment.make(result.config))
    steps: list[Audit] = []
    for first, last in _spans(run_dir):
        found = any(audit.same is False for audit in steps)
        try:
            before, after = (_state(experiment, run_dir, step) for step in (first - 1, last))
        except UserError as error:  # such as a weight that is not finite
            steps.append(Audit.unproved(last, str(error)))
            continue
        if (needed := BYTES * _outputs(experiment)) > psutil.virtual_memory().available:
            steps.append(Audit.unproved(last, f"it would need {needed / 2**30:.0f} GiB of memory"))
        else:
            steps.append(_audit_step(experiment, before, after, losses, thorough=not found))
    for step in asked:
        if not any(audit.first_step <= step <= audit.last_step for audit in steps):
            steps.append(Audit.unproved(step, "the states before and after it were not kept"))
    evaluation = _audit_evaluation(experiment, run_dir, result) if kept_steps(run_dir) else None
    folder = run_dir / STATES_DIR
    size = max((path.stat().st_size for path in folder.glob("*")), default=0)
    audits = Audits(steps=steps, evaluation=evaluation, state_bytes=size, seconds=time.monotonic() - begun)
    write_model(run_dir / AUDITS_FILE, audits)
    if not audits.different:
        shutil.rmtree(folder, ignore_errors=True)
    return audits


def read_audits(run_dir: Path) -> Audits | None:
    """The audits of a run; None if there are none. Raises UserError if they can't be read."""
    path = run_dir / AUDITS_FILE
    return read_model(Audits, path) if path.exists() else None


def _outputs(experiment: Experiment) -> int:
    """The number of outputs of all layers for the examples of a step."""
    return sum(map(math.prod, experiment.network.activations.values())) * experiment.plan.examples_per_step


def _spans(run_dir: Path) -> Iterator[tuple[int, int]]:
    """The first and the last step of each audited call, which mostly takes a single step."""
    for step in kept_steps(run_dir):
        path = state_path(run_dir, step)
        text = read_metadata(path).get(AUDITED, "")
        if not text.isdecimal() or int(text) > step:
            raise UserError(f"{path}: {AUDITED} is {text!a}, should be a number from 0 to {step}")
        if int(text):
            yield step - int(text) + 1, step


def _state(experiment: Experiment, run_dir: Path, step: int) -> TrainState:
    if step == experiment.plan.first_step - 1:
        return first_state(experiment)
    path = state_path(run_dir, step)
    state = read_state(experiment, path)
    if state.step != step:
        raise UserError(f"{path}: is of step {state.step}")
    return state


def first_state(experiment: Experiment) -> TrainState:
    """The state with which a run of the experiment starts."""
    if experiment.state:
        return experiment.state
    kind = np.float64 if experiment.config.precision == "64" else np.float32
    weights = {name: array.astype(kind) for name, array in experiment.initial_weights.items()}
    trained = (parameter for parameter in experiment.network.parameters if parameter.trainable)
    zeros = {parameter.name: np.zeros(parameter.shape, kind) for parameter in trained}
    rule = experiment.update_rule
    scale = ScaleState(LossScaling().initial, 0, 0) if experiment.config.precision == "16-mixed" else None
    return TrainState(0, weights, dict.fromkeys(rule.rule.slots, zeros), zeros if rule.ema_decay else {}, scale)


# --- Differences, and what rounding explains ---


@dataclass(frozen=True)
class Difference:
    """Of one array, or of the loss, from what the reference says; all are norms.

    Attributes:
      size: of the difference.
      explained: the largest that rounding explains.
      change: of what the step changes in the array, by the reference; of the whole number for a loss.
    """

    name: str
    size: float
    explained: float
    change: float

    @property
    def is_beyond(self) -> bool:
        return not self.size <= self.explained

    @property
    def share(self) -> float:
        """The difference as a share of the change; of the rounding, where nothing was to change."""
        return min(1e9, self.size / (self.change or self.explained or 1.0))


def _errors(config: TrainConfig) -> float:
    """The size of the random errors, relative."""
    assert config.precision != "auto"
    return ERRORS[config.precision] * roundoff(config)


def _norm(array: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(array.ravel()))


def _compare(
    reference: Callable[[float, int], Arrays],
    wanted: Arrays,
    actual: Arrays,
    old: Arrays,
    config: TrainConfig,
    more: int,
    stored: float,
) -> list[Difference]:
    """The differences of each array from the reference, with what rounding explains.

    Args:
      reference: from the size of the random errors and the seed of their random numbers to the arrays.
      wanted: the arrays without errors.
      old: the arrays before the step; what is not in it was zero.
      more: how often the reference is computed with errors at most, until they explain the differences.
      stored: unit roundoff of the actual arrays.
    """
    spread = {name: stored * _norm(array) for name, array in wanted.items()}
    differences: list[Difference] = []
    for seed in range(more):
        rounded = reference(_errors(config), seed)
        spread = {name: max(most, _norm(rounded[name] - wanted[name])) for name, most in spread.items()}
        differences = [
            Difference(
                name,
                _norm(actual[name] - array),
                MARGIN * spread[name],
                _norm(array - old.get(name, np.zeros_like(array))),
            )
            for name, array in wanted.items()
        ]
        if not any(difference.is_beyond for difference in differences):
            break
    return differences


def _audit_step(
    experiment: Experiment, before: TrainState, after: TrainState, losses: Sequence[float], thorough: bool
) -> Audit:
    """Compares the state after a step, or after the steps of a call, with that of the reference.

    Args:
      losses: of all steps of the run, as it has recorded them.
      thorough: whether a difference is tried with more errors, and its cause is looked for.
    """
    span = {"first_step": before.step + 1, "last_step": after.step}
    if before.scale and after.scale and (fault := _scaling_fault(before, after)):
        return Audit(**span, same=fault[0], difference=0, explained=0, note=fault[1])
    old, actual = _numbers(before), _numbers(after) | {"loss": np.array(losses[before.step : after.step])}
    flops = PASSES * experiment.network.flops_per_image * experiment.plan.images(before.step + 1, after.step)
    more = max(LEAST_SAMPLES, min(MOST_SAMPLES, int(10 * MOST_FLOPS // flops))) if thorough else 1

    def reference(roundoff: float, seed: int) -> Arrays:
        return _reference(experiment, before, after.step, roundoff=roundoff, seed=seed)

    stored = ROUNDOFF["64" if experiment.config.precision == "64" else "32"]
    wanted = reference(0.0, 0)
    differences = _compare(reference, wanted, actual, old, experiment.config, more, stored)
    explained = _explained(differences, _trained(experiment))
    beyond = [difference for difference in differences if difference.is_beyond]
    worst = max(beyond or differences, key=lambda difference: difference.share)
    if beyond and thorough:
        same, note = False, _describe(experiment, before, after, differences, wanted, actual)
    elif beyond:
        same, note = None, "differs, like one before it"
    elif explained > PROVABLE:
        same, note = None, f"rounding explains {explained:.0%} of what it changes"
    else:
        same, note = True, None
    return Audit(**span, same=same, difference=worst.share, explained=explained, note=note)


def _trained(experiment: Experiment) -> set[str]:
    return {parameter.name for parameter in experiment.network.parameters if parameter.trainable}


def _numbers(state: TrainState) -> Arrays:
    """float64: `weights.NAME`, `slots.SLOT.NAME` and `average.NAME`."""
    arrays = state.to_arrays()
    return {name: array.astype(np.float64) for name, array in arrays.items() if name not in ("step", "scale")}


def _reference(experiment: Experiment, state: TrainState, until: int, **more: Any) -> Arrays:
    """The numbers of the state after step `until`, and `loss`: those of the steps from `state` to there.

    Args:
      more: see `take_step`.
    """
    losses = []
    while state.step < until:
        loss, state = take_step(experiment, state, **more)
        losses.append(loss)
    return _numbers(state) | {"loss": np.array(losses)}


def _explained(differences: Sequence[Difference], trained: set[str]) -> float:
    """The share of the step's change that rounding explains: of the weights or of a slot, whichever shows most.

    Args:
      trained: names of the trained parameters; running statistics don't show whether weights are right.
    """
    shares = []
    for kind in {difference.name.partition(name)[0] for difference in differences for name in trained}:
        of_kind = [difference for difference in differences if difference.name.removeprefix(kind) in trained]
        change = _norm(np.array([difference.change for difference in of_kind]))
        if change:
            shares.append(_norm(np.array([difference.explained for difference in of_kind])) / change)
    return min(shares, default=0.0)


def _scaling_fault(before: TrainState, after: TrainState) -> tuple[bool | None, str] | None:
    """What is wrong with a skipped step, or with the scale after a step; None if nothing is, and the step was taken."""
    assert before.scale and after.scale
    rule, skipped = LossScaling(), after.scale.skipped - before.scale.skipped
    if after.step > before.step + 1:
        return (None, "loss scaling skipped some of them") if skipped else None
    good = before.scale.good_steps + 1
    expected = ScaleState(before.scale.scale, good, before.scale.skipped)
    if skipped:
        expected = ScaleState(before.scale.scale * rule.backoff, 0, before.scale.skipped + 1)
    elif good == rule.growth_interval:
        expected = ScaleState(before.scale.scale * rule.growth, 0, before.scale.skipped)
    if after.scale != expected:
        return False, f"the scale of the loss is {after.scale.scale:g} after it, and should be {expected.scale:g}"
    if not skipped:
        return None
    old, new = before.to_arrays(), after.to_arrays()
    changed = [
        name for name, array in new.items() if name.startswith("slots.") and not np.array_equal(array, old[name])
    ]
    return (
        (False, f"loss scaling skipped it, but {changed[0]} has changed")
        if changed
        else (None, "loss scaling skipped it")
    )


# --- What may be wrong ---


def _describe(
    experiment: Experiment,
    before: TrainState,
    after: TrainState,
    differences: Sequence[Difference],
    wanted: Arrays,
    actual: Arrays,
) -> str:
    """What differs, in one line, and the cause, if one of the usual mistakes explains it."""
    beyond = {difference.name: difference for difference in differences if difference.is_beyond}
    worst = max(beyond.values(), key=lambda difference: difference.share)
    old = _numbers(before)
    words = (
        f"{worst.name} differs by {worst.share:.2g} times its change, and rounding explains"
        f" {worst.explained / (worst.change or 1.0):.1g}"
    )
    if all(np.array_equal(actual[name], old[name]) for name in old if name.startswith(("weights.", "slots."))):
        return "nothing has changed: no update was made"
    if "loss" in beyond:
        words = f"the loss is {float(actual['loss'][-1]):.6g}, and should be {float(wanted['loss'][-1]):.6g}"
    explained = {difference.name: difference.explained for difference in differences}
    for mistake, change in _mistakes(experiment, before):
        changed = {"experiment": experiment, "state": before, **change}
        if all(
            _norm(actual[name] - array) <= explained[name]
            for name, array in _reference(until=after.step, **changed).items()
        ):
            return f"{words}: {mistake}"
    if "loss" in beyond and experiment.config.precision in ("32", "64"):
        half = ROUNDOFF["bf16-mixed"]
        coarse = [_reference(experiment, before, after.step, roundoff=half, seed=seed) for seed in (0, 1)]
        if all(
            _norm(actual[name] - array) <= MARGIN * max(_norm(other[name] - array) for other in coarse)
            for name, array in wanted.items()
        ):
            return (
                f"{words}, no more than rounding to 16 bits would make: suspect the network or its precision (TF32, a"
                " layer in 16 bits), or a small constant in the loss or a layer"
            )
    return f"{words}; {_suspicion(experiment, beyond, old, wanted, actual)}"


def _mistakes(experiment: Experiment, before: TrainState) -> Iterator[tuple[str, dict[str, Any]]]:
    """Usual mistakes that may explain a wrong step, and what they change in the arguments of `_reference`."""
    rule, config, plan = experiment.update_rule, experiment.config, experiment.plan
    zero = {
        slot: {name: np.zeros_like(array) for name, array in values.items()} for slot, values in before.slots.items()
    }

    def with_rule(**changes: Any) -> dict[str, Any]:
        return {"experiment": replace(experiment, update_rule=replace(rule, **changes))}

    yield "as if the optimizer's state had been lost before it", {"state": replace(before, slots=zero)}
    for other in (before.step, before.step + 2):
        if 1 <= other <= len(rule.learning_rates):
            rates = rule.learning_rates.copy()
            rates[before.step] = rates[other - 1]
            yield f"its learning rate is that of step {other}", with_rule(learning_rates=rates)
    if rule.rule.weight_decay:
        yield "the weight decay is missing", with_rule(rule=replace(rule.rule, weight_decay=0.0))
    if rule.largest_norm is not None:
        yield "the clipping of the gradients is missing", with_rule(largest_norm=None)
    if isinstance(rule.rule, SGD) and rule.rule.momentum:
        yield "Nesterov's rule is wrong", with_rule(rule=replace(rule.rule, nesterov=not rule.rule.nesterov))
    if config.label_smoothing:
        plain = replace(experiment, config=config.replace(label_smoothing=0.0))
        yield "the smoothing of the labels is missing", {"experiment": plain}
    if experiment.augmentation:
        yield "the augmentation is missing", {"experiment": replace(experiment, augmentation=None)}
    if experiment.network.drops:
        yield "the dropout is missing", {"drops": False}
    for epoch in dict.fromkeys((1, 2, plan.epoch_of(before.step + 1) - 1)):
        if 1 <= epoch != plan.epoch_of(before.step + 1):
            yield f"its examples are those of epoch {epoch}", {"epoch": epoch}
    for shard in range(config.num_shards if config.num_shards > 1 else 0):
        yield f"it has learned from the examples of device {shard} alone", {"only_shard": shard}


def _suspicion(
    experiment: Experiment, beyond: Mapping[str, Difference], old: Arrays, wanted: Arrays, actual: Arrays
) -> str:
    """Where to look, from which arrays differ."""
    several = experiment.config.num_shards > 1
    if "loss" in beyond:
        more = ", replicas whose weights differ" if several else ""
        return f"suspect the examples of the batch, what is drawn for them, the network or its precision{more}"
    if all(name.startswith("average.") for name in beyond):
        return "suspect the moving average of the weights"
    if all(name.startswith("weights.") and name.endswith((".mean", ".variance")) for name in beyond):
        return "suspect the running statistics of batch normalisation"
    has_slots = any(name.startswith("slots.") for name in wanted)
    if has_slots and not any(name.startswith("slots.") for name in beyond):
        factor, is_rate = _factor(old, wanted, actual)
        if is_rate:
            return f"the weights change {factor:.4g} times as much as they should: suspect the learning rate"
        return "the slots are right: suspect how the update rule makes the weights from them"
    start = "slots." if has_slots else "weights."
    names = [name for name in wanted if name.startswith(start) and not name.endswith((".mean", ".variance"))]
    wrong = [name for name in names if name in beyond]
    if wrong and len(wrong) <= len(names) / 2:
        parameters = [name.split(".", 2 if has_slots else 1)[-1] for name in wrong]
        layers = {name.rpartition(".")[0] for name in parameters}
        return f"suspect the gradients of {', '.join(sorted(layers))}"
    over = ", summed over all devices" if several else ""
    return f"suspect the gradients (are they of all examples of the batch{over}?) or the update rule"


def _factor(old: Arrays, wanted: Arrays, actual: Arrays) -> tuple[float, bool]:
    """How many times as much as they should the weights have changed, by least squares; whether that is all."""
    names = [name for name in wanted if name.startswith("weights.")]
    change = np.concatenate([np.ravel(wanted[name] - old[name]) for name in names])
    found = np.concatenate([np.ravel(actual[name] - old[name]) for name in names])
    factor = float(change @ found / max(change @ change, 1e-300))
    return factor, _norm(found - factor * change) <= 0.1 * _norm(found - change)


# --- The evaluation ---

EVALUATED_FLOPS = 1e10  # of the audit of an evaluation: with more, only the first test images are classified


def _audit_evaluation(experiment: Experiment, run_dir: Path, result: RunResult) -> Audit:
    """Compares the last evaluation and the predictions with what the reference makes of the run's final weights."""
    whole = len(experiment.dataset.test_images)
    count = min(whole, max(1, int(EVALUATED_FLOPS // experiment.network.flops_per_image)))
    weights = read_arrays(run_dir / WEIGHTS_FILE)

    def reference(roundoff: float, seed: int) -> Arrays:
        scores, loss = evaluate(experiment, weights, count, roundoff, seed)
        return {"scores": scores, **({"loss": np.array([loss])} if count == whole else {})}

    predictions = Predictions.read(run_dir)
    actual = {"scores": predictions.scores[:count].astype(np.float64), "loss": np.array([result.test_loss])}
    wanted = reference(0.0, 0)
    differences = _compare(reference, wanted, actual, {}, experiment.config, MOST_SAMPLES, ROUNDOFF["32"])
    worst = max(differences, key=lambda difference: difference.size / max(difference.explained, 1e-300))
    note = None
    if worst.is_beyond:
        what = (
            f"the test loss is {result.test_loss:.6g}, and should be {float(wanted['loss'][0]):.6g}"
            if worst.name == "loss"
            else "the predictions are not those of the weights"
        )
        suspects = ["how the test set is cut into batches", "the evaluation mode"]
        if experiment.network.normalises:
            suspects.append("the running statistics of batch normalisation")
        if experiment.network.drops:
            suspects.append("dropout")
        if experiment.update_rule.ema_decay is not None:
            suspects.append("the average of the weights")
        note = f"{what}: suspect {', '.join(suspects)}"
    return Audit(
        first_step=result.num_steps,
        last_step=result.num_steps,
        same=not worst.is_beyond,
        difference=worst.share,
        explained=worst.explained / (worst.change or 1.0),
        note=note,
    )
