"""Differences of a run's arrays from those of the reference, and how much of them rounding explains.

How much rounding explains is estimated by computing the reference several times with random errors in all sums and
products, of the size of the run's number format, as TTrace does (arXiv 2506.09280). A ReLU unit or a maximum near a tie
turns a rounding error into a jump; the random errors do the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.experiment import Experiment
from common.platform.files import Arrays
from common.spec.options import Precision, TrainConfig
from common.spec.state import TrainState
from comparison.lockstep import roundoff
from comparison.prove.reference import take_reference_step

# Size of the random errors, in units of roundoff. Frameworks add numbers in other orders, with other algorithms. In 64
# and 32 bits there is room for generous errors: a mistake is still a thousand times larger. In 64 bits the reference
# itself rounds as much as a framework. With 16 units, an audit of a sound step missed the bound by a tenth (a running
# statistic of Keras). With 16 in 32 bits, hardly any error changes a sign that rounding in PyTorch has changed (a
# gradient of resnet18 in Adam's first step, which takes only the sign).
ERRORS: dict[Precision, float] = {"64": 1024, "32": 32, "16-mixed": 2, "bf16-mixed": 1}
MARGIN = 2.0  # times the largest difference that the errors have shown


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
    reference: Callable[[float, int], Arrays],
    wanted: Arrays,
    actual: Arrays,
    old: Arrays,
    config: TrainConfig,
    more: int,
    least: Mapping[str, float],
) -> list[Difference]:
    """The differences of each array from the reference, with what rounding explains.

    Args:
      reference: from the size of the random errors and the seed of their random numbers to the arrays.
      wanted: the arrays without errors.
      old: the arrays before the step; what is not in it was zero.
      more: how often the reference is computed with errors at most, until they explain the differences.
      least: of each array, the difference that is explained in any case, besides that by the errors.
    """
    assert config.precision != "auto"
    errors = ERRORS[config.precision] * roundoff(config)
    differences: list[Difference] = []
    largest = {name: np.zeros_like(array) for name, array in wanted.items()}  # of all samples, for each number
    for seed in range(more):
        rounded = reference(errors, seed)
        largest = {name: np.maximum(most, np.abs(rounded[name] - wanted[name])) for name, most in largest.items()}
        differences = [
            Difference(
                name,
                norm(actual[name] - array),
                least[name] + MARGIN * norm(largest[name]),
                norm(array - old.get(name, np.zeros_like(array))),
            )
            for name, array in wanted.items()
        ]
        if not any(difference.is_beyond for difference in differences):
            break
    return differences


# --- Steps as arrays ---


def numbers(state: TrainState) -> Arrays:
    """float64: `weights.NAME`, `slots.SLOT.NAME` and `average.NAME`."""
    arrays = state.to_arrays()
    return {name: array.astype(np.float64) for name, array in arrays.items() if name not in ("step", "scale")}


def reference_steps(experiment: Experiment, state: TrainState, until: int, **more: Any) -> Arrays:
    """The numbers of the state after step `until`, and `loss`: those of the steps from `state` to there.

    Args:
      more: see `take_reference_step`.
    """
    losses = []
    while state.step < until:
        loss, state = take_reference_step(experiment, state, **more)
        losses.append(loss)
    return numbers(state) | {"loss": np.array(losses)}
