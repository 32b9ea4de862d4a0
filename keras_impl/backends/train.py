"""Training in Keras on another backend than TensorFlow: compile and fit; laid out like keras_impl/train.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from numpy.typing import NDArray

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.state import TrainState
from keras_impl.backends.inspection import predict
from keras_impl.backends.optimizer import Optimizer
from keras_impl.backends.tutorial import StepTotals
from tf_impl.weights import get_weights

Arrays = tuple[Any, NDArray[Any]]  # inputs of the network, see `Batch`, and labels, as fit takes them


@dataclass(frozen=True)
class Parts:
    """What is trained and evaluated; made by `make_parts` (keras_impl/backends/parts.py).

    Attributes:
      model: the network, as fit trains it.
      compile_options, fit_options: more options for `model.compile` and `model.fit`.
      train_arrays: an epoch, counted from 0 -> its examples in the order in which they are trained on.
      get_state: number of steps -> the state after them.
    """

    model: keras.Model
    optimizer: Optimizer
    compile_options: dict[str, Any]
    fit_options: dict[str, Any]
    train_arrays: Callable[[int], Arrays]
    test_arrays: Arrays
    get_state: Callable[[int], TrainState]


# --- Steps: fit's own. This callback reports them to the recorder ---


class Recording(keras.callbacks.Callback):
    """Reports what Keras's metrics say, which sum over the examples since the start of the epoch."""

    def __init__(self, recorder: Recorder, get_state: Callable[[int], TrainState]) -> None:
        super().__init__()
        self.recorder, self.get_state = recorder, get_state

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.recorder.start_epoch()
        self.totals, self.in_epoch = StepTotals(), epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        recorder = self.recorder
        recorder.step(*self.totals.step(logs, recorder.plan.count(recorder.steps_done + 1)))
        recorder.offer_state(self.get_state)
        if recorder.steps_done == recorder.plan.last_step(self.in_epoch + 1):  # the plan counts epochs from 1
            recorder.end_training()

    def on_test_begin(self, logs: Any = None) -> None:
        self.recorder.start_evaluation()

    def on_test_end(self, logs: Any = None) -> None:
        count = len(self.recorder.experiment.dataset.test_labels)
        self.recorder.end_epoch(float(logs["loss_sum"]), round(float(logs["accuracy"]) * count), count)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.recorder.offer_state(self.get_state)


# --- Loop: fit, which calls the methods above ---


def train(experiment: Experiment, parts: Parts, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    parts.model.compile(optimizer=parts.optimizer, **parts.compile_options)
    # A call for each epoch, instead of Keras's shuffling: the arrays are in the order of common/spec.
    for epoch in range(plan.epochs_done, plan.num_epochs):
        parts.model.fit(
            *parts.train_arrays(epoch),
            batch_size=config.batch_size,
            shuffle=False,
            initial_epoch=epoch,
            epochs=epoch + 1,
            validation_data=parts.test_arrays,
            validation_batch_size=EVAL_BATCH_SIZE,
            callbacks=[Recording(recorder, parts.get_state)],
            **parts.fit_options,
        )

    recorder.save_predictions(predict(experiment, parts.model))
    packages = ("keras", keras.backend.backend())
    recorder.finish(get_weights(parts.model), packages=packages, peak_memory=None, skipped_steps=None)
