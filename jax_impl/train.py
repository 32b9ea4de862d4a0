"""Training in JAX; laid out like the train.py of the other implementations, to be read side by side."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import summed
from common.spec.state import TrainState
from jax_impl.data import Batch, Batches
from jax_impl.inspection import predict
from jax_impl.networks import Losses, Network
from jax_impl.precision import LossScale
from jax_impl.replicas import device_peak_memory_bytes
from jax_impl.weights import get_weights

LossAndCorrect = tuple[jax.Array, jax.Array]  # of a batch or of a step, of all replicas together


@dataclass(frozen=True)
class Parts:
    """What is trained and evaluated; made by `make_parts` (jax_impl/parts.py) for each mode and strategy.

    Attributes:
      network: the network that is trained.
      scale: the state of loss scaling; or None.
      train_steps, evaluate: functions that `make_loop` returns, or tuned ones.
      get_state: number of steps -> the state after them.
    """

    mesh: jax.sharding.Mesh
    network: Network
    scale: LossScale | None
    train_steps: Callable[[int], Iterator[LossAndCorrect]]
    evaluate: Callable[[], tuple[float, int, int]]
    get_state: Callable[[int], TrainState]


# --- Steps: each is compiled, and takes a batch of all replicas, whose shards may be on several devices ---


def forward_backward(
    network: Network, scale: LossScale | None, losses_of: Losses, batch: Batch
) -> tuple[jax.Array, nnx.State, jax.Array]:
    """The loss, its gradients (scaled in float16) and the number of correct answers."""

    def loss_of(network: Network) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        # With mixed precision the network computes in 16 bits, the loss in the 32 bits of the weights.
        real = batch.weights > 0  # not padding; for batch normalisation
        logits = network(batch.inputs, real, training=True).astype(batch.weights.dtype)
        loss = jnp.sum(batch.weights * losses_of(logits, batch.labels))
        return (loss * scale.scale[...] if scale else loss), (loss, logits)

    gradients, (loss, logits) = nnx.grad(loss_of, has_aux=True)(network)
    return loss, gradients, jnp.sum((logits.argmax(axis=1) == batch.labels) & (batch.weights > 0))


def train_step(
    losses_of: Losses,
    network: Network,
    optimizer: nnx.Optimizer[Network],
    scale: LossScale | None,
    batches: list[Batch],
) -> LossAndCorrect:
    """One update from these batches; returns the sums of their losses and correct answers."""
    loss, gradients, correct = forward_backward(network, scale, losses_of, batches[0])
    sums = [(loss, correct)]
    for batch in batches[1:]:  # with --accumulate-grad-batches
        loss, more, correct = forward_backward(network, scale, losses_of, batch)
        gradients = jax.tree.map(jnp.add, gradients, more)
        sums.append((loss, correct))
    if scale:
        gradients = scale.unscaled(gradients)
    # The loss is over the whole batch, so XLA adds up the replicas' gradients. The optimizer also clips them and takes
    # the step's learning rate (optimizer.py); PyTorch's train_step does so itself.
    optimizer.update(network, gradients)
    return summed(sums)


def eval_step(losses_of: Losses, network: Network, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum of losses, number of correct answers and number of examples."""
    logits = network(batch.inputs).astype(batch.weights.dtype)
    losses = losses_of(logits, batch.labels)
    real = batch.weights > 0
    correct = (logits.argmax(axis=1) == batch.labels) & real
    return jnp.sum(jnp.where(real, losses, 0).astype(jnp.float64)), jnp.sum(correct), jnp.sum(real)


# --- Loop ---


def make_loop(
    experiment: Experiment,
    train_batches: Batches,
    test_batches: Batches,
    take_step: Callable[[list[Batch]], LossAndCorrect],
    evaluate_batch: Callable[[Batch], tuple[jax.Array, jax.Array, jax.Array]],
) -> tuple[Callable[[int], Iterator[LossAndCorrect]], Callable[[], tuple[float, int, int]]]:
    """`train_steps` and `evaluate`, from the steps above, compiled and of this network."""

    def train_steps(epoch: int) -> Iterator[LossAndCorrect]:
        """Takes the steps of an epoch, counted from 0; gives the global loss and number of correct answers of each."""
        batches = train_batches.epoch(epoch)
        for step in experiment.plan.steps(epoch + 1):  # the plan counts epochs from 1
            yield take_step([next(batches) for _ in range(experiment.plan.batches_in(step))])

    def evaluate() -> tuple[float, int, int]:
        """Sum of losses, number of correct answers and of examples of the whole test set, each example once."""
        # Sums in 64 bits, which weight all examples equally, instead of the mean of the batches' means in 32 bits.
        sums = [evaluate_batch(batch) for batch in test_batches.epoch()]
        loss_sum, correct, count = (sum(part.item() for part in column) for column in zip(*sums, strict=True))
        return loss_sum, correct, count

    return train_steps, evaluate


def train(experiment: Experiment, parts: Parts, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    plan, network, scale = experiment.plan, parts.network, parts.scale

    for epoch in range(plan.epochs_done, plan.num_epochs):
        recorder.start_epoch()
        for sums in parts.train_steps(epoch):
            recorder.step(*sums)
            recorder.offer_state(parts.get_state)
        recorder.end_training()
        recorder.start_evaluation()
        recorder.end_epoch(*parts.evaluate())
        recorder.offer_state(parts.get_state)

    memory = device_peak_memory_bytes(experiment.config, parts.mesh)
    weights = get_weights(network)
    if recorder.writes:  # the first process
        recorder.save_predictions(predict(experiment, weights))
    skipped = scale.get_state().skipped if scale else None
    recorder.finish(weights, packages=("jax", "flax", "optax"), peak_memory=memory, skipped_steps=skipped)
