"""Proof that the lockstep tests can fail: they detect and locate mistakes that are put into a copy of the code."""

import re
import sys

import pytest
from conftest import ONE_ROUND, changed_code, copy_code, each_mistake, read_csv, run, train

from comparison.lockstep import find_departure

# Settings that reveal mistakes: a last batch of 4 examples, three epochs, a learning rate that changes.
OPTIONS = [
    *("--train-size", 340, "--batch-size", 16),
    *("--epochs", 3, "--precision", 64, "--save-first-batch", "true"),
    *("--schedule", "cosine", "--warmup-steps", 10, "--nesterov", "true", "--weight-decay", 1e-3),
]

SLOTS = "            slots, rate = self.slots_of(variable), tf.cast(learning_rate, variable.dtype)\n"
KERAS_RULE = """\
            momentum, velocity = tf.cast(self.rule.momentum, variable.dtype), slots[0]
            gradient = gradient + self.rule.weight_decay * variable
            self.assign(velocity, momentum * velocity - rate * gradient)
            self.assign_add(variable, momentum * velocity - rate * gradient if self.rule.nesterov else velocity)
            return
"""
PADDED = """

class Padded(ShardSampler):
    def __init__(self, num_examples: int, batch_size: int, rank: int, num_replicas: int) -> None:
        super().__init__(-(-num_examples // num_replicas) * num_replicas, batch_size, rank, num_replicas)
        self.real = num_examples

    def visits(self) -> torch.Tensor:
        return super().visits() % self.real
"""

# name: (implementation, devices, file, the code as it is, the code with the mistake, what the message must say)
MUTATIONS = {
    "an extra ReLU": (
        *("tf", 1, "tf_impl/networks.py"),
        'Dense(spec.num_classes, name="dense2")',
        'Dense(spec.num_classes, activation="relu", name="dense2")',
        ["first batch: activation.dense2 differs", "the layers before it agree"],
    ),
    "a wrong padding": (
        *("pt", 1, "pt_impl/networks.py"),
        'nn.Conv2d(32, 64, 3, padding="same")',
        'nn.Conv2d(32, 64, 3, padding="same", padding_mode="replicate")',
        ["first batch: activation.conv2 differs", "the layers before it agree"],
    ),
    "another flatten order": (
        *("tf", 1, "tf_impl/networks.py"),
        'layers.Flatten(name="flatten")',
        'layers.Permute((3, 1, 2)), layers.Flatten(name="flatten")',
        ["first batch: activation.flatten differs", "the layers before it agree"],
    ),
    "weights loaded in another flatten order": (
        *("ptl", 1, "pt_impl/weights.py"),
        "array = reorder_first_axis(array, parameter.flattened, (2, 0, 1))",
        "pass",
        ["first batch: activation.dense1 differs", "the layers before it agree"],
    ),
    "the mean of the replicas' means": (
        *("pt", 3, "pt_impl/train.py"),
        'reduction="sum", label_smoothing=config.label_smoothing) / count',
        'reduction="sum", label_smoothing=config.label_smoothing) / max(len(labels), 1) / 3',
        ["step 1 of 66", "suspect initial weights, the first batch, the network or the loss"],
    ),
    "gradients averaged over the replicas": (
        *("ptl", 2, "ptl_impl/train.py"),
        "factor = self.trainer.world_size * self.trainer.accumulate_grad_batches",
        "factor = self.trainer.accumulate_grad_batches",
        ["first batch: all activations agree, but gradient.", "suspect the loss or the backward pass"],
    ),
    "a loss of one replica told for that of all": (
        *("keras", 2, "keras_impl/train.py"),
        'return tf.distribute.get_replica_context().all_reduce(SUM, {"loss": loss, "correct": correct})',
        'return {"loss": loss, "correct": correct}',
        ["step 1 of 66"],
    ),
    "the order of examples not renewed each epoch": (
        *("tf", 1, "tf_impl/data.py"),
        "epoch_order(self.experiment.config.seed, epoch + 1,",
        "epoch_order(self.experiment.config.seed, 1,",
        ["step 23 of 66 (epoch 2)", "the first of its epoch: suspect the order of examples"],
    ),
    "set_epoch forgotten": (
        *("pt", 2, "pt_impl/train.py"),
        "parts.train_batches.sampler.set_epoch(epoch)",
        "pass",
        ["step 23 of 66 (epoch 2)", "the first of its epoch: suspect the order of examples"],
    ),
    "a loader whose sampler Lightning does not find": (
        *("ptl", 1, "ptl_impl/data.py"),
        "return self.train_loader",
        "return DataLoader(list(self.train_loader), batch_size=None)",
        ["step 23 of 66 (epoch 2)", "the first of its epoch: suspect the order of examples"],
    ),
    "padded evaluation": (
        *("pt", 2, "pt_impl/data.py"),
        "        ShardSampler(test_size,",
        "        Padded(test_size,",
        ["evaluation after epoch 1: test_count is 355 and 356", "suspect how the test set is sharded, padded"],
    ),
    "a last batch weighted as a full one": (
        *("tf", 1, "tf_impl/train.py"),
        "loss = tf.nn.compute_average_loss(losses, global_batch_size=count)",
        "loss = tf.nn.compute_average_loss(losses, global_batch_size=16)",
        ["step 22 of 66 (epoch 1)", "incomplete last one, 4 of 16 examples", "how an incomplete batch is weighted"],
    ),
    "the weights of a full batch for the last one": (
        *("keras", 1, "keras_impl/data.py"),
        "1 / tf.cast(count, DTYPES[experiment.config.precision])",
        "tf.constant(1 / 16, DTYPES[experiment.config.precision])",
        ["step 22 of 66 (epoch 1)", "incomplete last one, 4 of 16 examples", "how an incomplete batch is weighted"],
    ),
    "Keras's momentum rule under a changing rate": (
        *("tf", 1, "tf_impl/optimizer.py"),
        SLOTS,
        SLOTS + KERAS_RULE,
        ["step 3 of 66 (epoch 1)", "the learning rate has changed by then: suspect the update rule: momentum"],
    ),
    "a momentum of 0.85 instead of 0.9": (
        *("pt", 1, "pt_impl/optimizer.py"),
        "momentum=rule.momentum",
        "momentum=0.85",
        ["step 2 of 66 (epoch 1)", "the first after an update: suspect the gradients or the update rule"],
    ),
    "weight decay left out": (
        *("ptl", 1, "pt_impl/optimizer.py"),
        '"weight_decay": rule.weight_decay',
        '"weight_decay": 0.0',
        ["step 2 of 66 (epoch 1)", "the first after an update: suspect the gradients or the update rule"],
    ),
    "padding that counts": (
        *("jax", 2, "jax_impl/data.py"),
        "(real / bounds[:, 0, 2:])",
        "(np.ones_like(real) / bounds[:, 0, 2:])",
        ["step 22 of 66 (epoch 1)", "incomplete last one, 4 of 16 examples", "how an incomplete batch is weighted"],
    ),
    "optax's own rate": (
        *("jax", 1, "jax_impl/optimizer.py"),
        "lambda step: rates[step]",
        "lambda step: rates[step + 1]",
        ["step 2 of 66 (epoch 1)", "the first after an update: suspect the gradients or the update rule"],
    ),
    "answers taken for correct in training": (
        *("tf", 1, "tf_impl/train.py"),
        "return loss, gradients, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)",
        "return loss, gradients, tf.size(labels, tf.int64)",
        ["epoch 1: train_accuracy is 0.", " and 1.0", "how correct answers are counted in training"],
    ),
    "images cut to float32 at the input": (
        *("tf", 1, "tf_impl/networks.py"),
        "keras.Input(spec.image_shape, dtype=DTYPES[config.precision])",
        "keras.Input(spec.image_shape)",
        ["first batch: activation.conv1 differs"],
    ),
}

