"""Other right answers that the checks of mirrored_strategy must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "no sharding of the data set",
        "    return strategy.experimental_distribute_dataset(examples.batch(batch_size))\n",
        "    options = tf.data.Options()\n"
        "    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF\n"
        "    return strategy.experimental_distribute_dataset(examples.batch(batch_size).with_options(options))\n",
    ),
]
