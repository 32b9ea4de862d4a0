"""The training in TensorFlow: Keras layers, a written-out loop, tf.distribute.MirroredStrategy on several devices."""
