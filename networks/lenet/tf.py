"""LeNet in Keras."""

import keras
from keras import layers


def make_network(image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(image_shape),
            layers.Conv2D(20, 5, padding="valid", activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(50, 5, padding="valid", activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),  # height, width, channel
            layers.Dense(500, activation="relu", name="dense1"),
            layers.Dense(num_classes, name="dense2"),
        ]
    )
