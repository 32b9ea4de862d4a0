"""Other right answers that the checks of mirrored_strategy must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "each replica's batches from a function",
        "    return strategy.experimental_distribute_dataset(examples.batch(batch_size))\n",
        "    return strategy.distribute_datasets_from_function(\n"
        "        lambda context: examples.batch(context.get_per_replica_batch_size(batch_size)))\n",
    ),
    Right(
        "Keras's average over the whole batch",
        "            loss = tf.reduce_sum(losses) / count\n",
        "            loss = tf.nn.compute_average_loss(losses, global_batch_size=tf.cast(count, tf.int32))\n",
    ),
    Right(
        "the replicas' parts, added up by hand",
        '        return strategy.reduce("SUM", replica_losses, axis=None)\n',
        "        return tf.add_n(strategy.experimental_local_results(replica_losses))\n",
    ),
    Right(
        "no sharding of the data set",
        "    return strategy.experimental_distribute_dataset(examples.batch(batch_size))\n",
        "    options = tf.data.Options()\n"
        "    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF\n"
        "    return strategy.experimental_distribute_dataset(examples.batch(batch_size).with_options(options))\n",
    ),
]
