"""What is wrong with a step or an evaluation that audits have found to be different, in one line for people.

Some usual mistakes are tried: if one of them explains the differences, it is named. Otherwise the arrays that differ
show where to look.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from common.experiment import Experiment
from common.platform.files import Arrays
from common.spec.optimizers import SGD, Adam, AdamW
from common.spec.state import ScaleState, TrainState
from comparison.lockstep import ROUNDOFF, suspects_in_use, suspects_of_evaluation, suspects_of_update
from comparison.prove.differences import MARGIN, Difference, norm, numbers, reference_steps
from comparison.prove.reference import evaluate

MOST_EPOCHS = 10  # before that of a wrong step, whose examples may be taken for its own


@dataclass(frozen=True)
class WrongStep:
    """A step, or the steps of a call, whose result differs from that of the reference by more than rounding explains.

    Attributes:
      before, after: the states that the run has kept.
      others: further states that it has kept.
      losses: of all steps of the run.
      differences: of all arrays.
      wanted, actual: the arrays after the step: `numbers`, and `loss`.
    """

    experiment: Experiment
    before: TrainState
    after: TrainState
    others: Iterable[TrainState]
    losses: Sequence[float]
    differences: Sequence[Difference]
    wanted: Arrays
    actual: Arrays

    def cause(self) -> str:
        """What differs, in one line, and the cause, if one of the usual mistakes explains it."""
        beyond = {difference.name: difference for difference in self.differences if difference.is_beyond}
        worst = max(beyond.values(), key=lambda difference: difference.share)
        old = numbers(self.before)
        words = (
            f"{worst.name} differs by {worst.share:.2g} times its correct change; rounding explains only"
            f" {worst.explained / (worst.change or 1.0):.1g}"
        )
        if all(np.array_equal(self.actual[name], old[name]) for name in old if name.startswith(("weights.", "slots."))):
            return "nothing has changed: no update was made"
        if "loss" in beyond:
            found, right = (float(arrays["loss"][-1]) for arrays in (self.actual, self.wanted))
            words = f"the loss is {found:.6g}, but should be {right:.6g}"
        if self._is_shared_out_unequally():
            return (
                f"{words}: --mode tutorial averages the means of the replicas' shards, which differ in size here;"
                f" choose a --train-size divisible by {self.experiment.config.num_shards}"
            )
        if [*beyond] == ["loss"]:
            return f"{words}, while the update is right: {self._suspects_of_loss(beyond['loss'].explained)}"
        explained = {difference.name: difference.explained for difference in self.differences}
        for mistake, change in self._mistakes():
            changed = {"experiment": self.experiment, "state": self.before, **change}
            arrays = reference_steps(until=self.after.step, **changed)
            if all(norm(self.actual[name] - array) <= explained[name] for name, array in arrays.items()):
                return f"{words}: {mistake}"
        if "loss" in beyond and self.experiment.config.precision in ("32", "64") and self._is_rounded_to_16_bits():
            return f"{words}, no more than 16-bit rounding would cause: suspect {self._small_suspects()}"
        return f"{words}; {self._suspicion(beyond, old)}"

    def _is_shared_out_unequally(self) -> bool:
        """Whether it is a tutorial's step whose batch its replicas can't divide equally."""
        config, plan = self.experiment.config, self.experiment.plan
        steps = range(self.before.step + 1, self.after.step + 1)
        return config.mode == "tutorial" and any(plan.count(step) % config.num_shards for step in steps)

    def _suspects_of_loss(self, explained: float) -> str:
        step = self.after.step
        for other in (step - 1, step + 1):  # what is recorded for this step may be recorded for another one
            if 1 <= other <= len(self.losses) and abs(self.losses[other - 1] - self.wanted["loss"][-1]) <= explained:
                return f"the right loss is recorded for step {other}: check how losses are fetched and recorded"
        return "check how losses are summed and recorded"

    def _is_rounded_to_16_bits(self) -> bool:
        until = self.after.step
        coarse = [
            reference_steps(self.experiment, self.before, until, roundoff=ROUNDOFF["bf16-mixed"], seed=seed)
            for seed in (0, 1)
        ]
        return all(
            norm(self.actual[name] - array) <= MARGIN * max(norm(other[name] - array) for other in coarse)
            for name, array in self.wanted.items()
        )

    def _small_suspects(self) -> str:
        """What may change the loss only a little."""
        config = self.experiment.config
        parts = {
            "the network or its precision (TF32, a layer in 16 bits)": True,
            "the normalisation of images": True,
            "a small constant in the loss or a layer": True,
            "label smoothing": config.label_smoothing,
            "how shards of different sizes are weighted": config.num_shards > 1,
            "replicas whose weights differ": config.num_shards > 1,
        }
        return ", ".join(suspects_in_use(parts))

    def _mistakes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Usual mistakes that may explain a wrong step, and what they change in the arguments of `reference_steps`."""
        experiment, before = self.experiment, self.before
        rule, config, plan = experiment.update_rule, experiment.config, experiment.plan
        zero = {
            slot: {name: np.zeros_like(array) for name, array in values.items()}
            for slot, values in before.slots.items()
        }

        def with_rule(**changes: Any) -> dict[str, Any]:
            return {"experiment": replace(experiment, update_rule=replace(rule, **changes))}

        if before.slots:
            yield "as if the optimizer's state had been lost before this step", {"state": replace(before, slots=zero)}
        if isinstance(rule.rule, Adam | AdamW):  # whose state has the number of steps, too
            ends = [plan.last_step(epoch) for epoch in range(1, plan.epoch_of(before.step + 1))][-MOST_EPOCHS:]
            for end in dict.fromkeys((before.step, *ends)):
                lost = replace(before, scale=ScaleState(1.0, 0, skipped=end))  # from here on, Adam counts from 1
                lost = replace(lost, slots=zero) if end == before.step else lost
                yield f"as if the optimizer's state had been lost after step {end}", {"state": lost}
        for other in (before.step, before.step + 2):
            if 1 <= other <= len(rule.learning_rates):
                rates = rule.learning_rates.copy()
                rates[before.step] = rates[other - 1]
                yield f"the step used the learning rate of step {other}", with_rule(learning_rates=rates)
        if rule.rule.weight_decay:
            yield "the weight decay is missing", with_rule(rule=replace(rule.rule, weight_decay=0.0))
        if rule.largest_norm is not None:
            yield "gradient clipping is missing", with_rule(largest_norm=None)
            if before.scale:
                limit = rule.largest_norm / before.scale.scale
                yield "the gradients are clipped before they are unscaled", with_rule(largest_norm=limit)
        if isinstance(rule.rule, Adam | AdamW) and rule.rule.weight_decay:
            kind, part = (Adam, "a part of") if isinstance(rule.rule, AdamW) else (AdamW, "decoupled from")
            yield f"the weight decay is {part} the gradients", with_rule(rule=kind(**asdict(rule.rule)))
        if isinstance(rule.rule, SGD) and rule.rule.momentum:
            yield (
                "Nesterov momentum is wrongly on or off",
                with_rule(rule=replace(rule.rule, nesterov=not rule.rule.nesterov)),
            )
        if config.label_smoothing:
            plain = replace(experiment, config=config.replace(label_smoothing=0.0))
            yield "label smoothing is missing", {"experiment": plain}
        if experiment.augmentation:
            yield "the augmentation is missing", {"experiment": replace(experiment, augmentation=None)}
        if experiment.network.drops:
            yield "the dropout is missing", {"drops": False}
        epoch_now = plan.epoch_of(before.step + 1)
        for epoch in dict.fromkeys((1, 2, *range(max(1, epoch_now - MOST_EPOCHS), epoch_now))):
            if epoch != epoch_now:
                yield f"the examples are those of epoch {epoch}", {"epoch": epoch}
        for shard in range(config.num_shards if config.num_shards > 1 else 0):
            yield f"the step used the examples of device {shard} alone", {"only_shard": shard}
        ratio = float(self.actual["loss"][-1] / self.wanted["loss"][-1])
        yield (
            f"the loss and the gradients are {ratio:.4g} times as large as they should be: check what they are"
            " divided by",
            {"factors": (ratio, ratio)},
        )
        numbers_of_parts = {2, config.num_shards, config.accumulate_grad_batches}
        for factor in sorted({power for number in numbers_of_parts for power in (number, 1 / number)} - {1}):
            yield (
                f"the gradients are {factor:.4g} times as large as they should be: check what they are divided by",
                {"factors": (1.0, factor)},
            )
        between = f"the weights were changed between step {before.step} and this one"
        for state in self.others:
            if state.step != before.step:
                yield (
                    f"{between}: they were those after step {state.step}",
                    {"state": replace(before, weights=state.weights)},
                )

    def _suspicion(self, beyond: Mapping[str, Difference], old: Arrays) -> str:
        """Where to look, from which arrays differ."""
        config, wanted = self.experiment.config, self.wanted
        several = config.num_shards > 1
        if "loss" in beyond:
            step, plan = self.before.step + 1, self.experiment.plan
            first_of_epoch = step > 1 and plan.epoch_of(step) > plan.epoch_of(step - 1)
            parts = {
                "the initial weights": step == 1,
                "weights that are changed between epochs": first_of_epoch,
                "how an incomplete batch is weighted": plan.count(step) < plan.examples_per_step,
                "replicas whose weights differ": several and step > 1,
                "the examples of the batch": True,
                "their random draws": True,
                "the network or its precision": True,
            }
            return f"suspect {', '.join(suspects_in_use(parts))}"
        if all(name.startswith("weights.") and name.endswith((".mean", ".variance")) for name in beyond):
            return "suspect the running statistics of batch normalisation"
        has_slots = any(name.startswith("slots.") for name in wanted)
        if has_slots and not any(name.startswith("slots.") for name in beyond):
            factor, is_rate = self._factor(old)
            if is_rate:
                adam = (
                    " or Adam's bias correction" if isinstance(self.experiment.update_rule.rule, Adam | AdamW) else ""
                )
                return f"the weights change {factor:.4g} times as much as they should: suspect the learning rate{adam}"
            return "the slots are right: check how the update rule computes the weights from them"
        start = "slots." if has_slots else "weights."
        names = [name for name in wanted if name.startswith(start) and not name.endswith((".mean", ".variance"))]
        wrong = [name for name in names if name in beyond]
        all_layers, layers = (
            {name.split(".", 2 if has_slots else 1)[-1].rpartition(".")[0] for name in of_layers}
            for of_layers in (names, wrong)
        )
        if layers and len(layers) <= len(all_layers) / 2:
            return f"suspect the gradients of {', '.join(sorted(layers))}"
        over = ", summed over all devices" if several else ""
        return f"suspect the gradients (are they of all examples of the batch{over}?) or {suspects_of_update(config)}"

    def _factor(self, old: Arrays) -> tuple[float, bool]:
        """How many times as much as they should the weights have changed, by least squares; whether that is all."""
        names = [name for name in self.wanted if name.startswith("weights.")]
        change = np.concatenate([np.ravel(self.wanted[name] - old[name]) for name in names])
        found = np.concatenate([np.ravel(self.actual[name] - old[name]) for name in names])
        factor = float(change @ found / max(change @ change, 1e-300))
        return factor, norm(found - factor * change) <= 0.1 * norm(found - change)


def cause_of_evaluation(experiment: Experiment, loss: float, explained: float, others: Iterable[TrainState]) -> str:
    """Why the test loss of an evaluation is wrong.

    Args:
      loss: the test loss that the run has recorded.
      explained: how much of its difference rounding explains.
      others: states after other steps than the one that is evaluated.
    """
    count = len(experiment.dataset.test_images)
    for other in others:
        if abs(evaluate(experiment, other.weights, count).loss - loss) <= explained:
            return f"the weights are those after step {other.step}"
    return f"suspect {suspects_of_evaluation(experiment.config)}"
