"""Finds how much the losses of two runs differ, and in which step and layer two trainings begin to differ."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.platform.files import Arrays, read_safetensors
from common.record.results import FIRST_BATCH_FILE, EpochLine, RunResult, read_metrics, read_result, read_step_losses
from common.spec.batches import Plan
from common.spec.layers import BatchNorm, Dropout, named_layers
from common.spec.networks import layers_of
from common.spec.options import TrainConfig, options_of_kind
from common.spec.update_rule import learning_rates

FIRST_STEPS = 10
OTHER_SETTINGS = "not the same settings"
OF_EVALUATION = "evaluation"  # the first word where two runs differ in an evaluation alone


# Relative rounding error of a number, by precision: half the distance to the next number.
ROUNDOFF = {"64": 2.0**-53, "32": 2.0**-24, "tf32": 2.0**-11, "16-mixed": 2.0**-11, "bf16-mixed": 2.0**-8}


def roundoff(*configs: TrainConfig) -> float:
    """The largest rounding error of runs with these resolved configurations, which may have different precisions."""
    return max(ROUNDOFF[number_format_of(config)] for config in configs)


def number_format_of(config: TrainConfig) -> str:
    """The key in `ROUNDOFF` of a run with this resolved configuration.

    Of a network of the user's, frameworks compute some parts in 32 bits whatever the precision, such as attention.
    """
    if config.precision == "64" and config.has_own_network:
        return "32"
    return "tf32" if config.tf32 is True and config.precision == "32" else config.precision


def loss_differences(reference: list[float], other: list[float]) -> NDArray[np.float64]:
    """float64 (steps,): for each step that both took, the difference relative to the reference's loss.

    If the loss is below 1, the difference is absolute. The reason: a loss near zero is the difference of two numbers
    near 1, and the absolute error by rounding does not get smaller with the loss.
    """
    steps = min(len(reference), len(other))
    a, b = np.array(reference[:steps]), np.array(other[:steps])
    relative: NDArray[np.float64] = np.abs(a - b) / np.maximum(np.abs(a), 1.0)
    return relative


LOSS_JUMP = 30  # times the largest difference before it, and the rounding errors of a step
ERRORS_IN_A_LOSS = 16  # rounding errors in a loss, in units of roundoff


def find_loss_jump(
    losses: tuple[list[float], list[float]],
    test_losses: tuple[dict[int, float], dict[int, float]],
    configs: tuple[TrainConfig, TrainConfig],
) -> int | None:
    """The step at which two runs suddenly part, which rounding hardly does; None if there is none.

    Rounding errors grow gradually. A mistake that begins at a step mostly makes a larger jump.

    Args:
      losses: of the runs' steps.
      test_losses: step -> the test loss after it.
    """
    differences = loss_differences(*losses)
    # At index s: the largest until step s. Without a loop over the steps, since the tables are made after every run.
    largest = np.fmax.accumulate([ERRORS_IN_A_LOSS * roundoff(*configs), *differences])
    jumps = (np.flatnonzero(differences > LOSS_JUMP * largest[:-1]) + 1)[:1].tolist()
    for step in sorted(test_losses[0].keys() & test_losses[1].keys()):
        if step <= len(differences):
            evaluated = float(loss_differences(*([of_run[step]] for of_run in test_losses))[0])
            if evaluated > LOSS_JUMP * largest[step]:
                jumps.append(step)
                break
    return min(jumps, default=None)


def different_settings(reference: RunResult, other: RunResult, same_seed: bool = True) -> list[str]:
    """The differences that keep two runs from sharing a table, in words: `batch_size: 64 and 32`.

    Without `same_seed`, everything that depends on the seed is left out.
    """
    facts = ("data_sha256", "initial_weights_sha256", "num_parameters", "train_count", "test_count", "num_steps")
    fields = {name: (getattr(reference, name), getattr(other, name)) for name in facts}
    a, b = reference.config.training_fields(), other.config.training_fields()
    # With `--mode tuned`, each framework decides these settings for itself.
    left_out = options_of_kind(TrainConfig, "setting") if "tuned" in (a["mode"], b["mode"]) else ["mode"]
    # The strategy is left out, too: "auto" has another meaning in each framework.
    fields |= {name: (a[name], b[name]) for name in a if name not in (*left_out, "strategy")}
    if not same_seed:
        made = ["data_sha256"] if reference.config.dataset == "synthetic" else []
        for name in ("seed", "initial_weights_sha256", *made):
            del fields[name]
    return [f"{name}: {_short(one)} and {_short(two)}" for name, (one, two) in fields.items() if one != two]


def _short(value: object) -> str:
    """A digest's first digits; other values whole."""
    text = str(value)
    return text[:12] if len(text) == 64 else text


