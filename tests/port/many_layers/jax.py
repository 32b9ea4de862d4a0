"""The same network in Flax NNX."""

import jax.numpy as jnp
from flax import nnx


class Network(nnx.Module):
    def __init__(self, channels, num_classes, side, rngs):
        self.left = nnx.Conv(channels, 6, (3, 3), rngs=rngs)
        self.right = nnx.Conv(channels, 6, (3, 3), rngs=rngs)
        self.depthwise = nnx.Conv(12, 12, (3, 3), feature_group_count=12, use_bias=False, rngs=rngs)
        self.pointwise = nnx.Conv(12, 8, (1, 1), rngs=rngs)
        self.grouped = nnx.Conv(8, 8, (3, 3), kernel_dilation=2, feature_group_count=2, rngs=rngs)
        self.norm = nnx.GroupNorm(8, num_groups=4, epsilon=1e-5, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 8, (2, 2), strides=2, padding="VALID", rngs=rngs)
        self.scale = nnx.Param(0.5 * jnp.ones(8))
        self.layer_norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.dense = nnx.Linear(8 * ((side + 1) // 2) ** 2, num_classes, rngs=rngs)

    def __call__(self, x):
        x = jnp.concatenate([nnx.leaky_relu(self.right(x), 0.1), jnp.tanh(self.left(x))], -1)
        x = self.pointwise(self.depthwise(x))
        x = nnx.avg_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)), count_include_pad=False)
        x = nnx.silu(self.norm(self.grouped(x)))
        x = nnx.max_pool(self.up(x), (2, 2), (2, 2))
        tokens = self.layer_norm(x.reshape(len(x), -1, 8)) * self.scale[...]
        tokens = tokens + self.attention(tokens)
        return self.dense(tokens.reshape(len(x), -1))


def make_network(image_shape, num_classes):
    return Network(image_shape[2], num_classes, image_shape[0], nnx.Rngs(0))
