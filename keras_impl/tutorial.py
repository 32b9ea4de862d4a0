"""What Keras's own documentation teaches, on every backend: `compile` with a loss and metrics.

The page, as of Keras 3.15, is "Simple MNIST convnet" (examples/vision/mnist_convnet.py in keras-team/keras-io).
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from common.experiment import Experiment
from tf_impl.networks import DTYPES, Losses, make_losses


class TotalMetric(keras.metrics.Metric):
    """The sum of a number of each example since the start of the epoch, in 64 bits.

    Keras's own mean of the loss, in 32 bits, does not give the loss of a single step.
    """

    def __init__(self, name: str, of_examples: Callable[[Any, Any], Any]) -> None:
        """`of_examples`: from labels and logits to a number for each example, (n,)."""
        super().__init__(name=name, dtype="float64")
        self.of_examples = of_examples
        self.total = self.add_variable((), "zeros", dtype="float64", name="total")

    def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.sum(ops.cast(self.of_examples(labels, logits), "float64")))

    def result(self) -> Any:
        return self.total.value * 1  # a number, also where the variable has a value for each replica


class StepTotals:
    """Loss and correct answers of single steps, from what the metrics have summed up since the start of the epoch."""

    def __init__(self) -> None:
        self.count, self.loss_sum, self.correct = 0, 0.0, 0

    def step(self, logs: Any, count: int, num_replicas: int = 1) -> tuple[float, int]:
        """The mean loss of a step of `count` examples, and its correct answers; `logs`: means over the replicas."""
        before = self.loss_sum, self.correct
        self.count += count
        self.loss_sum = float(logs["smoothed_loss_sum" if "smoothed_loss_sum" in logs else "loss_sum"]) * num_replicas
        self.correct = round(float(logs["accuracy"]) * self.count)
        return (self.loss_sum - before[0]) / count, self.correct - before[1]


class LossOf(keras.losses.Loss):
    """The loss that a function computes. `reduction`: of the losses of a batch, as Keras names it."""

    def __init__(self, losses_of: Losses, dtype: str, reduction: str) -> None:
        super().__init__(reduction=reduction, dtype=dtype)
        self.losses_of = losses_of

    def call(self, labels: Any, logits: Any) -> Any:
        return self.losses_of(class_labels(labels), logits)


def make_loss(experiment: Experiment, reduction: str = "sum_over_batch_size") -> keras.losses.Loss:
    """The cross-entropy, or the loss of a user's network."""
    spec, smoothing, dtype = experiment.network, experiment.config.label_smoothing, DTYPES[experiment.config.precision]
    if spec.loss_in("tf"):
        return LossOf(make_losses(spec), dtype, reduction)
    options = {"from_logits": True, "reduction": reduction, "dtype": dtype}
    if smoothing:
        return keras.losses.CategoricalCrossentropy(label_smoothing=smoothing, **options)
    return keras.losses.SparseCategoricalCrossentropy(**options)


def make_mean_loss(experiment: Experiment) -> keras.losses.Loss:
    """The mean of a batch's losses. On PyTorch, Keras divides their sum in 32 bits, whatever the dtype."""
    if keras.backend.backend() != "torch":
        return make_loss(experiment)
    losses_of = make_losses(experiment.network, experiment.config.label_smoothing)
    dtype = DTYPES[experiment.config.precision]
    return LossOf(lambda labels, logits: losses_of(labels, logits) / labels.shape[0], dtype, "sum")


def compile_options(experiment: Experiment) -> dict[str, Any]:
    """The options of `compile`: loss and metrics."""
    config = experiment.config
    dtype, smoothing = DTYPES[config.precision], config.label_smoothing
    losses_of, smoothed = make_losses(experiment.network), make_losses(experiment.network, smoothing)

    def total(name: str, losses_of: Losses) -> TotalMetric:
        return TotalMetric(name, lambda labels, logits: losses_of(class_labels(labels), ops.cast(logits, dtype)))

    # The totals are for the recorder; an evaluation's losses are not smoothed.
    metrics = ["accuracy", total("loss_sum", losses_of), *([total("smoothed_loss_sum", smoothed)] if smoothing else [])]
    return {"loss": make_mean_loss(experiment), "metrics": metrics, "jit_compile": config.compile or "auto"}


def class_labels(labels: Any) -> Any:
    """int64 (n,): the labels, which are one-hot for smoothing."""
    return ops.argmax(labels, axis=1) if len(labels.shape) == 2 else ops.cast(labels, "int64")
