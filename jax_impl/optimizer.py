"""Optax's update rules, which are the shared ones, see common/spec/optimizers.py."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from common.spec.optimizers import SGD, Adadelta, Adam, AdamW, Rule
from common.spec.update_rule import NORM_EPSILON, UpdateRule
from jax_impl.networks import Network

EVERY_STEP = 2**31 - 2  # however many steps in a row are skipped


def make_optimizer(network: Network, update_rule: UpdateRule, scaled: bool) -> nnx.Optimizer[Network]:
    """`scaled`: whether the loss is scaled, so that steps whose gradients are not finite are skipped."""
    rule = make_rule(update_rule.rule)
    if update_rule.largest_norm is not None:
        rule = optax.chain(clip_by_norm(update_rule.largest_norm), rule)
    if scaled:
        rule = optax.apply_if_finite(rule, max_consecutive_errors=EVERY_STEP)
    rates = jnp.asarray(update_rule.learning_rates)
    rule = optax.chain(rule, optax.scale_by_learning_rate(lambda step: rates[step]))
    return nnx.Optimizer(network, rule, wrt=nnx.Param)


def make_rule(rule: Rule) -> optax.GradientTransformation:
    """The change of the weights, to be multiplied by the learning rate and subtracted."""
    decay = optax.add_decayed_weights(rule.weight_decay) if rule.weight_decay else optax.identity()
    match rule:
        case SGD():
            momentum = optax.trace(rule.momentum, rule.nesterov) if rule.momentum else optax.identity()
            return optax.chain(decay, momentum)
        case Adam() | AdamW():
            adam = optax.scale_by_adam(rule.beta1, rule.beta2, rule.epsilon)
            return optax.chain(decay, adam) if isinstance(rule, Adam) else optax.chain(adam, decay)
        case Adadelta():
            return optax.chain(decay, optax.scale_by_adadelta(rule.rho, rule.epsilon))


def clip_by_norm(largest_norm: float) -> optax.GradientTransformation:
    """Scales the gradients down if the norm of all of them together is too large.

    Used instead of optax.clip_by_global_norm, whose factor lacks PyTorch's NORM_EPSILON.
    """

    def clipped(gradients: Any, params: Any = None) -> Any:
        norm = optax.tree.norm(gradients)
        factor = jnp.minimum(1, largest_norm / (norm + NORM_EPSILON)).astype(norm.dtype)
        return jax.tree.map(lambda gradient: gradient * factor, gradients)

    return optax.stateless(clipped)
