"""Mistakes that the checks of mirrored_strategy must reject."""

from exercises.checking import Wrong

LOSS = "            loss = tf.reduce_sum(losses) / count\n"

WRONG = [
    Wrong(
        "one device for all",
        "        cpu = tf.config",
        "        return tf.distribute.MirroredStrategy(['CPU:0'])\n        cpu = tf.config",
        "replicas",
    ),
    Wrong("two devices, however many are asked for", "[:num_devices]", "[:2]", "some_devices"),
    Wrong("all devices, however many are asked for", "[:num_devices]", "", "some_devices"),
    Wrong(
        "a rate for each replica's own batch",
        "SGD(LEARNING_RATE, momentum=0.9)",
        "SGD(LEARNING_RATE * strategy.num_replicas_in_sync, momentum=0.9)",
        "described",
    ),
    Wrong("another optimizer", "SGD(LEARNING_RATE, momentum=0.9)", "Adam(LEARNING_RATE)", "described"),
    Wrong(
        "a replica's mean, weighed: not a number where it has no example",
        LOSS,
        "            loss = tf.reduce_mean(losses) * tf.cast(tf.size(losses), tf.float32) / count\n",
        "whole_loss",
    ),
    Wrong(
        "twice the mean of the parts: right for two devices",
        '        return strategy.reduce("SUM", replica_losses, axis=None)\n',
        '        return 2 * strategy.reduce("MEAN", replica_losses, axis=None)\n',
        "whole_loss",
    ),
    Wrong("the model outside of the scope", "    with strategy.scope():\n", "    if True:\n", "mirrored"),
    Wrong("the optimizer built too late", "        optimizer.build(model.trainable_variables)\n", "", "mirrored"),
    Wrong(
        "per-replica instead of global batch",
        "examples.batch(batch_size)",
        "examples.batch(batch_size * strategy.num_replicas_in_sync)",
        "global_batch",
    ),
    Wrong(
        "a share of the batch cut up once more",
        "examples.batch(batch_size)",
        "examples.batch(batch_size // strategy.num_replicas_in_sync)",
        "global_batch",
    ),
    Wrong("the mean of the replica's own losses", LOSS, "            loss = tf.reduce_mean(losses)\n", "same_training"),
    Wrong(
        "scaling the loss twice",
        LOSS,
        "            loss = tf.reduce_sum(losses) / count / strategy.num_replicas_in_sync\n",
        "same_training",
    ),
    Wrong(
        "averaging averages: right where the shares are equal",
        LOSS,
        "            loss = tf.reduce_mean(losses) / strategy.num_replicas_in_sync\n",
        "same_training",
    ),
    Wrong(
        "the mean of parts that are to be added up",
        '        return strategy.reduce("SUM", replica_losses, axis=None)\n',
        '        return strategy.reduce("MEAN", replica_losses, axis=None)\n',
        "whole_loss",
    ),
    Wrong(
        "averaging averages in evaluation",
        '        return strategy.reduce("SUM", correct, axis=None), strategy.reduce("SUM", count, axis=None)\n',
        '        return strategy.reduce("MEAN", correct / count, axis=None) * 100, 100\n',
        "uneven_shares",
    ),
]
