"""Proof that the lockstep tests can fail: they detect and locate mistakes that are put into a copy of the code."""

import pytest
from agreement import COLOURS
from conftest import changed_code, compare, each_mistake, train

from comparison.lockstep import find_departure

# Settings that reveal mistakes: incomplete last batches, several epochs, a learning rate that changes.
SIZES = ("--precision", 64, "--train-size", 340, "--batch-size", 16, "--epochs", 3)
PLAIN = (
    *(*SIZES, "--save-first-batch", "true"),
    *("--schedule", "cosine", "--warmup-steps", 10, "--nesterov", "true", "--weight-decay", 1e-3),
)
RULE = (*SIZES, "--optimizer")
FIRST = ("--save-first-batch", "true", "--learning-rate", 0.01)
DRAWN = (
    *(*COLOURS, *FIRST, "--train-size", 95, "--batch-size", 10, "--epochs", 2, "--seed", 2**40 + 3),
    *("--model", "mnist_dropout", "--random-crop", 2, "--horizontal-flip", "true"),
)
RESNET8 = (*COLOURS, *FIRST, "--model", "resnet8", "--train-size", 95, "--batch-size", 10, "--epochs", 1)
# An epoch has 8 steps. Where 3 batches are accumulated, the last step has only 2.
STEPS = (*COLOURS, "--train-size", 91, "--epochs", 2, "--learning-rate", 0.02, "--gradient-clip-val", 0.7)
CLIPPED = (*STEPS, "--batch-size", 12)
ACCUMULATED = (
    *(*STEPS, "--model", "mnist_dropout", "--momentum", 0.8),
    *("--batch-size", 4, "--accumulate-grad-batches", 3),
)
TWO, THREE = ("--devices", 2), ("--devices", 3)
RESNET8_ON_TWO, SYNCHRONISED = (*RESNET8, *TWO), (*RESNET8, "--sync-batchnorm", "true")
FSDP, PIPELINE = (*TWO, "--strategy", "fsdp"), ("--strategy", "pipeline", "--microbatches", 2)

