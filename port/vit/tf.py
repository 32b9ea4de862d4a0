"""The port to Keras. Comments stand where its defaults are not PyTorch's."""

from typing import Any

import keras
from keras import layers

FEATURES, HEADS, BLOCKS = 32, 4, 2


class Positions(layers.Layer):
    def build(self, shape: tuple[int, ...]) -> None:
        self.positions = self.add_weight(shape=(1, *shape[1:]), initializer="zeros", name="positions")

    def call(self, x: Any) -> Any:
        return x + self.positions


def block(x: Any) -> Any:
    y = layers.LayerNormalization(epsilon=1e-5)(x)  # default: 0.001
    x = layers.Add()([x, layers.MultiHeadAttention(HEADS, FEATURES // HEADS)(y, y)])  # the size of one head
    y = layers.Dense(2 * FEATURES)(layers.LayerNormalization(epsilon=1e-5)(x))
    return layers.Add()([x, layers.Dense(FEATURES)(layers.LeakyReLU(0.1)(y))])


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    images = keras.Input(image_shape)
    x = layers.Reshape((-1, FEATURES))(layers.Conv2D(FEATURES, 2, strides=2)(images))
    x = Positions()(x)
    for _ in range(BLOCKS):
        x = block(x)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-5)(x))
    return keras.Model(images, layers.Dense(num_classes)(x))
