"""The additions of `--mode tutorial` in JAX: the data path that Flax's own documentation teaches.

The pages, as of Flax 0.12.8, are "MNIST tutorial" (docs_nnx/mnist_tutorial.md in google/flax) and, for several devices,
"Scale up on multiple devices" (docs_nnx/guides/flax_gspmd.md). They teach a loop over the images of a batch, which
converts each to floats, and NumPy's stack; a step compiled by nnx.jit, as in plain mode; and arrays that are put on the
devices of a mesh. The tutorial drops an incomplete last batch; here it is trained on.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.spec.augmentation import AugmentationDraws
from jax_impl.data import Batch, Batches


class ImageByImage(Batches):
    """Batches whose images are converted one by one. They are PIL's, as in Hugging Face's data sets."""

    @cached_property
    def normalisation(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Mean and inverse deviation of each channel, for pixels from 0 to 1."""
        dataset = self.experiment.dataset
        shift, scale = (array.astype(self.dtype) for array in (dataset.shift, dataset.scale))
        return shift / 255, scale * 255

    def batch(self, visits: NDArray[np.int64], weights: NDArray[np.floating]) -> Batch:
        visits, weights = self.own(visits), self.own(weights)
        draws: list[Any] = [None] * len(visits)
        if self.augmentation:
            columns = self.augmentation.draws(visits)
            draws = [AugmentationDraws(*row) for row in zip(*columns, strict=True)]
        images, labels = self.stored(visits)
        images = np.stack([self.convert(image, drawn) for image, drawn in zip(images, draws, strict=True)])
        inputs: Any = self.divided(images)
        if self.experiment.network.drops:
            inputs = inputs, self.divided(visits)
        return Batch(inputs, self.divided(labels), self.divided(weights))

    def convert(self, image: NDArray[np.uint8], draws: AugmentationDraws | None) -> NDArray[np.floating]:
        """A stored image (H, W, C) to the network's input; augmented if there are draws."""
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        pixels = np.array(picture, dtype=self.dtype).reshape(image.shape) / 255
        if draws and self.augmentation:
            (height, width, _), pad = image.shape, self.augmentation.padding
            pixels = np.pad(pixels, ((pad, pad), (pad, pad), (0, 0)))
            pixels = pixels[draws.top : draws.top + height, draws.left : draws.left + width]
            pixels = pixels[:, ::-1] if draws.flipped else pixels
        mean, factor = self.normalisation
        return (pixels - mean) * factor