SLOTS = "        slots, rate = self.slots_of(variable), ops.cast(learning_rate, variable.dtype)\n"
KERAS_RULE = """\
        momentum, velocity = ops.cast(self.rule.momentum, variable.dtype), slots[0]
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

FIRST_UPDATE = "the first after an update: suspect the gradients or the update rule"
# name: (implementation, options, its further options, file, the code as it is, with the mistake, what is said of it; if
# nothing stands there, a step is named)
MUTATIONS = {
    "an extra ReLU": (
        *("tf", PLAIN, (), "networks/cnn/tf.py"),
        'Dense(num_classes, name="dense2")',
        'Dense(num_classes, activation="relu", name="dense2")',
        *("first batch: activation.dense2 differs", "the layers before it agree"),
    ),
    "a wrong padding": (
        *("pt", PLAIN, (), "networks/cnn/pt.py"),
        'nn.Conv2d(32, 64, 3, padding="same")',
        'nn.Conv2d(32, 64, 3, padding="same", padding_mode="replicate")',
        *("first batch: activation.conv2 differs", "the layers before it agree"),
    ),
    "another flatten order": (
        *("tf", PLAIN, (), "networks/cnn/tf.py"),
        'layers.Flatten(name="flatten")',
        'layers.Permute((3, 1, 2)), layers.Flatten(name="flatten")',
        *("first batch: activation.flatten differs", "the layers before it agree"),
    ),
    "weights loaded in another flatten order": (
        *("ptl", PLAIN, (), "pt_impl/weights.py"),
        "array = array.reshape(*parameter.flattened, -1).transpose(2, 0, 1, 3).reshape(array.shape)",
        "pass",
        *("first batch: activation.dense1 differs", "the layers before it agree"),
    ),
    "the mean of the replicas' means": (
        *("pt", PLAIN, THREE, "pt_impl/train.py"),
        "loss = criterion(logits, labels) / count",
        "loss = criterion(logits, labels) / max(len(labels), 1) / 3",
        *("first batch: all activations agree", "suspect the loss or the backward pass"),
    ),
    "gradients averaged over the replicas": (
        *("ptl", PLAIN, TWO, "ptl_impl/train.py"),
        "factor = self.trainer.world_size * self.trainer.accumulate_grad_batches",
        "factor = self.trainer.accumulate_grad_batches",
        *("first batch: all activations agree, but gradient.", "suspect the loss or the backward pass"),
    ),
    "a loss of one replica told for that of all": (
        *("keras", PLAIN, TWO, "keras_impl/train.py"),
        'return tf.distribute.get_replica_context().all_reduce(SUM, {"loss": loss, "correct": correct})',
        'return {"loss": loss, "correct": correct}',
        "step 1 of 66",
    ),
    "the order of examples not renewed each epoch": (
        *("tf", PLAIN, (), "tf_impl/data.py"),
        "epoch_order(self.experiment.config.seed, epoch + 1,",
        "epoch_order(self.experiment.config.seed, 1,",
        *("step 23 of 66 (epoch 2)", "the first of its epoch: suspect the order of examples"),
    ),
    "set_epoch forgotten": (
        *("pt", PLAIN, TWO, "pt_impl/train.py"),
        "parts.train_batches.sampler.set_epoch(epoch)",
        "pass",
        *("step 23 of 66 (epoch 2)", "the first of its epoch: suspect the order of examples"),
    ),
    "a loader whose sampler Lightning does not find": (
        *("ptl", PLAIN, (), "ptl_impl/data.py"),
        "return self.train_loader",
        "return DataLoader(list(self.train_loader), batch_size=None)",
        *("step 23 of 66 (epoch 2)", "the first of its epoch: suspect the order of examples"),
    ),
    "padded evaluation": (
        *("pt", PLAIN, TWO, "pt_impl/data.py"),
        "        ShardSampler(test_size,",
        "        Padded(test_size,",
        *("evaluation after epoch 1: test_count is 355 and 356", "suspect how the test set is sharded, padded"),
    ),
    "a last batch weighted as a full one": (
        *("tf", PLAIN, (), "tf_impl/train.py"),
        "loss = tf.nn.compute_average_loss(losses_of(labels, logits), global_batch_size=count)",
        "loss = tf.nn.compute_average_loss(losses_of(labels, logits), global_batch_size=16)",
        *("step 22 of 66 (epoch 1)", "incomplete last one, 4 of 16 examples", "how an incomplete batch is weighted"),
    ),
    "the weights of a full batch for the last one": (
        *("keras", PLAIN, (), "keras_impl/data.py"),
        "1 / tf.cast(count, DTYPES[experiment.config.precision])",
        "tf.constant(1 / 16, DTYPES[experiment.config.precision])",
        *("step 22 of 66 (epoch 1)", "incomplete last one, 4 of 16 examples", "how an incomplete batch is weighted"),
    ),
    "Keras's momentum rule under a changing rate": (
        *("tf", PLAIN, (), "tf_impl/rules.py"),
        SLOTS,
        SLOTS + KERAS_RULE,
        *("step 3 of 66 (epoch 1)", "the learning rate has changed by then: suspect the update rule: momentum"),
    ),
    "a momentum of 0.85 instead of 0.9": (
        *("pt", PLAIN, (), "pt_impl/optimizer.py"),
        "momentum=rule.momentum",
        "momentum=0.85",
        *("step 2 of 66 (epoch 1)", "the first after an update: suspect the gradients or the update rule"),
    ),
    "weight decay left out": (
        *("ptl", PLAIN, (), "pt_impl/optimizer.py"),
        '"weight_decay": rule.weight_decay',
        '"weight_decay": 0.0',
        *("step 2 of 66 (epoch 1)", "the first after an update: suspect the gradients or the update rule"),
    ),
    "padding that counts": (
        *("jax", PLAIN, TWO, "jax_impl/data.py"),
        "weights = real / bounds[:, 0, 2:]",
        "weights = np.ones_like(real) / bounds[:, 0, 2:]",
        *("step 22 of 66 (epoch 1)", "incomplete last one, 4 of 16 examples", "how an incomplete batch is weighted"),
    ),
    "optax's own rate": (
        *("jax", PLAIN, (), "jax_impl/optimizer.py"),
        "lambda step: rates[step]",
        "lambda step: rates[step + 1]",
        *("step 2 of 66 (epoch 1)", "the first after an update: suspect the gradients or the update rule"),
    ),
    "answers taken for correct in training": (
        *("tf", PLAIN, (), "tf_impl/train.py"),
        "return loss, gradients, tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)",
        "return loss, gradients, tf.size(labels, tf.int64)",
        *("epoch 1: train_accuracy is 0.", " and 1.0", "how correct answers are counted in training"),
    ),
    "images cut to float32 at the input": (
        *("tf", PLAIN, (), "tf_impl/networks.py"),
        "keras.config.set_floatx(DTYPES[config.precision])",
        "keras.config.set_floatx('float32')",
        "first batch: activation.conv1 differs",
    ),
    # --- Update rules and label smoothing ---
    "Keras's place of epsilon in Adam": (
        *("tf", (*RULE, "adam"), (), "tf_impl/rules.py"),
        "return mean / first / (root + rule.epsilon)",
        "return mean / first / (root + rule.epsilon / ops.sqrt(second))",
        FIRST_UPDATE,
    ),
    "decay added to the gradient in AdamW": (
        *("tf", (*RULE, "adamw"), (), "tf_impl/rules.py"),
        "decoupled = isinstance(rule, rules.AdamW)",
        "decoupled = False",
        FIRST_UPDATE,
    ),
    "Adadelta's numbers exchanged": (
        *("tf", (*RULE, "adadelta"), (), "tf_impl/rules.py"),
        "ops.sqrt(slots[1] + rule.epsilon) / ops.sqrt(square + rule.epsilon)",
        "ops.sqrt(slots[1] + rule.epsilon) / ops.sqrt(slots[0] + rule.epsilon)",
        FIRST_UPDATE,
    ),
    "labels smoothed over the other classes": (
        *("tf", (*RULE, "adam", "--label-smoothing", 0.1), (), "tf_impl/networks.py"),
        "(1 - smoothing) + smoothing / classes",
        "(1 - smoothing) + smoothing / (classes - 1)",
        "the first, before any update: suspect initial weights, the first batch, the network or the loss",
    ),
    # --- Dropout and augmentation ---
    "PyTorch's own dropout": (
        *("pt", DRAWN, (), "pt_impl/networks.py"),
        "return x * (kept if x.ndim == 2 else kept.permute(0, 3, 1, 2)) * self.scale",
        "return nn.functional.dropout(x, self.threshold / RATE_RESOLUTION)",
        "first batch: activation.dropout1 differs",
    ),
    "the same values dropped in every epoch": (
        *("tf", DRAWN, (), "tf_impl/randomness.py"),
        "visits & WORD_MASK, shifted_right(visits)",
        "visits & WORD_MASK, shifted_right(visits) * 0 + 1",
        "the first of its epoch: suspect the order of examples or their random draws",
    ),
    "draws by the place in the shard": (
        *("keras", DRAWN, TWO, "tf_impl/data.py"),
        "return (images, visits) if self.experiment.network.drops else images",
        "return (images, tf.range(tf.size(visits, tf.int64))) if self.experiment.network.drops else images",
        "first batch: activation.dropout1 differs",
    ),
    "one crop for a whole batch": (
        *("ptl", DRAWN, (), "pt_impl/data.py"),
        "augment(images, visits, self.augmentation)",
        "augment(images, visits[:1].expand(len(visits)), self.augmentation)",
        "first batch: the network's input differs",
    ),
    "mirrored after the crop": (
        *("tf", DRAWN, (), "tf_impl/data.py"),
        "columns = columns + shifted_right(horizontal * (2 * pad + 1))",
        "columns = columns + 2 * pad - shifted_right(horizontal * (2 * pad + 1))",
        "first batch: the network's input differs",
    ),
    # --- Batch normalisation ---
    "Keras's running variance": (
        *("tf", RESNET8, (), "tf_impl/networks.py"),
        "unbiased = variance * count / ops.maximum(count - 1, 1)",
        "unbiased = variance",
        "evaluation after epoch 1: test_loss is",
    ),
    "each replica's own statistics": (
        *("pt", RESNET8_ON_TWO, (), "pt_impl/train.py"),
        "        share_statistics(network)\n",
        "        pass\n",
        "evaluation after epoch 1: test_loss is",
    ),
    "a variance that is not synchronised": (
        *("pt", SYNCHRONISED, TWO, "pt_impl/networks.py"),
        "variance = all_reduce(centred.square().sum((0, 2, 3))) / count",
        "variance = centred.square().mean((0, 2, 3))",
        "first batch: activation.bn1 differs",
    ),
    "a gradient that is not synchronised": (
        *("ptl", SYNCHRONISED, TWO, "pt_impl/networks.py"),
        "mean = all_reduce(images.sum((0, 2, 3))) / count",
        "mean = ((own := images.sum((0, 2, 3))) + (all_reduce(own) - own).detach()) / count",
        "suspect the loss or the backward pass",
    ),
    "statistics of the whole batch": (
        *("jax", RESNET8_ON_TWO, (), "jax_impl/networks.py"),
        "1 if config.sync_batchnorm else config.num_shards",
        "1",
        "first batch: activation.bn1 differs",
    ),
    "padding that is normalised": (
        *("jax", RESNET8_ON_TWO, (), "jax_impl/networks.py"),
        "counted = run.real.astype(self.dtype)",
        "counted = jnp.ones(len(x), self.dtype)",
        "step 10 of 10",
    ),
    "another epsilon": (
        *("keras", RESNET8, (), "networks/resnet/tf.py"),
        "epsilon=1e-5",
        "epsilon=1e-3",
        "first batch: activation.bn1 differs",
    ),
    # --- Clipped gradients and accumulated batches ---
    "each replica's gradients clipped by themselves": (
        *("tf", CLIPPED, TWO, "tf_impl/optimizer.py"),
        "sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)",
        "sums = gradients",
    ),
    "gradients clipped one by one": (
        *("pt", CLIPPED, (), "pt_impl/parallel.py"),
        "nn.utils.clip_grad_norm_(model.parameters(), largest_norm)",
        "[nn.utils.clip_grad_norm_([one], largest_norm) for one in model.parameters()]",
    ),
    "Lightning's mean over the accumulated batches": (
        *("ptl", ACCUMULATED, (), "ptl_impl/train.py"),
        "factor = self.trainer.world_size * self.trainer.accumulate_grad_batches",
        "factor = self.trainer.world_size",
    ),
    "gradients that are not forgotten": (
        *("tf", ACCUMULATED, TWO, "tf_impl/optimizer.py"),
        "total.assign(tf.zeros_like(total))",
        "total.assign(tf.zeros_like(total) + 0.01 * total)",
    ),
    "each batch with a weight of its own": (
        *("pt", ACCUMULATED, (), "common/spec/batches.py"),
        "np.minimum(self.examples_per_step, self.train_size - step * self.examples_per_step)[:, None]",
        "rows[:, :, 2] * self.accumulate_grad_batches",
    ),
    # --- Sharded weights, and networks in two stages ---
    "PyTorch's average of the shares": (
        *("pt", CLIPPED, FSDP, "pt_impl/train.py"),
        "scaler.scale(loss * config.num_shards)",
        "scaler.scale(loss)",
    ),
    "gradients that are never added up": (
        *("pt", ACCUMULATED, FSDP, "pt_impl/parallel.py"),
        "model.set_requires_gradient_sync(True)",
        "pass",
    ),
    "a last batch that is not added up": (
        *("ptl", ACCUMULATED, FSDP, "ptl_impl/sharding.py"),
        "last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0 or self.trainer.is_last_batch",
        "last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0",
    ),
    "the mean over the microbatches": (
        *("pt", CLIPPED, PIPELINE, "pt_impl/pipeline.py"),
        "scale_grads=False",
        "scale_grads=True",
    ),
    "each stage's gradients clipped by themselves": (
        *("ptl", CLIPPED, PIPELINE, "pt_impl/parallel.py"),
        "norm = sum_over_replicas(own.square()).sqrt()",
        "norm = own",
    ),
    "a first stage that learns from nothing": (
        *("tf", CLIPPED, PIPELINE, "tf_impl/pipeline.py"),
        "output_gradients=of_activations",
        "output_gradients=tf.ones_like(of_activations)",
    ),
    "the parts' gradients, but of the last one only": (
        *("tf", CLIPPED, PIPELINE, "tf_impl/pipeline.py"),
        "[sum_of_shares(parts) for parts in zip(*gradients, strict=True)]",
        "list(gradients[-1])",
    ),
}
QUICK = {
    *("an extra ReLU", "the mean of the replicas' means", "padded evaluation", "optax's own rate"),
    *("the order of examples not renewed each epoch", "a last batch weighted as a full one"),
    *("Keras's momentum rule under a changing rate", "answers taken for correct in training"),
    *("images cut to float32 at the input", "Keras's running variance"),
    *("the same values dropped in every epoch", "the mean over the microbatches"),
}


def make_mutant(folder, mutation):
    """Makes a copy of the code with the mistake."""
    file, before, after = MUTATIONS[mutation][3:6]
    path = changed_code(folder, file, before, after) / file
    if "Padded" in after:
        path.write_text(path.read_text() + PADDED)


@each_mistake(MUTATIONS, lambda name: name in QUICK)
def test_each_mistake_is_caught_and_pointed_at(trained, tmp_path, mutation):
    implementation, options, more, _, _, _, *said = MUTATIONS[mutation]
    make_mutant(tmp_path / "copy", mutation)
    mutant = train(implementation, tmp_path / "run", *options, *more, cwd=tmp_path / "copy")
    message = find_departure(trained("pt", *options), mutant, 1e-10)
    assert message is not None, "not caught"
    assert all(text in message for text in said or ["step "]), message


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    ["padding that counts", "gradients averaged over the replicas", "the weights of a full batch for the last one"],
)
def test_compare_calls_a_mistake_a_different_training(tmp_path, mutation):
    """Only the proof, in 64 bits, can find the mistake: the runs compute in half precision, which hides it."""
    implementation, _, devices, _, _, _, *said = MUTATIONS[mutation]
    make_mutant(tmp_path / "copy", mutation)
    sound = "pt" if implementation == "keras" else "tf"
    # The last batch has 5 examples, some for each replica. TensorFlow fails on some processors if a replica has none.
    options = ("--train-size", 341, "--batch-size", 16, "--epochs", 3, "--nesterov", "true", "--weight-decay", 1e-3)
    options = ("--implementations", sound, implementation, *devices, *options, "--precision", "bf16-mixed")
    _, rows = compare(tmp_path / "r", *options, cwd=tmp_path / "copy", expect=1)
    assert [row["status"] for row in rows] == ["ok", "different training"] and rows[1]["ratio"] == ""
    # The proof takes other steps than the runs of the other tests: only the step numbers in its message differ.
    words = [word.replace("4 of 16", "5 of 16") for word in said if "step" not in word]
    assert all(word in rows[1]["note"] for word in words), rows[1]["note"]


@pytest.mark.slow
def test_the_layer_is_named_where_the_first_row_is_wrong(tmp_path):
    implementation, _, _, _, _, _, *said = MUTATIONS["an extra ReLU"]
    make_mutant(tmp_path / "copy", "an extra ReLU")
    options = ("--implementations", implementation, "jax", "--train-size", 341)
    _, rows = compare(tmp_path / "r", *options, cwd=tmp_path / "copy", expect=1)
    assert [row["status"] for row in rows] == ["different training", "not proved"], rows
    assert all(word in rows[0]["note"] for word in said), rows[0]["note"]


@pytest.mark.slow
def test_compare_accuses_nobody_without_a_mistake(tmp_path):
    names = ("--implementations", "tf", "keras", "pt", "ptl", "--mode", "plain", "tuned", "--devices", 2)
    options = (*names, "--epochs", 3, "--max-steps", 30, "--train-size", 340, "--batch-size", 16)
    compare(tmp_path / "r", *options, timeout=1200)
