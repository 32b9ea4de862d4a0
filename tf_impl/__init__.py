"""The training in TensorFlow: Keras layers, a written-out loop, tf.distribute.MirroredStrategy."""
