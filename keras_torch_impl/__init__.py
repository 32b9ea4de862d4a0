"""The training in Keras on PyTorch: compile() and fit()."""

import os

os.environ["KERAS_BACKEND"] = "torch"
