"""How far rounding to 32 bits may move the loss of the first step: a bound that is derived, not fitted.

Only what 32 bits do is asked here. That two runs are the same training is proved in 64 bits, see `comparison.proof`.
"""

import math

import numpy as np

from common.experiment import Experiment
from common.spec.batches import epoch_order
from common.spec.randomness import visits

UNIT_ROUNDOFF = 2.0**-24  # of float32: half the distance from 1 to the next number
ROUNDING = UNIT_ROUNDOFF / math.sqrt(3)  # standard deviation of a rounding that may be anything up to that
CONFIDENCE = 5.0  # in standard deviations
MOST_IMAGES = 256  # that the size of the input is taken from


def first_loss_tolerance(experiment: Experiment, loss: float) -> float:
    """The largest difference between the first step's loss in 32 bits and in exact arithmetic that rounding explains.

    Roundings are taken as independent and of mean zero (Higham and Mary, "A new approach to probabilistic rounding
    error analysis", 2019), so that n of them add up to sqrt(n). With r the standard deviation of one, relative:

    - A sum of K products is off by sqrt(K) r of its size. Over all layers the logits are off by r sqrt(sum of K) of
      theirs.
    - Their size is that of the input times sqrt(sum of w^2 for one output) of each layer: exact for weights that are
      drawn with mean zero, and too large by what ReLU leaves out. Dropout at rate p makes it 1 / sqrt(1 - p) times as
      large: the values that stay grow by 1 / (1 - p).
    - The derivative of an example's loss by its logits is softmax - label, of a norm of at most sqrt(2). The mean
      over B examples has 1 / sqrt(B) of one example's error.
    - Softmax, logarithm and the sum over the batch, which frameworks take in blocks: 2 + log2 B roundings of the loss.

    CONFIDENCE standard deviations of both together are allowed. A factor of a product that is rounded to the 11 bits of
    TF32 or float16 is off by 2^13 times as much as one of float32, which shows in the loss as long as the batch does
    not average it out: up to some thousand images.

    Args:
      experiment: whose initial weights are drawn, and whose network has no batch normalisation.
      loss: of the first step, of about the right size.
    """
    batch_size = experiment.plan.count(1)
    kernels = [array.astype(np.float64) for array in experiment.initial_weights.values() if array.ndim > 1]
    products = sum(math.prod(kernel.shape[:-1]) for kernel in kernels)
    gain = math.prod(math.sqrt(float((kernel**2).sum()) / kernel.shape[-1]) for kernel in kernels)
    gain /= math.prod(math.sqrt(1 - rate) for rate in experiment.network.dropout_rates)
    of_logits = math.sqrt(2 / batch_size) * math.sqrt(products) * gain * _input_size(experiment, batch_size)
    of_loss = math.sqrt(2 + math.log2(batch_size)) * abs(loss)
    return CONFIDENCE * ROUNDING * math.hypot(of_logits, of_loss)


def _input_size(experiment: Experiment, batch_size: int) -> float:
    """Root of the mean square of the network's input, over the first images that are trained on."""
    dataset = experiment.dataset
    order = np.sort(epoch_order(experiment.config.seed, 1, len(dataset.train_images))[: min(batch_size, MOST_IMAGES)])
    images = dataset.train_images[order]
    if experiment.augmentation:
        normalised = experiment.augmentation(images, visits(1, order), dataset.shift, dataset.scale)
    else:
        normalised = (images.astype(np.float64) - dataset.shift) * dataset.scale
    return float(np.sqrt(np.mean(normalised**2)))