FIRST_UPDATE = "the first after an update: suspect the gradients or the update rule"
# Mistakes in the other update rules and in label smoothing: (rule and its options, file, code, mistake, message).
RULE_MUTATIONS = {
    "Keras's place of epsilon in Adam": (
        ("adam",),
        "tf_impl/rules.py",
        "return mean / first / (root + rule.epsilon)",
        "return mean / first / (root + rule.epsilon / ops.sqrt(second))",
        FIRST_UPDATE,
    ),
    "decay added to the gradient in AdamW": (
        ("adamw",),
        "tf_impl/rules.py",
        "decoupled = isinstance(rule, rules.AdamW)",
        "decoupled = False",
        FIRST_UPDATE,
    ),
    "Adadelta's numbers exchanged": (
        ("adadelta",),
        "tf_impl/rules.py",
        "ops.sqrt(slots[1] + rule.epsilon) / ops.sqrt(square + rule.epsilon)",
        "ops.sqrt(slots[1] + rule.epsilon) / ops.sqrt(slots[0] + rule.epsilon)",
        FIRST_UPDATE,
    ),
    "labels smoothed over the other classes": (
        ("adam", "--label-smoothing", 0.1),
        "tf_impl/networks.py",
        "(1 - smoothing) + smoothing / classes",
        "(1 - smoothing) + smoothing / (classes - 1)",
        "the first, before any update: suspect initial weights, the first batch, the network or the loss",
    ),
}

# Mistakes that are made less often: their tests are marked slow.
LONG = {
    "weights loaded in another flatten order",
    "set_epoch forgotten",
    "a loader whose sampler Lightning does not find",
    "weight decay left out",
    "a momentum of 0.85 instead of 0.9",
    "a wrong padding",
    "a loss of one replica told for that of all",
    "gradients averaged over the replicas",
    "the weights of a full batch for the last one",
}


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    return train("pt", tmp_path_factory.mktemp("reference"), *OPTIONS, "--devices", 1)


