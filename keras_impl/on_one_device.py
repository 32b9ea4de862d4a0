"""Keras on PyTorch and on JAX: the tutorial, compile and fit, on one device."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from common.backend import Backend
from common.data.formats import Images
from common.experiment import Experiment
from common.platform.errors import UserError
from common.platform.launch import Launch
from common.record.recorder import Recorder
from common.resolve import AutoSettings, resolve_devices, resolve_settings
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE, epoch_order
from common.spec.options import TrainConfig
from common.spec.randomness import Integers, positions, visits
from keras_impl.tutorial import StepTotals, compile_options
from tf_impl.networks import DTYPES, make_network
from tf_impl.rules import RuleOptimizer
from tf_impl.state import get_state, set_state
from tf_impl.weights import get_weights, load_weights

# --- Data: arrays of floats, as fit takes them ---


def prepare_images(
    experiment: Experiment, images: Images, visits: Integers, augmentation: Augmentation | None = None
) -> Any:
    """Inputs of the network, see `Batch`, as arrays of floats; augmented if there is an augmentation."""
    dataset, dtype = experiment.dataset, DTYPES[experiment.config.precision]
    shift, scale = dataset.shift.astype(dtype), dataset.scale.astype(dtype)
    if augmentation:
        inputs = augmentation(images, visits, dataset.shift, dataset.scale).astype(dtype)
    else:
        inputs = (images.astype(dtype) - shift) * scale
    return [inputs, visits] if experiment.network.drops else inputs


def target_labels(experiment: Experiment, labels: Any) -> Any:
    """The labels, one-hot if they are smoothed."""
    one_hot = np.eye(experiment.network.num_classes, dtype="float32")
    return one_hot[labels] if experiment.config.label_smoothing else labels


def train_arrays(experiment: Experiment, epoch: int) -> tuple[Any, NDArray[Any]]:
    """Inputs and labels of an epoch, counted from 0, in the order in which they are trained on."""
    config, dataset, plan = experiment.config, experiment.dataset, experiment.plan
    whole = visits(epoch + 1, epoch_order(config.seed, epoch + 1, plan.train_size))
    # Not all batches: a training may begin within an epoch, and --max-steps leaves out batches before the last one.
    order = np.concatenate([whole[start:stop] for start, stop, _ in plan.shards(epoch + 1, 1)[:, 0]])
    images, labels = dataset.train_images[positions(order)], dataset.train_labels[positions(order)]
    return prepare_images(experiment, images, order, experiment.augmentation), target_labels(experiment, labels)


def predict(experiment: Experiment, network: keras.Model) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    config, images = experiment.config, experiment.dataset.test_images
    inputs = prepare_images(experiment, images, np.zeros(len(images), np.int64))
    logits = network.predict(inputs, batch_size=EVAL_BATCH_SIZE, verbose=0)
    return np.asarray(logits, DTYPES[config.precision])


# --- Steps: fit's own. This callback reports them to the recorder ---


class Recording(keras.callbacks.Callback):
    """Reports what Keras's metrics say, which sum over the examples since the start of the epoch."""

    def __init__(self, recorder: Recorder, state_after: Any) -> None:
        """`state_after`: number of steps -> the state after them."""
        super().__init__()
        self.recorder, self.state_after = recorder, state_after

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.recorder.start_epoch()
        self.totals, self.in_epoch = StepTotals(), epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        recorder = self.recorder
        recorder.step(*self.totals.step(logs, recorder.plan.count(recorder.steps_done + 1)))
        recorder.offer_state(self.state_after)
        if recorder.steps_done == recorder.plan.last_step(self.in_epoch + 1):  # the plan counts epochs from 1
            recorder.end_training()

    def on_test_begin(self, logs: Any = None) -> None:
        self.recorder.start_evaluation()

    def on_test_end(self, logs: Any = None) -> None:
        count = len(self.recorder.experiment.dataset.test_labels)
        self.recorder.end_epoch(float(logs["loss_sum"]), round(float(logs["accuracy"]) * count), count)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.recorder.offer_state(self.state_after)


# --- Loop: fit, which calls the methods above ---


def train(experiment: Experiment, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, dataset, plan = experiment.config, experiment.dataset, experiment.plan
    model = make_network(experiment.network, config)
    load_weights(model, experiment.first_weights)
    optimizer = RuleOptimizer(experiment.update_rule)
    optimizer.build(model.trainable_variables)
    if experiment.state:
        set_state(experiment, model, optimizer)
    test_inputs = prepare_images(experiment, dataset.test_images, np.arange(len(dataset.test_images)))
    recording = Recording(recorder, functools.partial(get_state, experiment, model, optimizer))
    model.compile(optimizer=optimizer, **compile_options(experiment))
    # A call for each epoch, instead of Keras's shuffling: the arrays are in the order of common/spec.
    for epoch in range(plan.epochs_done, plan.num_epochs):
        model.fit(
            *train_arrays(experiment, epoch),
            batch_size=config.batch_size,
            shuffle=False,
            initial_epoch=epoch,
            epochs=epoch + 1,
            validation_data=(test_inputs, target_labels(experiment, dataset.test_labels)),
            validation_batch_size=EVAL_BATCH_SIZE,
            callbacks=[recording],
        )

    recorder.save_predictions(predict(experiment, model))
    packages = ("keras", keras.backend.backend())
    recorder.finish(get_weights(model), packages=packages, peak_memory=None, skipped_steps=None)


# --- What `common/` asks of a framework ---


if keras.backend.backend() == "torch":
    import torch

    from pt_impl.backend import Torch as Library
    from pt_impl.replicas import setup_replica_process

    CUDA, count_gpus = torch.version.cuda, torch.cuda.device_count

    def setup_process(config: TrainConfig) -> None:
        setup_replica_process(config)
        torch.set_default_device("cuda" if config.accelerator == "gpu" else "cpu")

else:
    from jax_impl.backend import Jax as Library
    from jax_impl.replicas import count_gpus, cuda_version, setup_process

    CUDA = cuda_version()


class KerasOnOneDevice(Backend):
    name = f"keras_{keras.backend.backend()}"
    device_name, ran_out_of_memory = Library.device_name, Library.ran_out_of_memory

    def resolve(self, config: TrainConfig) -> TrainConfig:
        for option, asked in (
            ("--accumulate-grad-batches", config.accumulate_grad_batches > 1),
            ("--precision 16-mixed", config.precision == "16-mixed"),
            ("--save-first-batch true", config.save_first_batch),
        ):
            if asked:
                raise UserError(
                    f"{option}: {self.title} does not have it; Keras on TensorFlow or another framework may"
                )
        num_gpus = 0 if config.accelerator == "cpu" else count_gpus()
        config = resolve_devices(config, self.title, num_gpus, Launch.read(), (), CUDA)
        return resolve_settings(config, AutoSettings())

    def join(self, experiment: Experiment, launch: Launch) -> None:
        setup_process(experiment.config)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, recorder)

    def fetch(
        self, steps: list[tuple[Any, Any]], numbers: list[float]
    ) -> tuple[Sequence[tuple[float, float]], list[float]]:
        """Keras has fetched the numbers already, in the only process."""
        return steps, numbers

    def synchronize(self) -> None:
        """Nothing to wait for: after each step, the callback has fetched its loss."""

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        self.join(experiment, Launch.read())
        network = make_network(experiment.network, experiment.config)
        load_weights(network, experiment.initial_weights)
        return predict(experiment, network)


BACKEND = KerasOnOneDevice()
