"""Precision in JAX: dtypes, and PyTorch's loss scaling for float16."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from common.spec.state import ScaleState
from common.spec.update_rule import LossScaling

# The dtype of weights, normalised images and losses; and the dtype that layers compute in.
DTYPES: dict[str, Any] = {"32": jnp.float32, "64": jnp.float64, "bf16-mixed": jnp.float32, "16-mixed": jnp.float32}
COMPUTE_DTYPES: dict[str, Any] = DTYPES | {"bf16-mixed": jnp.bfloat16, "16-mixed": jnp.float16}


class LossScale(nnx.Module):
    """The rule of torch.amp.GradScaler, see common.spec.update_rule.

    Used instead of flax.training.dynamic_scale.DynamicScale, whose scale grows a step later. The optimizer skips the
    steps, and counts them.
    """

    def __init__(self, rule: LossScaling) -> None:
        self.rule = rule
        self.scale = nnx.Variable(jnp.array(rule.initial, jnp.float32))
        self.good_steps = nnx.Variable(jnp.array(0, jnp.int32))
        self.skipped = nnx.Variable(jnp.array(0, jnp.int32))

    def get_state(self) -> ScaleState:
        return ScaleState(*(variable[...].item() for variable in (self.scale, self.good_steps, self.skipped)))

    def set_state(self, state: ScaleState) -> None:
        self.scale[...] = jnp.array(state.scale, jnp.float32)
        self.good_steps[...] = jnp.array(state.good_steps, jnp.int32)
        self.skipped[...] = jnp.array(state.skipped, jnp.int32)

    def unscaled(self, gradients: Any) -> Any:
        """The gradients, divided by the scale, which then changes."""
        rule, scale, good_steps = self.rule, self.scale[...], self.good_steps[...]
        unscaled = jax.tree.map(lambda gradient: gradient / scale, gradients)
        skip = ~jnp.array([jnp.isfinite(gradient).all() for gradient in jax.tree.leaves(gradients)]).all()
        grown = ~skip & (good_steps + 1 == rule.growth_interval)
        self.scale[...] = scale * jnp.where(skip, rule.backoff, jnp.where(grown, rule.growth, 1.0)).astype(scale.dtype)
        self.good_steps[...] = jnp.where(skip | grown, 0, good_steps + 1)
        self.skipped[...] += skip.astype(jnp.int32)
        return unscaled


if __name__ == "__main__":
    # `python -m jax_impl.precision bf16-mixed` exits with 0 if this processor can multiply in half precision. It is a
    # process of its own (common.platform.processor), since an instruction that the processor lacks ends the process.
    matrix = jnp.ones((64, 64), COMPUTE_DTYPES[sys.argv[1]])
    jnp.matmul(matrix, matrix).block_until_ready()
