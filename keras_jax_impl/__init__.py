"""The training in Keras on JAX: compile() and fit()."""

import os

os.environ["KERAS_BACKEND"] = "jax"
