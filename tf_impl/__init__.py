"""The training in TensorFlow: Keras layers, a written-out loop, tf.distribute.MirroredStrategy."""

import os

# 3: no notes on CPU instructions and absent GPUs, which would bury the run's own lines; TensorFlow's errors
# come as exceptions all the same. Here, since it must be set before anything imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
