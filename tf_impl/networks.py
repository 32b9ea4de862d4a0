"""The networks in Keras. Its layouts are the canonical ones: NHWC images, HWIO kernels, (in, out) dense."""

import keras
from keras import layers

from common.spec.networks import NetworkSpec
from common.spec.options import Precision
from tf_impl.precision import DTYPES, POLICIES


def make_network(spec: NetworkSpec, precision: Precision) -> keras.Model:
    """The network of `spec`: normalised images (N, H, W, C) to logits (N, classes), in that precision."""
    keras.config.set_dtype_policy(POLICIES[precision])
    images = keras.Input(spec.image_shape, dtype=DTYPES[precision])  # the policy leaves inputs at float32
    return {"cnn": make_cnn, "lenet": make_lenet}[spec.name](spec, images)


def make_cnn(spec: NetworkSpec, images: keras.KerasTensor) -> keras.Model:
    return keras.Sequential(
        [
            images,
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(64, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),  # height, width, channel
            layers.Dense(128, activation="relu", name="dense1"),
            layers.Dense(spec.num_classes, name="dense2"),
        ]
    )


def make_lenet(spec: NetworkSpec, images: keras.KerasTensor) -> keras.Model:
    return keras.Sequential(
        [
            images,
            layers.Conv2D(20, 5, padding="valid", activation="relu", name="conv1"),
            layers.MaxPooling2D(2, name="pool1"),
            layers.Conv2D(50, 5, padding="valid", activation="relu", name="conv2"),
            layers.MaxPooling2D(2, name="pool2"),
            layers.Flatten(name="flatten"),  # height, width, channel
            layers.Dense(500, activation="relu", name="dense1"),
            layers.Dense(spec.num_classes, name="dense2"),
        ]
    )
