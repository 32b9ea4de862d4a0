"""Differences of a run's arrays from those of the reference, and how much of them rounding explains.

How much rounding explains is estimated by computing the reference several times with random errors in all sums and
products, of the size of the run's number format, as TTrace does (arXiv 2506.09280). A ReLU unit or a maximum near a tie
turns a rounding error into a jump; the random errors do the same.

The first step of Adam and of some other rules takes only the sign of a gradient, so a small error of a gradient near
zero changes a weight as much as a step can. Hence not only the differences of the arrays are multiplied by a margin,
but also those of the gradients, for which the update rule says what that changes in the arrays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.files import Arrays
from common.spec.options import TrainConfig
from common.spec.state import TrainState
from comparison.lockstep import ROUNDOFF, number_format_of
from comparison.prove.reference import apply_gradients, compute_gradients

# Size of the random errors, in units of roundoff. Frameworks add numbers in other orders, with other algorithms. In 64
# and 32 bits there is room for generous errors: a mistake is still a thousand times larger. In 64 bits the reference
# itself rounds as much as a framework. With 16 units, an audit of a sound step missed the bound by a tenth (a running
# statistic of Keras).
ROUNDING_ERRORS = {"64": 1024, "32": 32, "tf32": 2, "16-mixed": 2, "bf16-mixed": 1}
ROUNDING_MARGIN = 2.0  # times the largest difference that the errors have shown in what they change


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


def norm(array: NDArray[Any]) -> float:
    return float(np.linalg.norm(array.ravel()))


def compare(
    compute: Callable[[float, int], Arrays],
    finish: Callable[[Arrays], Arrays],
    actual: Arrays,
    old: Arrays,
    config: TrainConfig,
    most_samples: int,
    stored: float,
    updated: float = 0.0,
    least: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Arrays, list[Difference]]:
    """The arrays of the reference, and the differences of each from them, with what rounding explains.

    Args:
      compute: from the size of the random errors and the seed of their random numbers to what these errors change.
      finish: from that to the arrays that are compared.
      old: the arrays before the step; what is not in it was zero.
      most_samples: how often the reference is computed with errors at most, until they explain the differences.
      stored, updated: the difference that is explained in any case, as a share of each array, and of its change.
      least: of some arrays, the difference that is explained in any case.
    """
    number_format = number_format_of(config)
    errors = ROUNDING_ERRORS[number_format] * ROUNDOFF[number_format]
    exact = compute(0.0, 0)
    wanted = finish(exact)
    differences: list[Difference] = []
    # Of all samples, for each number.
    largest = {name: np.zeros_like(array) for name, array in exact.items()}
    explained = {name: np.zeros_like(array) for name, array in wanted.items()}
    for seed in range(most_samples):
        rounded = compute(errors, seed)
        largest = {name: np.maximum(most, np.abs(rounded[name] - exact[name])) for name, most in largest.items()}
        # Of several steps, each is moved in a direction of its own: rounding is not the same in all of them.
        steps = dict.fromkeys(name.partition(".")[0] for name in exact)
        signs = dict(zip(steps, ROUNDING_MARGIN * np.random.default_rng(seed).choice((-1, 1), len(steps)), strict=True))
        moved = {name: signs[name.partition(".")[0]] * most for name, most in largest.items()}
        above, below = (finish({name: array + sign * moved[name] for name, array in exact.items()}) for sign in (1, -1))
        # The slots' squares may change more between these two than at them, so the sample itself counts, too.
        for arrays, margin in ((finish(rounded), ROUNDING_MARGIN), (above, 1.0), (below, 1.0)):
            explained = {
                name: np.maximum(most, margin * np.abs(arrays[name] - wanted[name])) for name, most in explained.items()
            }
        differences = []
        for name, array in wanted.items():
            change = norm(array - old.get(name, np.zeros_like(array)))
            bound = stored * norm(array) + updated * change + least.get(name, 0.0) + norm(explained[name])
            differences.append(Difference(name, norm(actual[name] - array), bound, change))
        if not any(difference.is_beyond for difference in differences):
            break
    return wanted, differences


# --- Steps as arrays ---


def state_arrays(state: TrainState) -> Arrays:
    """float64: `weights.NAME` and `slots.SLOT.NAME`."""
    arrays = state.to_arrays()
    return {name: array.astype(np.float64) for name, array in arrays.items() if name not in ("step", "scale")}


def compute_steps(experiment: Experiment, state: TrainState, until: int, **more: Any) -> Arrays:
    """What the steps from `state` to `until` compute before their updates.

    Args:
      more: see `compute_gradients`.

    Returns:
      `STEP.NAME`, the gradients and running statistics of each step, and `loss`, those of all.
    """
    arrays: Arrays = {}
    losses = []
    while state.step < until:
        computed = compute_gradients(experiment, state, **more)
        losses.append(computed.loss)
        state = apply_gradients(experiment, state, computed.gradients, computed.statistics)
        arrays |= {f"{state.step}.{name}": array for name, array in (computed.gradients | computed.statistics).items()}
    return arrays | {"loss": np.array(losses)}


def finish_steps(experiment: Experiment, state: TrainState, until: int, computed: Arrays) -> Arrays:
    """The numbers of the state after step `until`, and `loss`: those of the steps from `state` to there.

    Args:
      computed: see `compute_steps`.
    """
    trained = set(experiment.network.trained)
    while state.step < until:
        own = f"{state.step + 1}."
        arrays = {name.removeprefix(own): array for name, array in computed.items() if name.startswith(own)}
        gradients = {name: array for name, array in arrays.items() if name in trained}
        statistics = {name: array for name, array in arrays.items() if name not in trained}
        state = apply_gradients(experiment, state, gradients, statistics)
    return state_arrays(state) | {"loss": computed["loss"]}


def reference_steps(experiment: Experiment, state: TrainState, until: int, **more: Any) -> Arrays:
    """The numbers after the steps from `state` to `until`, see `finish_steps`; `more` is that of `compute_steps`."""
    return finish_steps(experiment, state, until, compute_steps(experiment, state, until, **more))
