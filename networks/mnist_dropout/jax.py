"""The network of the usual course script in Flax NNX."""

from functools import partial

import jax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, rngs: nnx.Rngs) -> None:
        height, width, channels = image_shape
        self.conv1 = nnx.Conv(channels, 32, (3, 3), padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), padding="VALID", rngs=rngs)
        self.pool = partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.flatten = partial(jax.lax.collapse, start_dimension=1)  # height, width, channel
        self.dense1 = nnx.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)
        self.dense2 = nnx.Linear(128, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv1(x))
        x = self.pool(nnx.relu(self.conv2(x)))
        x = self.dropout1(x)
        x = self.flatten(x)
        x = nnx.relu(self.dense1(x))
        return self.dense2(self.dropout2(x))


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nnx.Module:
    return Network(image_shape, num_classes, nnx.Rngs(0))
