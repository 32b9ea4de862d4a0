"""`--strategy pipeline` in TensorFlow: a network in two stages, each with its variables and work on one device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from common.spec.networks import NetworkSpec
from common.spec.options import TrainConfig
from tf_impl.networks import cross_entropy
from tf_impl.optimizer import Optimizer
from tf_impl.parallel import device_names
from tf_impl.weights import keras_name

Shares = tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]


@contextmanager
def layers_placed(spec: NetworkSpec, config: TrainConfig) -> Iterator[None]:
    """Places the variables of layers that are made inside the context on the device of their stage."""
    devices, names = device_names(config), [keras_name(layer) for layer in spec.activations]
    cut = names.index(keras_name(spec.end_of_first_stage)) + 1
    device_of = dict.fromkeys(names[:cut], devices[0]) | dict.fromkeys(names[cut:], devices[1])

    def create(make: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        layer = tf.get_current_name_scope().rpartition("/")[2]  # Keras opens a scope for each layer
        with tf.device(device_of[layer]) if layer in device_of else nullcontext():
            return make(**options)

    with tf.variable_creator_scope(create):
        yield


class Stages:
    """A network in two stages that is called like a single network."""

    def __init__(self, network: keras.Model, spec: NetworkSpec, config: TrainConfig) -> None:
        self.config, self.devices = config, device_names(config)
        self.variable_dtype = network.variable_dtype
        activations = network.get_layer(keras_name(spec.end_of_first_stage)).output
        # With dropout, layers of both stages use the visits, which follow the images in the inputs.
        self.first = keras.Model(network.inputs, activations)
        self.second = keras.Model([activations, *network.inputs[1:]], network.outputs[0])
        for stage, device in zip((self.first, self.second), self.devices, strict=True):
            assert all(variable.value.device.endswith(device) for variable in stage.variables), (
                "a variable is not on its device"
            )

    def __call__(self, inputs: Any, training: bool) -> tf.Tensor:
        images, *visits = tf.nest.flatten(inputs)
        with tf.device(self.devices[0]):
            activations = self.first([images, *visits], training=training)
        with tf.device(self.devices[1]):
            return self.second([activations, *visits], training=training)

    def forward_backward(self, optimizer: Optimizer, inputs: Any, labels: tf.Tensor, count: tf.Tensor) -> Shares:
        """The loss, its gradients (scaled in float16) and the number of correct answers, as in train.py."""

        def in_parts(number: int) -> Shares:
            """Computes the parts one after the other; a stage that has finished a part may begin the next one."""
            with tf.device(self.devices[0]):
                parts = [tf.split(tensor, number) for tensor in tf.nest.flatten(inputs)]
            with tf.device(self.devices[1]):
                parts.append(tf.split(labels, number))
            shares = [self.one_part(optimizer, part, count) for part in zip(*parts, strict=True)]
            losses, gradients, correct = zip(*shares, strict=True)
            return (
                sum_of_shares(losses),
                [sum_of_shares(parts) for parts in zip(*gradients, strict=True)],
                sum_of_shares(correct),
            )

        number = self.config.microbatches
        if number == 1:
            return in_parts(1)
        return tf.cond(tf.size(labels) % number == 0, lambda: in_parts(number), lambda: in_parts(1))

    def one_part(self, optimizer: Optimizer, part: tuple[tf.Tensor, ...], count: tf.Tensor) -> Shares:
        """Computes one part. Each stage has its own tape: `gradient` computes on the device where it is called."""
        images, *visits, labels = part
        with tf.device(self.devices[0]), tf.GradientTape() as first:
            activations = self.first([images, *visits], training=True)
        with tf.device(self.devices[1]):
            with tf.GradientTape() as second:
                second.watch(activations)
                logits = self.second([activations, *visits], training=True)
                logits = tf.cast(logits, self.variable_dtype)
                losses = cross_entropy(labels, logits, self.config.label_smoothing)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=count)
                scaled_loss = optimizer.scale_loss(loss)
            variables = self.second.trainable_variables
            of_activations, *of_second = second.gradient(scaled_loss, [activations, *variables])
            correct = tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels)
        with tf.device(self.devices[0]):
            of_first = first.gradient(activations, self.first.trainable_variables, output_gradients=of_activations)
        return loss, [*of_first, *of_second], correct


def sum_of_shares(parts: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """The sum, computed on the device of the parts."""
    with tf.device(parts[0].device):
        return tf.add_n(parts)
