"""The same network in Keras, with one layer of its own."""

import keras
from keras import layers


class Scale(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:], initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


def make_network(image_shape, num_classes):
    images = keras.Input(image_shape)
    left = layers.Conv2D(6, 3, padding="same", activation="tanh")(images)
    right = layers.LeakyReLU(0.1)(layers.Conv2D(6, 3, padding="same")(images))
    x = layers.Concatenate()([right, left])
    x = layers.SeparableConv2D(8, 3, padding="same")(x)
    x = layers.AveragePooling2D(3, 2, padding="same")(x)
    x = layers.Conv2D(8, 3, padding="same", dilation_rate=2, groups=2)(x)
    x = layers.Activation("silu")(layers.GroupNormalization(4, epsilon=1e-5)(x))
    x = layers.MaxPooling2D(2)(layers.Conv2DTranspose(8, 2, strides=2)(x))
    tokens = layers.Reshape((-1, 8))(x)
    tokens = Scale()(layers.LayerNormalization(epsilon=1e-5)(tokens))
    tokens = tokens + layers.MultiHeadAttention(2, 4)(tokens, tokens)
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(tokens)))
