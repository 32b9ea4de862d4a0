"""The port to Keras. Comments stand where its defaults are not PyTorch's."""

import keras
from keras import layers


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """`image_shape`: height, width, channels. The network takes images (n, height, width, channels) to logits."""
    images = keras.Input(image_shape)
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(images)
    x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)  # defaults: 0.99, 0.001
    x = layers.ReLU()(x)
    x = layers.ZeroPadding2D(1)(x)  # with strides, "same" would pad the far sides only
    x = layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    shortcut = x
    x = layers.Conv2D(32, 3, padding="same")(x)
    x = layers.ReLU()(layers.Add()([shortcut, x]))
    x = layers.Dropout(0.25)(layers.GlobalAveragePooling2D()(x))
    x = layers.Dense(64, activation="gelu")(x)
    return keras.Model(images, layers.Dense(num_classes)(x))
