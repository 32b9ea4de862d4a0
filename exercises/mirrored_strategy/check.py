"""Checks of mirrored_strategy."""

import contextlib
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
    (kind, count), wanted = seen, tf.distribute.MirroredStrategy.__name__
    signature = "which strategy does the signature name?"
    expect(kind == wanted, f"the strategy: yours {kind}, wanted {wanted}", hint=signature)
    expect(count == 2, f"replicas on 2 devices: yours {count}, wanted 2")


@check("the first GPUs are used, if there are any", "which names do you pass? without names it takes all devices")
def some_devices(work: ModuleType) -> object:
    names, given = ["CPU:0", "GPU:0", "GPU:1", "GPU:2", "GPU:3"], []

    def listed(device_type: str = "") -> list[tf.config.LogicalDevice]:
        found = (name for name in names if name.startswith(device_type))
        return [tf.config.LogicalDevice(f"/device:{name}", name[:3]) for name in found]

    def make(devices: list[str] | None = None, *_: object, **__: object) -> None:
        given.extend(devices or [])

    with (
        mock.patch.multiple(tf.config, list_physical_devices=listed, list_logical_devices=listed),
        mock.patch.object(tf.distribute, "MirroredStrategy", make),
    ):
        work.make_strategy(3)
    return given


@some_devices.judge
def _(devices: Any) -> None:
    found = [name.upper().rpartition("/")[2].removeprefix("DEVICE:") for name in devices]
    wanted = ["GPU:0", "GPU:1", "GPU:2"]
    expect(found == wanted, f"3 devices on a machine with 4 GPUs: yours {found}, wanted {wanted}")


def settings(optimizer: tf.keras.Optimizer) -> dict[str, Any]:
    values = {**optimizer.get_config(), "name": type(optimizer).__name__}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


@check(
    "the optimizer is as described, and each device has a copy of all variables",
    "where does a variable learn that it is to be mirrored, and when?",
)
def mirrored(work: ModuleType) -> object:
    strategy = two()
    model, optimizer = work.make_model(strategy, (3,))
    copies = [
        [len(strategy.experimental_local_results(variable.value)) for variable in variables]
        for variables in (model.trainable_variables, optimizer.variables)
    ]
    return copies, *map(settings, (optimizer, tf.keras.optimizers.SGD(work.LEARNING_RATE, momentum=0.9)))


@mirrored.judge
def _(seen: Any) -> None:
    (of_model, of_optimizer), found, wanted = seen
    for name, right in wanted.items():
        told = f"the optimizer's {name} on 2 devices: yours {found.get(name)}, wanted {right}"
        expect(found.get(name) == right, told, hint="what does the docstring say? print optimizer.get_config()")
    for name, copies in (("model", of_model), ("optimizer", of_optimizer)):
        expect(set(copies) == {2}, f"copies of the {name}'s variables on 2 devices: yours {copies}, wanted 2 of each")
    expect(len(of_optimizer) > 2, "the optimizer has no momenta", hint="when does an optimizer make its variables?")


@check("the devices' shares together are the batch that was asked for", "which batch size is used, and whose is it?")
def global_batch(work: ModuleType) -> object:
    strategy = two()

    def dealt(size: int) -> list[Any]:
        batches = work.make_batches(strategy, IMAGES, np.arange(20), size, shuffled=False)
        return [strategy.experimental_local_results(labels) for _, labels in batches]

    found = {8: dealt(8)}
    with contextlib.suppress(ValueError):  # get_per_replica_batch_size refuses it
        found[5] = dealt(5)
    return found


@global_batch.judge
def _(found: Any) -> None:
    for size, batches in ((int(size), batches) for size, batches in found.items()):
        told = f"20 examples, {size} to a batch, on 2 devices: yours"
        numbers = [number for batch in batches for number in sorted(sum(batch, []))]
        order = "not shuffled, and the last batch may be smaller: which example comes when, and how often?"
        expect(numbers == list(range(20)), f"{told} {numbers}, wanted 0 to 19", hint=order)
        shares = [[len(share) for share in batch] for batch in batches]
        wanted = [min(size, 20 - first) for first in range(0, 20, size)]
        expect([sum(batch) for batch in shares] == wanted, f"{told} {shares}, wanted batches of {wanted}")
        wanted, split = [size // 2, size - size // 2], "what makes shares of a batch, as even as can be?"
        expect(sorted(shares[0]) == wanted, f"{told} shares of {shares[0]}, wanted {wanted}", hint=split)


BATCHES = (6, 5)  # of `same_training`: shares of 3 and 3, then of 3 and 2


@check("two devices train as one does", "what is a replica's part of a mean over 5 examples, if it has 3 of them?")
def same_training(work: ModuleType) -> object:
    strategy = two()
    with strategy.scope():
        model, optimizer = reference(seed=1)
    step, weights = work.make_train_step(strategy, model, optimizer), []
    for count in BATCHES:
        (batch,) = distributed(strategy, count)
        step(batch, count)
        weights.append([weight.copy() for weight in model.get_weights()])
    return weights, int(optimizer.iterations.numpy())


@same_training.judge
def _(seen: Any) -> None:
    weights, updates = seen
    again = "how often does replica_step run for a batch?"
    expect(
        updates == len(BATCHES), f"updates in {len(BATCHES)} steps: yours {updates}, wanted {len(BATCHES)}", hint=again
    )
    alone, optimizer = reference(seed=1)
    for count, after in zip(BATCHES, weights, strict=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses_of(alone, count))
        optimizer.apply(tape.gradient(loss, alone.trainable_variables), alone.trainable_variables)
        difference = largest_difference(after, alone.get_weights())
        expect(difference < 1e-5, f"after a batch of {count} a weight is {difference:.1e} from what one device gets")


UNEVEN = (5, 2)  # batches of `whole_loss`: shares of 2, 2 and 1, then of 1, 1 and 0


@check(
    "the loss of a step is the mean over the whole batch",
    "the replicas have returned their parts: what becomes of them?",
)
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
        told = f"the mean loss of {count} examples on 3 devices: yours {found:.4f}, wanted {wanted:.4f}"
        expect(np.isfinite(found), told, hint="what does a replica return if its share is empty?")
        expect(abs(found - wanted) < 1e-5, told)


@check("every test example counts the same", "shares of 4 and 3: what do your two numbers count?")
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
    expect(abs(found - 4 / 7) < 1e-6, f"the accuracy if 4 of 7 are right: yours {found:.4f}, wanted {4 / 7:.4f}")
