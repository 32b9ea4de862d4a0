"""The training in TensorFlow: Keras layers, a written-out loop, MirroredStrategy or a pipeline on several devices."""
