"""Optax's update rules, which are the shared ones, see common/spec/optimizers.py."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from common.spec.optimizers import SGD, Adadelta, Adam, AdamW, RMSprop, Rule
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
            scale = scale_by_amsgrad if rule.amsgrad else optax.scale_by_adam
            adam = scale(rule.beta1, rule.beta2, rule.epsilon)
            return optax.chain(decay, adam) if isinstance(rule, Adam) else optax.chain(adam, decay)
        case Adadelta():
            return optax.chain(decay, optax.scale_by_adadelta(rule.rho, rule.epsilon))
        case RMSprop():
            kind = optax.scale_by_stddev if rule.centered else optax.scale_by_rms
            momentum = optax.trace(rule.momentum) if rule.momentum else optax.identity()
            return optax.chain(decay, kind(rule.alpha, rule.epsilon, eps_in_sqrt=False), momentum)


def clip_by_norm(largest_norm: float) -> optax.GradientTransformation:
    """Scales the gradients down if the norm of all of them together is too large.

    Used instead of optax.clip_by_global_norm, whose factor lacks PyTorch's NORM_EPSILON.
    """

    def clipped(gradients: Any, params: Any = None) -> Any:
        norm = optax.tree.norm(gradients)
        factor = jnp.minimum(1, largest_norm / (norm + NORM_EPSILON)).astype(norm.dtype)
        return jax.tree.map(lambda gradient: gradient * factor, gradients)

    return optax.stateless(clipped)


def scale_by_amsgrad(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """AMSGrad with the largest of the squares' averages before they are corrected, as in PyTorch.

    Used instead of optax.scale_by_amsgrad, which takes the largest of the corrected ones.
    """

    def init(params: Any) -> optax.ScaleByAmsgradState:
        slots = (optax.tree.zeros_like(params) for _ in range(3))  # each with memory of its own
        return optax.ScaleByAmsgradState(jnp.zeros([], jnp.int32), *slots)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAmsgradState]:
        mean = optax.tree.update_moment(gradients, state.mu, beta1, 1)
        square = optax.tree.update_moment(gradients, state.nu, beta2, 2)
        largest, count = jax.tree.map(jnp.maximum, state.nu_max, square), state.count + 1
        first, second = (optax.tree.bias_correction(*pair, count) for pair in ((mean, beta1), (largest, beta2)))
        change = jax.tree.map(lambda mean, square: mean / (jnp.sqrt(square) + epsilon), first, second)
        return change, optax.ScaleByAmsgradState(count, mean, square, largest)

    return optax.GradientTransformation(init, update)


def average_weights(average: Network, network: Network, decay: float, steps: jax.Array) -> None:
    """Moves the average towards the weights that the network has after `steps` steps; after the first it is equal."""

    def moved(before: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(steps == 1, new, decay * before + (1 - decay) * new)

    nnx.update(average, jax.tree.map(moved, nnx.state(average, nnx.Param), nnx.state(network, nnx.Param)))
    nnx.update(average, nnx.state(network, nnx.BatchStat))
