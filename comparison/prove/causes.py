"""What is wrong with a step that an audit has found to be different, in one line for people.

The arrays that differ say where to look. Three usual mistakes are tried out: if one explains
all differences, it is named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from common.experiment import Experiment
from common.platform.files import Arrays
from common.spec.state import ScaleState, TrainState
from comparison.lockstep import suspects_in_use, suspects_of_update
from comparison.prove.differences import Difference, norm, reference_steps, state_arrays

MOST_EPOCHS = 10  # before that of a wrong step, whose examples may be taken for its own


def cause_of_step(
    experiment: Experiment,
    before: TrainState,
    until: int,
    differences: Sequence[Difference],
    wanted: Arrays,
    actual: Arrays,
) -> str:
    """What differs in the steps from `before` to step `until`, and the mistake or the parts to suspect.

    Args:
      differences: of all arrays; some are beyond rounding.
      wanted, actual: the arrays after the steps: `state_arrays`, and `loss`.
    """
    config, plan = experiment.config, experiment.plan
    beyond = {difference.name: difference for difference in differences if difference.is_beyond}
    if all(np.array_equal(actual[name], array) for name, array in state_arrays(before).items()):
        return "nothing has changed: no update was made"
    worst = max(beyond.values(), key=lambda difference: difference.share)
    words = (
        f"{worst.name} differs by {worst.share:.2g} times its correct change; rounding explains only"
        f" {worst.explained / (worst.change or 1.0):.1g}"
    )
    if "loss" in beyond:
        words = f"the loss is {actual['loss'][-1]:.6g}, but should be {wanted['loss'][-1]:.6g}"
    shared_out = (plan.count(step) % config.num_shards for step in range(before.step + 1, until + 1))
    if config.mode == "tutorial" and any(shared_out):
        return (
            f"{words}: --mode tutorial averages the means of the replicas' shards, which differ in size here;"
            f" choose a --train-size divisible by {config.num_shards}"
        )
    if [*beyond] == ["loss"]:
        return f"{words}, while the update is right: check how losses are summed, fetched and recorded"
    explained = {difference.name: difference.explained for difference in differences}
    as_it_should_be: dict[str, Any] = {"experiment": experiment, "state": before}
    for mistake, changed in _mistakes(experiment, before):
        arrays = reference_steps(**as_it_should_be | changed, until=until)
        if all(norm(actual[name] - array) <= explained[name] for name, array in arrays.items()):
            return f"{words}: {mistake}"
    return f"{words}: {_suspicion(experiment, before.step + 1, [*wanted], [*beyond])}"


def _mistakes(experiment: Experiment, before: TrainState) -> Iterator[tuple[str, dict[str, Any]]]:
    """Mistakes that may explain a wrong step, and what they change in the arguments of `reference_steps`."""
    rule, step, epoch = experiment.update_rule, before.step + 1, experiment.plan.epoch_of(before.step + 1)
    if before.slots:
        zeros = {
            slot: {name: np.zeros_like(array) for name, array in values.items()}
            for slot, values in before.slots.items()
        }
        # As if all steps before it had been skipped: Adam then counts from 1 again.
        lost = replace(before, slots=zeros, scale=ScaleState(1.0, 0, skipped=before.step))
        yield "as if the optimizer's state had been lost before this step", {"state": lost}
    for other in (step - 1, step + 1):
        if 1 <= other <= len(rule.learning_rates):
            rates = rule.learning_rates.copy()
            rates[step - 1] = rates[other - 1]
            changed = replace(experiment, update_rule=replace(rule, learning_rates=rates))
            yield f"the step used the learning rate of step {other}", {"experiment": changed}
    for other in sorted({1, *range(max(1, epoch - MOST_EPOCHS), epoch)} - {epoch}):
        yield f"the examples are those of epoch {other}", {"epoch": other}


def _suspicion(experiment: Experiment, step: int, names: Sequence[str], beyond: Sequence[str]) -> str:
    """Where to look.

    Args:
      names, beyond: of all arrays, and of those that differ.
    """
    config, plan, network = experiment.config, experiment.plan, experiment.network
    several = config.num_shards > 1
    if "loss" in beyond:
        parts = {
            "the initial weights": step == 1,
            "weights that are changed between epochs": step > 1 and plan.epoch_of(step) > plan.epoch_of(step - 1),
            "how an incomplete batch is weighted": plan.count(step) < plan.examples_per_step,
            "replicas whose weights differ": several and step > 1,
            "the examples of the batch": True,
            "their random draws": network.drops or experiment.augmentation,
            "the network, the loss or their precision": True,
        }
        return f"suspect {', '.join(suspects_in_use(parts))}"
    if all(_is_statistic(name) for name in beyond):
        return "suspect the running statistics of batch normalisation"
    slots = [name for name in names if name.startswith("slots.")]
    if slots and not any(name in slots for name in beyond):
        return "the slots are right: suspect the learning rate, or how the update rule computes the weights from them"
    of_gradients = slots or [name for name in names if name.startswith("weights.") and not _is_statistic(name)]
    layers = {_layer(name) for name in of_gradients}
    wrong = {_layer(name) for name in of_gradients if name in beyond}
    if wrong and len(wrong) <= len(layers) / 2:
        return f"suspect the gradients of {', '.join(sorted(wrong))}"
    over = ", summed over all devices" if several else ""
    return f"suspect the gradients (are they of all examples of the batch{over}?) or {suspects_of_update(config)}"


def _is_statistic(name: str) -> bool:
    return name.startswith("weights.") and name.endswith((".mean", ".variance"))


def _layer(name: str) -> str:
    """`conv2` of `weights.conv2.kernel` or `slots.velocity.conv2.kernel`."""
    kind, _, rest = name.partition(".")
    return (rest.partition(".")[2] if kind == "slots" else rest).rpartition(".")[0]
