"""The training in JAX: Flax NNX, optax, a written-out loop, data parallelism by sharding arrays over a mesh."""

import os

# Otherwise JAX takes most of a GPU as soon as it looks for one, and programs that train in turns with it find little.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
