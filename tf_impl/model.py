"""The networks in Keras. Its layouts are the canonical ones: NHWC images, HWIO kernels, (in, out) dense."""

import keras
import tensorflow as tf
from keras import layers

from common.data.datasets import Dataset
from common.spec.networks import ModelSpec, Weights
from common.spec.options import Precision

# Of weights, normalised images and losses; and Keras's name for what the layers compute in.
DTYPES = {"32": "float32", "64": "float64", "bf16-mixed": "float32", "16-mixed": "float32"}
POLICIES = {"32": "float32", "64": "float64", "bf16-mixed": "mixed_bfloat16", "16-mixed": "mixed_float16"}

# --- Input ---


def normalise(images: tf.Tensor, dataset: Dataset, precision: Precision) -> tf.Tensor:
    """uint8 (n, H, W, C) to the network's input, (n, H, W, C) in its precision."""
    shift, scale = (tf.cast(values, DTYPES[precision]) for values in (dataset.shift, dataset.scale))
    return (tf.cast(images, DTYPES[precision]) - shift) * scale


# --- Networks ---


def make_model(spec: ModelSpec, precision: Precision) -> keras.Model:
    """The network of `spec`: normalised images (N, H, W, C) to logits (N, classes), in that precision."""
    keras.config.set_dtype_policy(POLICIES[precision])
    images = keras.Input(spec.image_shape, dtype=DTYPES[precision])  # the policy leaves inputs at float32
    return {"cnn": make_cnn, "lenet": make_lenet}[spec.name](spec, images)


def make_cnn(spec: ModelSpec, images: keras.KerasTensor) -> keras.Model:
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


def make_lenet(spec: ModelSpec, images: keras.KerasTensor) -> keras.Model:
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


# --- Weights: canonical names, canonical layout ---


def load_weights(model: keras.Model, weights: Weights) -> None:
    """Sets every parameter from canonical arrays, cast to the model's precision."""
    for name, variable in named_parameters(model).items():
        variable.assign(weights[name])


def get_weights(model: keras.Model) -> Weights:
    """Canonical name -> array in the model's precision."""
    return {name: variable.numpy() for name, variable in named_parameters(model).items()}


def named_parameters(model: keras.Model) -> dict[str, keras.Variable]:
    """Canonical name -> variable, in the order of `model.trainable_variables`."""
    return {
        f"{layer.name}.{variable.name}": variable for layer in model.layers for variable in layer.trainable_variables
    }