def make_mutant(folder, mutation):
    """Makes a copy of the code with the mistake; returns the implementation and number of devices that reveal it."""
    implementation, devices, file, before, after, _ = MUTATIONS[mutation]
    path = changed_code(folder, file, before, after) / file
    if "Padded" in after:
        path.write_text(path.read_text() + PADDED)
    return implementation, devices


def train_mutant(folder, mutation):
    implementation, devices = make_mutant(folder, mutation)
    return train(implementation, folder / "run", *OPTIONS, "--devices", devices, cwd=folder)


@each_mistake(MUTATIONS, lambda name: name not in LONG)
def test_each_mistake_is_caught_and_pointed_at(reference, tmp_path, mutation):
    message = find_departure(reference, train_mutant(tmp_path, mutation), 1e-10)
    assert message is not None, "not caught"
    for text in MUTATIONS[mutation][-1]:
        assert text in message, message


@each_mistake(RULE_MUTATIONS, lambda name: "Adam" in name)
def test_each_mistake_in_an_update_rule_is_caught(tmp_path, mutation):
    rule, file, before, after, said = RULE_MUTATIONS[mutation]
    options = ("--train-size", 340, "--batch-size", 16, "--epochs", 3, "--precision", 64, "--optimizer", *rule)
    changed_code(tmp_path / "copy", file, before, after)
    reference = train("pt", tmp_path / "pt", *options)
    mutant = train("tf", tmp_path / "tf", *options, cwd=tmp_path / "copy")
    message = find_departure(reference, mutant, 1e-10)
    assert message is not None and said in message, message


CONTRADICTIONS = {"padded evaluation": 356, "weights loaded in another flatten order": 355}  # test examples counted


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_compare_calls_each_mistake_a_different_training(tmp_path, mutation):
    """Only the proof, in 64 bits, can find the mistake: the runs compute in half precision, which hides it."""
    implementation, devices = make_mutant(tmp_path / "copy", mutation)
    sound = "pt" if implementation in ("tf", "keras") else "tf"
    # The last batch has 5 examples, some for each replica. TensorFlow fails on some processors if a replica has none.
    options = ("--train-size", 341, "--batch-size", 16, "--epochs", 3, "--nesterov", "true", "--weight-decay", 1e-3)
    command = (sys.executable, "compare.py", "--implementations", sound, implementation, "--devices", devices)
    output = tmp_path / "r"
    options += ("--precision", "bf16-mixed", *ONE_ROUND)
    run(*command, *options, "--output-dir", output, cwd=tmp_path / "copy", expect=1)
    rows = read_csv(output / "results.csv")
    if mutation in CONTRADICTIONS:  # the stored predictions contradict the evaluation
        assert [row["status"] for row in rows] == ["ok", "failed"], rows
        said = rf"predictions.safetensors: \d+ of 355 are right, the result says \d+ of {CONTRADICTIONS[mutation]}"
        assert re.search(said, rows[1]["note"]), rows[1]["note"]
        return
    assert [row["status"] for row in rows] == ["ok", "different training"] and rows[1]["ratio"] == ""
    # The proof takes other steps than the runs of the other tests: only the step numbers in its message differ.
    words = [word.replace("4 of 16", "5 of 16") for word in MUTATIONS[mutation][-1] if "step" not in word]
    assert all(word in rows[1]["note"] for word in words), rows[1]["note"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--devices", 2), ("--max-steps", 30, "--train-size", 340, "--batch-size", 16)])
def test_compare_accuses_nobody_without_a_mistake(tmp_path, more):
    names = ("--implementations", "tf", "keras", "pt", "ptl", "--mode", "plain", "tuned")
    options = (*names, "--epochs", 3, *more, *ONE_ROUND)
    run(sys.executable, "compare.py", *options, "--output-dir", tmp_path / "r", timeout=1200)


@pytest.mark.parametrize(
    "implementation", ["tf", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pt", "ptl"))]
)
def test_a_copy_without_a_mistake_is_not_accused(reference, tmp_path, implementation):
    folder = copy_code(tmp_path)
    copied = train(implementation, folder / "run", *OPTIONS, "--devices", 2, cwd=folder)
    assert find_departure(reference, copied, 1e-10) is None


def test_a_run_that_fails_fails_the_test(tmp_path):
    with pytest.raises(AssertionError, match="exit status 1(.|\n)*ZeroDivisionError"):
        folder = changed_code(tmp_path, "pt_impl/train.py", "scaler.step(optimizer)", "1 / 0")
        train("pt", folder / "run", *OPTIONS, cwd=folder)
