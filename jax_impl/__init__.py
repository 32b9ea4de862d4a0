"""The training in JAX: Flax NNX, optax, a written-out loop, data parallelism by sharding arrays over a mesh."""
