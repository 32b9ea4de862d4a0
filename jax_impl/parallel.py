"""How devices work together in JAX: the strategies that `--strategy` names.

In all of them a batch is divided among the devices, and the compiler adds up what each of them computes.
"""

from collections.abc import Callable

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from common.spec.options import Strategy, TrainConfig
from jax_impl.replicas import AXIS

# For several devices, "auto" means the first of these.
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp")


def batch_sharding(mesh: Mesh) -> Sharding:
    """Each device has its shard of a batch."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def weight_sharding(config: TrainConfig, mesh: Mesh) -> Callable[[jax.Array], Sharding]:
    """How a weight is divided, and what belongs to it, such as the optimizer's slots.

    With ddp each device has all weights. With fsdp it has a part of each weight whose longest axis can be divided.
    """

    def sharding_of(array: jax.Array) -> Sharding:
        spec: list[str | None] = [None] * array.ndim
        if config.strategy == "fsdp" and array.ndim:
            longest = max(range(array.ndim), key=lambda axis: array.shape[axis])
            if array.shape[longest] % mesh.size == 0:
                spec[longest] = AXIS
        return NamedSharding(mesh, PartitionSpec(*spec))

    return sharding_of
