"""What `--mode tuned` adds in Keras: faster, and still the same training. train.py alone is complete without it.

Beside each measure stands the gain seen: images per second with it over those without it, for the cnn on digits (batch
32) and for lenet on MNIST (batch 128), by `python -m benchmarks.measures` on the machine of docs/performance.md.

The settings that are left at auto are TensorFlow's (tf_impl/tuning.py), but for the data, which stay on the host: see
launch.py.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.spec.batches import Plan
from keras_impl.data import WeightedBatch
from keras_impl.train import Classifier, Recording

# Between two steps fit calls its callbacks, and fetches what they are given: once for so many steps.
# Gain: 1.32 (digits), 1.10 (MNIST).
MOST_STEPS = 10


def steps_per_execution(plan: Plan) -> int:
    """MOST_STEPS; fewer where `--max-steps` ends the last epoch between two calls: fit stops after a whole one."""
    last = plan.steps(plan.num_epochs)
    left = len(last) if last.stop - 1 < plan.num_epochs * plan.steps_per_epoch else 0
    return next(steps for steps in range(MOST_STEPS, 0, -1) if left % steps == 0)


class Latest(keras.metrics.Metric):
    """A number of each of the latest `size` steps; that of step s (from 0) is at s % size."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(name=name, dtype="float64")
        self.size = size
        self.values = self.add_variable((size,), "zeros", dtype="float64", name="values")

    def update_state(self, step: tf.Tensor, value: tf.Tensor) -> None:
        place, value = tf.cast(step % self.size, tf.int32), tf.cast(value, tf.float64)
        self.values.assign(tf.tensor_scatter_nd_update(self.values, [[place]], [value]))

    def result(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.values)


class TunedClassifier(Classifier):
    """The same steps, several in one call; fit gives callbacks what the last step returns: the latest numbers."""

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.latest = {name: Latest(self.steps_per_execution, name) for name in ("loss", "correct")}

    def train_step(self, data: WeightedBatch) -> dict[str, tf.Tensor]:
        step = tf.identity(self.optimizer.iterations)
        for name, value in super().train_step(data).items():
            self.latest[name].update_state(step, value)
        return {name: latest.result() for name, latest in self.latest.items()}


class TunedRecording(Recording):
    """Tells the recorder of several steps at once."""

    def tell_steps(self, logs: Any) -> None:
        done, size = self.recorder.steps_done, self.model.steps_per_execution
        steps = range(done, min(done + size, self.recorder.plan.last_step(self.epoch + 1)))
        losses, correct = (np.ravel(logs[name])[[step % size for step in steps]] for name in ("loss", "correct"))
        self.recorder.step(losses, correct, len(steps))


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Nothing is left to be tuned, and the thread that would do it is waited for when an iterator ends: every epoch.

    Gain: 1.07 (digits), 1.14 (MNIST).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
