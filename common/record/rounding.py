"""How far rounding to 32 bits may change the loss of the first step: a derived bound, not a fitted one.

The bound covers only 32-bit computation. That two runs are the same training is proved in 64 bits, see
`comparison.prove.proof`.
"""

import math

import numpy as np

from common.experiment import Experiment
from common.spec.batches import epoch_order
from common.spec.randomness import visits

UNIT_ROUNDOFF = 2.0**-24  # of float32: half the distance from 1 to the next number
ROUNDING = UNIT_ROUNDOFF / math.sqrt(3)  # standard deviation of a rounding error that is uniform up to UNIT_ROUNDOFF
CONFIDENCE = 5.0  # in standard deviations
MOST_IMAGES = 256  # from which the size of the input is computed


def first_loss_tolerance(experiment: Experiment, loss: float) -> float | None:
    """The largest difference between the first step's loss in 32 bits and in exact arithmetic that rounding explains.

    None if it is unknown: in other precisions, for weights that are not random, and with batch normalisation.

    Rounding errors are assumed to be independent with mean zero (Higham and Mary, "A new approach to probabilistic
    rounding error analysis", 2019). The sum of n of them is then sqrt(n) times as large as one. Let r be the standard
    deviation of one relative rounding error.

    - A sum of K products has a relative error of sqrt(K) r. Over all layers the logits have a relative error of
      r sqrt(sum of K).
    - The size of the logits is the size of the input times, for each layer, sqrt(sum of w^2 for one output). This is
      exact for random weights with mean zero, and too large by what ReLU leaves out. Dropout at rate p makes it
      1 / sqrt(1 - p) times as large, since the values that are kept grow by 1 / (1 - p).
    - The derivative of an example's loss by its logits is softmax - label, whose norm is at most sqrt(2). The error of
      the mean over B examples is 1 / sqrt(B) of one example's error.
    - Softmax, logarithm and the sum over the batch, which frameworks compute in blocks, add 2 + log2 B roundings of the
      loss.

    The tolerance is CONFIDENCE standard deviations of both errors together. If a factor of a product is rounded to the
    11 bits of TF32 or float16, its error is 2^13 times that of float32. The loss shows this for batches of up to some
    thousand images; larger batches average it out.

    Args:
      loss: approximate loss of the first step.
    """
    config = experiment.config
    if config.precision != "32" or config.tf32 is True:
        return None
    if any(not parameter.trainable for parameter in experiment.network.parameters):
        return None  # the weights do not determine by what batch normalisation divides
    if config.initial_weights is not None:  # the size of the logits is only known for random weights
        return None
    batch_size = experiment.plan.count(1)
    kernels = [array.astype(np.float64) for array in experiment.initial_weights.values() if array.ndim > 1]
    products = sum(math.prod(kernel.shape[:-1]) for kernel in kernels)
    gain = math.prod(math.sqrt(float((kernel**2).sum()) / kernel.shape[-1]) for kernel in kernels)
    gain /= math.prod(math.sqrt(1 - rate) for rate in experiment.network.dropout_rates)
    of_logits = math.sqrt(2 / batch_size) * math.sqrt(products) * gain * _input_size(experiment, batch_size)
    of_loss = math.sqrt(2 + math.log2(batch_size)) * abs(loss)
    return CONFIDENCE * ROUNDING * math.hypot(of_logits, of_loss)


def _input_size(experiment: Experiment, batch_size: int) -> float:
    """Root mean square of the network's input, over the first images of the training."""
    dataset = experiment.dataset
    order = np.sort(epoch_order(experiment.config.seed, 1, len(dataset.train_images))[: min(batch_size, MOST_IMAGES)])
    images = dataset.train_images[order]
    if experiment.augmentation:
        normalised = experiment.augmentation(images, visits(1, order), dataset.shift, dataset.scale)
    else:
        normalised = (images.astype(np.float64) - dataset.shift) * dataset.scale
    return float(np.sqrt(np.mean(normalised**2)))
