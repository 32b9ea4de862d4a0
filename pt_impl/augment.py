"""Augmentation in PyTorch: see common/spec/augmentation.py."""

import torch
import torch.nn.functional as F

from common.spec.augmentation import Augmentation
from common.spec.randomness import STREAM_AUGMENTATION
from pt_impl.randomness import philox


class Augment:
    """Augments the images of a shard; each image has its own random numbers.

    Used instead of torchvision's transforms. These draw once for a whole batch, and their random numbers depend on all
    earlier ones.
    """

    def __init__(self, augmentation: Augmentation, visits: torch.Tensor) -> None:
        """`visits`: int64 (n,)."""
        self.augmentation = augmentation
        words = philox(augmentation.seed, visits, 0, STREAM_AUGMENTATION)
        self.vertical, self.horizontal, self.mirror = (word[:, None] for word in words[:3])

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Images (n, H, W, C) to the same shape."""
        (height, width), pad, device = images.shape[1:3], self.augmentation.padding, images.device
        # A word times n, shifted right by 32 bits, is an integer from 0 to n - 1.
        rows = torch.arange(height, device=device) + (self.vertical * (2 * pad + 1) >> 32)
        columns = torch.arange(width, device=device)
        if self.augmentation.flips:
            columns = torch.where(self.mirror >> 31 == 1, columns.flip(0), columns)
        columns = columns + (self.horizontal * (2 * pad + 1) >> 32)
        examples = torch.arange(len(images), device=device)
        return F.pad(images, (0, 0, pad, pad, pad, pad))[examples[:, None, None], rows[:, :, None], columns[:, None, :]]
