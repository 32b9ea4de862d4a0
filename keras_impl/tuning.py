"""The additions of `--mode tuned` in Keras: the same training, but faster. train.py is complete without this file.

The settings that are left at auto are TensorFlow's (tf_impl/precision.py), except that the data stay on the host: see
backend.py.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.experiment import Experiment
from common.spec.batches import Plan
from keras_impl import data
from keras_impl.data import WeightedBatch
from keras_impl.train import Classifier, Recording
from tf_impl.data import Shards

# After every step fit usually calls its callbacks and fetches their numbers; here, once for up to this many steps.
MOST_STEPS = 10


def steps_per_execution(plan: Plan) -> int:
    """MOST_STEPS, or fewer if `--max-steps` would end the last epoch within a call: fit stops after a whole call."""
    last = plan.steps(plan.num_epochs)
    left = len(last) if last.stop - 1 < plan.num_epochs * plan.steps_per_epoch else 0
    return next(steps for steps in range(MOST_STEPS, 0, -1) if left % steps == 0)


class LatestSteps(keras.metrics.Metric):
    """One number for each of the latest `size` steps; the number of step s (from 0) is at index s % size."""

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
    """The same steps, several in one call. fit gives callbacks what the last step returns: the latest numbers."""

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.latest = {name: LatestSteps(self.steps_per_execution, name) for name in ("loss", "correct")}

    def train_step(self, data: WeightedBatch) -> dict[str, tf.Tensor]:
        step = tf.identity(self.optimizer.iterations)
        for name, value in super().train_step(data).items():
            self.latest[name].update_state(step, value)
        return {name: latest.result() for name, latest in self.latest.items()}


class TunedRecording(Recording):
    """Reports several steps to the recorder at once."""

    def record_steps(self, logs: Any) -> None:
        done, size = self.recorder.steps_done, self.model.steps_per_execution
        steps = range(done, min(done + size, self.recorder.plan.last_step(self.epoch + 1)))
        losses, correct = (np.ravel(logs[name])[[step % size for step in steps]] for name in ("loss", "correct"))
        self.recorder.step(losses, correct, len(steps))


def make_dataset(experiment: Experiment, batches: Shards) -> tf.data.Dataset:
    """The plain mode's dataset without tf.data's autotuning, which has nothing to tune here.

    At the end of every epoch, when an iterator ends, fit would wait for the autotuning thread.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.make_dataset(experiment, batches).with_options(options)
