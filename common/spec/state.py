"""The state of a training after a step: all that the next step needs, in any framework."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.platform.files import Arrays, read_safetensors
from common.spec.networks import NetworkSpec, Weights, check_arrays
from common.spec.update_rule import UpdateRule

STATE_FILE = "state.safetensors"


@dataclass(frozen=True)
class ScaleState:
    """The state of loss scaling, see `common.spec.update_rule.LossScaling`.

    Attributes:
      good_steps: number of steps taken in a row since the scale was last changed.
      skipped: number of skipped steps in total.
    """

    scale: float
    good_steps: int
    skipped: int


@dataclass(frozen=True)
class TrainState:
    """The state after `step` steps, counted from the first one. Arrays are canonical, in the precision of the weights.

    Random numbers need no state: order, dropout and augmentation are functions of the seed and the step.

    Attributes:
      weights: includes running statistics of batch normalisation.
      slots: name of the slot -> what the update rule stores for each trained parameter, see `common.spec.optimizers`.
      scale: state of loss scaling; None if the loss is not scaled.
      differ: trained parameters in which this process's replicas have different values, by name.
    """

    step: int
    weights: Weights
    slots: dict[str, Weights]
    scale: ScaleState | None = None
    differ: tuple[str, ...] = ()

    @property
    def steps_taken(self) -> int:
        """Number of steps that were not skipped, which Adam counts."""
        return self.step - (self.scale.skipped if self.scale else 0)

    def to_arrays(self) -> Arrays:
        """The content of `state.safetensors`: `weights.NAME`, `slots.SLOT.NAME` and scalars."""
        arrays: Arrays = {"step": np.array([self.step], np.int64)}
        arrays |= {f"weights.{name}": array for name, array in self.weights.items()}
        for slot, values in self.slots.items():
            arrays |= {f"slots.{slot}.{name}": array for name, array in values.items()}
        if self.scale:
            arrays["scale"] = np.array([self.scale.scale, self.scale.good_steps, self.scale.skipped], np.float64)
        return arrays

    @classmethod
    def read(cls, path: Path, network: NetworkSpec, rule: UpdateRule, scaled: bool) -> "TrainState":
        """Reads a file of the arrays that `to_arrays` makes.

        Args:
          scaled: whether the loss is scaled.

        Raises UserError if the file can't be read, or does not fit the network and the update rule.
        """
        arrays = read_safetensors(path)
        trained = {parameter.name: parameter.shape for parameter in network.parameters if parameter.trainable}
        expected = {f"weights.{parameter.name}": parameter.shape for parameter in network.parameters}
        expected |= {f"slots.{slot}.{name}": shape for slot in rule.rule.slots for name, shape in trained.items()}
        expected |= {"step": (1,), **({"scale": (3,)} if scaled else {})}
        check_arrays(arrays, expected, str(path))

        def part(prefix: str) -> Weights:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        scale = None
        if scaled:
            value, good_steps, skipped = arrays["scale"].tolist()
            scale = ScaleState(value, int(good_steps), int(skipped))
        slots = {slot: part(f"slots.{slot}.") for slot in rule.rule.slots}
        return cls(int(arrays["step"][0]), part("weights."), slots, scale)
