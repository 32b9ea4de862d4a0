"""The port to Flax NNX. Comments stand where its defaults are not PyTorch's."""

import jax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, channels: int, num_classes: int, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(channels, 16, (3, 3), use_bias=False, rngs=rngs)
        self.norm1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)  # default: 0.99
        self.conv2 = nnx.Conv(16, 32, (3, 3), strides=2, padding=1, rngs=rngs)  # "SAME" would pad the far sides only
        self.conv3 = nnx.Conv(32, 32, (3, 3), rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.dense1 = nnx.Linear(32, 64, rngs=rngs)
        self.dense2 = nnx.Linear(64, num_classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm1(self.conv1(images)))
        x = nnx.relu(self.conv2(x))
        x = nnx.relu(x + self.conv3(x))
        x = self.dropout(x.mean((1, 2)))
        return self.dense2(nnx.gelu(self.dense1(x), approximate=False))  # default: True


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> nnx.Module:
    """`image_shape`: height, width, channels. The network takes images (n, height, width, channels) to logits."""
    return Network(image_shape[2], num_classes, nnx.Rngs(0))
