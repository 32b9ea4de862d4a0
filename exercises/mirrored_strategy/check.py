"""Checks of mirrored_strategy."""

from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from exercises.checking import check, expect, largest_difference

IMAGES = np.random.default_rng(0).standard_normal((20, 3), dtype=np.float32)
LABELS = np.arange(20) % 10


def strategy_of(*devices: str) -> tf.distribute.MirroredStrategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(devices))
    return tf.distribute.MirroredStrategy(devices)


def two() -> tf.distribute.MirroredStrategy:
    return strategy_of("CPU:0", "CPU:1")


def reference(seed: int) -> tuple[tf.keras.Model, tf.keras.Optimizer]:
    """A model and an optimizer for the checks to train. They are mirrored if they are created in a scope."""
    tf.keras.utils.set_random_seed(seed)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def distributed(strategy: tf.distribute.Strategy, count: int) -> tf.distribute.DistributedDataset:
    examples = tf.data.Dataset.from_tensor_slices((IMAGES[:count], LABELS[:count]))
    return strategy.experimental_distribute_dataset(examples.batch(count))


def losses_of(model: tf.keras.Model, count: int) -> tf.Tensor:
    return tf.keras.losses.sparse_categorical_crossentropy(LABELS[:count], model(IMAGES[:count]), from_logits=True)


@check("a replica for each device", "tf.config can list the logical devices")
def replicas(work: ModuleType) -> object:
    strategy = work.make_strategy(2)
    return type(strategy).__name__, strategy.num_replicas_in_sync


@replicas.judge
def _(seen: Any) -> None:
    kind, count = seen
    expect(kind == tf.distribute.MirroredStrategy.__name__, f"make_strategy returns a {kind}")
    expect(count == 2, f"of 2 devices came {count} replica(s)")


@check("no more devices are used than were asked for", "4 devices are there, and 3 are wanted")
def some_devices(work: ModuleType) -> object:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    with mock.patch.object(tf.config, "set_logical_device_configuration"):
        return work.make_strategy(3).num_replicas_in_sync


@some_devices.judge
def _(count: Any) -> None:
    expect(count == 3, f"of 4 devices 3 were wanted: {count} replica(s)")


@check("all variables have a copy on each device", "where does a variable learn that it is to be mirrored, and when?")
def mirrored(work: ModuleType) -> object:
    strategy = two()
    model, optimizer = work.make_model(strategy, (3,))
    return [
        [len(strategy.experimental_local_results(variable.value)) for variable in variables]
        for variables in (model.trainable_variables, optimizer.variables)
    ]


@mirrored.judge
def _(seen: Any) -> None:
    of_model, of_optimizer = seen
    for name, copies in (("model", of_model), ("optimizer", of_optimizer)):
        expect(set(copies) == {2}, f"the {name}'s variables have {copies} copies on 2 devices")
    expect(len(of_optimizer) > 2, "the optimizer has no momenta: it is not built, or it is another one")


@check("the optimizer is SGD with the rate and the momentum that are described", "print optimizer.get_config()")
def described(work: ModuleType) -> object:
    _, optimizer = work.make_model(two(), (3,))
    if not isinstance(optimizer, tf.keras.optimizers.SGD):
        return {"kind": type(optimizer).__name__}
    rate, momentum = (float(optimizer.get_config()[name]) for name in ("learning_rate", "momentum"))
    return {"kind": "SGD", "rate": rate, "momentum": momentum, "wanted": work.LEARNING_RATE}


@described.judge
def _(seen: Any) -> None:
    expect(seen["kind"] == "SGD", f"the optimizer is {seen['kind']}")
    rate, momentum, wanted = (seen[name] for name in ("rate", "momentum", "wanted"))
    expect(abs(rate - wanted) < 1e-6, f"the rate on 2 devices: yours {rate:g}, wanted {wanted:g}")
    expect(abs(momentum - 0.9) < 1e-6, f"the momentum is {momentum:g}, not 0.9")


@check("the devices' shares together are the batch that was asked for", "whose batch size is BATCH_SIZE?")
def global_batch(work: ModuleType) -> object:
    strategy = two()
    batches = work.make_batches(strategy, IMAGES, LABELS, 8, shuffled=False)
    return [[len(share) for share in strategy.experimental_local_results(images)] for images, _ in batches]


@global_batch.judge
def _(sizes: Any) -> None:
    told = f"20 examples, 8 to a batch, came to 2 devices as {sizes}"
    expect([sum(shares) for shares in sizes] == [8, 8, 4] and sizes[0] == [4, 4], told)


BATCHES = (6, 5)  # of `same_training`: shares of 3 and 3, then of 3 and 2


@check("two devices train as one does", "what is a replica's part of a mean over 6 examples, when it has seen 3?")
def same_training(work: ModuleType) -> object:
    strategy = two()
    with strategy.scope():
        model, optimizer = reference(seed=1)
    step, weights = work.make_train_step(strategy, model, optimizer), []
    for count in BATCHES:
        (batch,) = distributed(strategy, count)
        step(batch, count)
        weights.append([weight.copy() for weight in model.get_weights()])
    return weights


@same_training.judge
def _(weights: Any) -> None:
    alone, optimizer = reference(seed=1)
    for count, after in zip(BATCHES, weights, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(alone, count))
        optimizer.apply(tape.gradient(loss, alone.trainable_variables), alone.trainable_variables)
        difference = largest_difference(after, alone.get_weights())
        expect(difference < 1e-5, f"after a batch of {count} a weight is {difference:.1e} from what one device gets")


UNEVEN = (5, 2)  # batches of `whole_loss`: shares of 2, 2 and 1, then of 1, 1 and 0


@check("the loss of a step is the mean over the whole batch", "the replicas have returned their parts of it")
def whole_loss(work: ModuleType) -> object:
    strategy = strategy_of("CPU:0", "CPU:1", "CPU:2")
    with strategy.scope():
        model, optimizer = reference(seed=1)
    step, losses, weights = work.make_train_step(strategy, model, optimizer), [], []
    for count in UNEVEN:
        weights.append([weight.copy() for weight in model.get_weights()])
        (batch,) = distributed(strategy, count)
        losses.append(float(step(batch, count)))
    return losses, weights


@whole_loss.judge
def _(seen: Any) -> None:
    model, _ = reference(seed=1)
    for count, found, weights in zip(UNEVEN, *seen, strict=True):
        model.set_weights([np.array(weight) for weight in weights])
        wanted = float(np.mean(losses_of(model, count)))
        told = f"the mean over {count} examples on 3 devices is {wanted:.4f}, and the step returns {found:.4f}"
        expect(abs(found - wanted) < 1e-5, told)


@check("every test example counts the same", "shares of 4 and 3: is the mean of two accuracies the accuracy?")
def uneven_shares(work: ModuleType) -> object:
    strategy = two()
    with strategy.scope():
        model, _ = reference(seed=2)
    answers = np.argmax(model(IMAGES[:7]), axis=1)
    labels = np.where(np.arange(7) < 4, answers, answers + 1) % 10  # the first share is right, the second wrong
    examples = tf.data.Dataset.from_tensor_slices((IMAGES[:7], labels.astype(np.int64)))
    return float(work.evaluate(strategy, model, strategy.experimental_distribute_dataset(examples.batch(7))))


@uneven_shares.judge
def _(found: Any) -> None:
    expect(abs(found - 4 / 7) < 1e-6, f"4 of 7 are right, and the accuracy was told as {found:.4f}")
