import numpy as np
import pytest
import tensorflow as tf

from exercises.conftest import check_near

# The CPU must be split before TensorFlow first uses it. A work may then ask for the same three devices again.
(CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 3)
STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
IMAGES, LABELS = np.random.default_rng(0).standard_normal((20, 3), dtype=np.float32), np.arange(20) % 10


def make_model():
    tf.keras.utils.set_random_seed(1)
    with STRATEGY.scope():
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(10)])
        optimizer = tf.keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def one_batch(labels):
    examples = tf.data.Dataset.from_tensor_slices((IMAGES[: len(labels)], labels))
    return STRATEGY.experimental_distribute_dataset(examples.batch(len(labels)))


def test_replicas(work, monkeypatch):
    """a replica for each device: the first GPUs, if there are any"""
    assert work.make_strategy(3).num_replicas_in_sync == 3, "replicas on 3 devices: tf.config can list logical devices"
    devices = [tf.config.LogicalDevice(f"/device:{kind}:{n}", kind) for kind in ("CPU", "GPU") for n in range(4)]
    for function in "list_physical_devices", "list_logical_devices":
        monkeypatch.setattr(tf.config, function, lambda kind="": [device for device in devices if kind in device.name])
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda devices=(), **_: devices)
    hint = "3 devices on a machine with 4 GPUs: which names do you pass? without names it takes all devices"
    assert [name.upper()[-5:] for name in work.make_strategy(3)] == ["GPU:0", "GPU:1", "GPU:2"], hint


def test_mirrored(work):
    """the optimizer is as described, and each device has a copy of all variables"""
    model, optimizer = work.make_model(STRATEGY, (3,))
    config = optimizer.get_config()
    found = (type(optimizer).__name__, round(config["learning_rate"], 6), config.get("momentum"))
    assert found == ("SGD", work.LEARNING_RATE, 0.9), "the optimizer on 3 devices: what does the docstring say?"
    variables = model.trainable_variables + optimizer.variables
    copies = [len(STRATEGY.experimental_local_results(variable.value)) for variable in variables]
    hint = "copies of the model's 4 variables and the optimizer's 6, with its momenta: where and when are they created?"
    assert copies == [3] * 10, hint


def test_global_batch(work):
    """the devices' shares together are the batch that was asked for"""
    batches = work.make_batches(STRATEGY, IMAGES, np.arange(20), 9, shuffled=False)
    shares = [[share.numpy().tolist() for share in STRATEGY.experimental_local_results(y)] for _, y in batches]
    hint = "the devices' shares of two batches of 9 examples: does the strategy split batches, or combine them?"
    assert [[len(share) for share in batch] for batch in shares[:2]] == [[3, 3, 3]] * 2, hint
    numbers = [number for batch in shares for number in sorted(sum(batch, []))]
    assert numbers == list(range(20)), "all examples, not shuffled: which one comes when, and how often?"


def test_same_training(work):
    """three devices train as one does, and the loss is the mean over the whole batch"""
    model, optimizer = make_model()
    step, alone = work.make_train_step(STRATEGY, model, optimizer), [tf.Variable(x) for x in model.get_weights()]
    for count in (6, 5, 2):  # shares of 2, 2 and 2, then of 2, 2 and 1, then of 1, 1 and 0
        with tf.GradientTape() as tape:
            logits = IMAGES[:count] @ alone[0] + alone[1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS[:count], logits))
        for weight, gradient in zip(alone, tape.gradient(loss, alone)):
            weight.assign_sub(0.5 * gradient)
        (found,) = [float(step(batch, count)) for batch in one_batch(LABELS[:count])]
        hint = f"what is a replica's part of a mean over {count} examples, if it has 2 of them, or none?"
        right = [weight.numpy() for weight in alone]
        check_near(f"a weight after a batch of {count}", model.get_weights(), right, hint, limit=1e-5)
        hint = f"the loss of a batch of {count}: the replicas have returned their parts; what becomes of them?"
        assert found == pytest.approx(float(loss), abs=1e-5), hint


def test_accuracy(work):
    """every test example counts the same"""
    model, _ = make_model()
    answers = np.argmax(model(IMAGES[:7]), axis=1)
    found = work.evaluate(STRATEGY, model, one_batch((answers + [0, 0, 0, 0, 1, 1, 1]) % 10))
    hint = "4 of 7 answers are right, on devices with 3 or fewer examples each: what do your two numbers count?"
    assert found == pytest.approx(4 / 7, abs=1e-6), hint