def find_departure(reference: Path, other: Path, tolerance: float) -> str | None:
    """Where the run in folder `other` first differs from the run in `reference`, and the likely cause.

    The order of the checks: settings, activations and gradients of the first batch (if both runs have saved them), the
    loss of every step, and every evaluation. Returns None if all agree within `tolerance`.

    Raises:
      UserError: files that are missing or not valid.
    """
    results = read_result(reference), read_result(other)
    config, plan = results[0].config, results[0].plan
    # Options of the machine may differ: the training must be the same on any machine. Numbers of steps and of test
    # examples are compared last: they show how training and evaluation were done, not what was asked for.
    ignored = {*options_of_kind(TrainConfig, "machine"), "num_steps", "test_count"}
    settings = [text for text in different_settings(*results) if text.partition(":")[0] not in ignored]
    if settings:
        return f"{OTHER_SETTINGS}: {'; '.join(settings)}"

    if all((folder / FIRST_BATCH_FILE).exists() for folder in (reference, other)):
        arrays = read_safetensors(reference / FIRST_BATCH_FILE), read_safetensors(other / FIRST_BATCH_FILE)
        if message := _first_batch_departure(*arrays, tolerance, config.model):
            return message

    differences = loss_differences(read_step_losses(reference), read_step_losses(other))
    apart = np.flatnonzero(~(differences <= tolerance))
    if len(apart):
        step = int(apart[0]) + 1
        where = f"step {step} of {plan.total_steps} (epoch {plan.epoch_of(step)})"
        return f"{where}: losses differ by {differences[step - 1]:.1e}; {_suspect_step(step, plan, config)}"

    evaluations = read_metrics(reference, EpochLine), read_metrics(other, EpochLine)
    steps = [result.num_steps for result in results]
    for what, (one, two) in {"steps": steps, "evaluations": list(map(len, evaluations))}.items():
        if one != two:
            return f"{one} and {two} {what}, while the losses of the steps that both took agree"
    for reference_line, line in zip(*evaluations, strict=True):
        for name in ("train_accuracy", "test_count", "test_correct", "test_loss"):
            values = getattr(reference_line, name), getattr(line, name)
            if values == (None, None) or math.isclose(*values, rel_tol=tolerance, abs_tol=tolerance):
                continue
            found = f"epoch {line.epoch}: {name} is {values[0]} and {values[1]}, while every step's loss agrees"
            if name == "train_accuracy":
                return f"{found}: check how correct answers are counted in training"
            return f"{OF_EVALUATION} after {found}: suspect {suspects_of_evaluation(config)}"
    return None


