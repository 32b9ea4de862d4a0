"""The training in TensorFlow: Keras layers, a written-out loop, MirroredStrategy or a pipeline on several devices."""

import os

# Hides most of TensorFlow's notes on CPU instructions and missing GPUs. Its errors are raised as exceptions anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
