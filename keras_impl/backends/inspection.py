"""The predictions of a trained network in Keras, on any backend."""

from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from common.data.formats import Images
from common.experiment import Experiment
from common.spec.augmentation import Augmentation
from common.spec.batches import EVAL_BATCH_SIZE
from common.spec.randomness import Integers
from tf_impl.networks import DTYPES


def prepare(experiment: Experiment, images: Images, visits: Integers, augmentation: Augmentation | None = None) -> Any:
    """Inputs of the network, see `Batch`, as arrays of floats; augmented if there is an augmentation."""
    dataset, dtype = experiment.dataset, DTYPES[experiment.config.precision]
    shift, scale = dataset.shift.astype(dtype), dataset.scale.astype(dtype)
    if augmentation:
        inputs = augmentation(images, visits, dataset.shift, dataset.scale).astype(dtype)
    else:
        inputs = (images.astype(dtype) - shift) * scale
    return [inputs, visits] if experiment.network.drops else inputs


def predict(experiment: Experiment, network: keras.Model) -> NDArray[np.floating]:
    """float (n, classes): logits for the whole test set, in its own order."""
    config, images = experiment.config, experiment.dataset.test_images
    inputs = prepare(experiment, images, np.zeros(len(images), np.int64))
    logits = network.predict(inputs, batch_size=EVAL_BATCH_SIZE, verbose=0)
    return np.asarray(logits, DTYPES[config.precision])