def _first_batch_departure(reference: Arrays, other: Arrays, tolerance: float, model: str) -> str | None:
    """Names the first layer whose output differs, else every parameter whose gradient differs."""
    layers = [INPUT_ACTIVATION, *dict(named_layers(layers_of(model)))]  # a safetensors file does not keep the order
    both = sorted(reference.keys() & other.keys())  # a layer may not have been watched
    for layer in layers:
        if not (fault := _difference(reference, other, f"activation.{layer}", tolerance)):
            continue
        if layer == INPUT_ACTIVATION:
            suspects = "the examples of the batch, their integer type, normalisation, or augmentation"
            return f"first batch: the network's {fault.partition('.')[2]}: suspect {suspects}"
        unseen = [name for name in layers[: layers.index(layer)] if f"activation.{name}" not in both]
        or_these = f", or {', '.join(unseen)}, which could not be watched" if unseen else ""
        return f"first batch: {fault}, the layers before it agree: suspect that layer{or_these}"
    gradients = [name for layer in layers for name in both if name.rpartition(".")[0] == f"gradient.{layer}"]
    if faults := [fault for name in gradients if (fault := _difference(reference, other, name, tolerance))]:
        return f"first batch: all activations agree, but {'; '.join(faults)}: suspect the loss or the backward pass"
    return None


def _difference(reference: Arrays, other: Arrays, name: str, tolerance: float) -> str | None:
    """How an array differs, in words; None if it does not, or if it is missing in one of them."""
    one, two = reference.get(name), other.get(name)
    if one is None or two is None:
        return None
    if one.shape != two.shape:
        return f"{name} has shape {one.shape} and {two.shape}"
    difference = np.abs(one - two).max() / max(np.abs(one).max(), np.finfo(one.dtype).tiny)
    return None if difference <= tolerance else f"{name} differs by {difference:.1e}"


def _suspect_step(step: int, plan: Plan, config: TrainConfig) -> str:
    """The likely cause: what is new in the first step that differs, since all steps before it are equal."""
    if step == 1:
        return "the first, before any update: suspect initial weights, the first batch, the network or the loss"
    if plan.count(step) < plan.examples_per_step:
        return (
            f"its batch is the epoch's incomplete last one, {plan.count(step)} of {plan.examples_per_step} examples:"
            " check how an incomplete batch is weighted"
        )
    if plan.epoch_of(step) > plan.epoch_of(step - 1):
        return (
            "the first of its epoch: suspect the order of examples or their random draws, which are new in"
            " every epoch, or the update from the incomplete batch before it"
        )
    if step == 2:
        clipping = ", their clipping" if config.gradient_clip_val is not None else ""
        return f"the first after an update: suspect the gradients{clipping} or the update rule"
    changed = len(set(learning_rates(config, plan)[: step - 1])) > 1
    rate = "the learning rate has changed by then" if changed else "the learning rate is constant"
    return f"after {step - 1} updates, and {rate}: suspect {suspects_of_update(config)}"


# --- What to suspect: the parts that a configuration uses ---

INPUT_ACTIVATION = "input"  # of the network, as the name of an activation


def suspects_in_use(parts: Mapping[str, object]) -> list[str]:
    """The names whose values are true."""
    return [name for name, applies in parts.items() if applies]


def suspects_of_update(config: TrainConfig) -> str:
    """The parts of the update rule."""
    parts = {
        "clipping": config.gradient_clip_val is not None,
        "momentum": config.optimizer == "sgd" and config.momentum,
        "Nesterov": config.optimizer == "sgd" and config.nesterov,
        "weight decay": config.weight_decay,
        "schedule": config.schedule != "constant" or config.warmup_steps,
    }
    used = suspects_in_use(parts)
    return f"the update rule{': ' if used else ''}{', '.join(used)}"


def suspects_of_evaluation(config: TrainConfig) -> str:
    """What may make an evaluation wrong whose weights are right."""
    kinds = {type(layer) for _, layer in named_layers(layers_of(config.model))}
    parts = {
        "running statistics": BatchNorm in kinds,
        "dropout": Dropout in kinds,
        "augmentation": config.random_crop or config.horizontal_flip,
        "evaluation mode": bool(kinds & {BatchNorm, Dropout}),
    }
    used = suspects_in_use(parts)
    return ", ".join([*used, f"{'or ' if used else ''}how the test set is sharded, padded or summed"])
