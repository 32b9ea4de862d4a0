"""Residual networks in Keras, with torchvision's names.

An underscore stands for each dot, which Keras on PyTorch refuses.
"""

import keras
from keras import layers

Tensor = keras.KerasTensor


def normalised(x: Tensor, conv: str, norm: str, filters: int, size: int, stride: int = 1) -> Tensor:
    # Pads with zeros on each side, as PyTorch does. With a stride of 2, padding "same" would pad on one side only.
    if size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    x = layers.Conv2D(filters, size, stride, use_bias=False, name=conv)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=norm)(x)  # PyTorch's defaults


def basic_block(x: Tensor, name: str, filters: int, stride: int, projected: bool) -> Tensor:
    shortcut = x
    if projected:
        shortcut = normalised(x, f"{name}_downsample_0", f"{name}_downsample_1", filters, 1, stride)
    x = layers.ReLU()(normalised(x, f"{name}_conv1", f"{name}_bn1", filters, 3, stride))
    x = normalised(x, f"{name}_conv2", f"{name}_bn2", filters, 3)
    return layers.Activation("relu", name=name)(layers.Add()([x, shortcut]))


def bottleneck_block(x: Tensor, name: str, filters: int, stride: int, projected: bool) -> Tensor:
    shortcut = x
    if projected:
        shortcut = normalised(x, f"{name}_downsample_0", f"{name}_downsample_1", 4 * filters, 1, stride)
    x = layers.ReLU()(normalised(x, f"{name}_conv1", f"{name}_bn1", filters, 1))
    x = layers.ReLU()(normalised(x, f"{name}_conv2", f"{name}_bn2", filters, 3, stride))
    x = normalised(x, f"{name}_conv3", f"{name}_bn3", 4 * filters, 1)
    return layers.Activation("relu", name=name)(layers.Add()([x, shortcut]))


STAGES = {  # number of blocks, filters and stride of each
    8: [(1, 16, 1), (1, 32, 2), (1, 64, 2)],
    18: [(2, 64, 1), (2, 128, 2), (2, 256, 2), (2, 512, 2)],
    50: [(3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)],
}


def make_network(image_shape: tuple[int, int, int], num_classes: int, size: int = 8) -> keras.Model:
    """`size`: 8, 18 or 50 layers with weights."""
    images, stages, large = keras.Input(image_shape), STAGES[size], size == 50
    filters = stages[0][1]
    x = layers.ReLU()(normalised(images, "conv1", "bn1", filters, 7 if large else 3, 2 if large else 1))
    if large:
        # Padding with zeros does not change the maxima: after a ReLU no value is below zero.
        x = layers.MaxPooling2D(3, 2, name="maxpool")(layers.ZeroPadding2D(1)(x))
    block = bottleneck_block if large else basic_block
    for number, (blocks, filters, stride) in enumerate(stages, 1):
        x = block(x, f"layer{number}_0", filters, stride, projected=large or stride > 1)
        for index in range(1, blocks):
            x = block(x, f"layer{number}_{index}", filters, 1, projected=False)
    x = layers.GlobalAveragePooling2D(name="avgpool")(x)
    return keras.Model(images, layers.Dense(num_classes, name="fc")(x))
