"""The random numbers of dropout and augmentation in PyTorch: see common/spec/randomness.py."""

import torch

from common.spec.randomness import PHILOX_MULTIPLIERS, WORD_MASK, round_keys


def philox(seed: int, visits: torch.Tensor, number: torch.Tensor | int, stream: int) -> tuple[torch.Tensor, ...]:
    """Four random words, int64 from 0 to 2^32 - 1, for each visit and number, whose shapes are broadcast."""
    c0, c1, c2, c3 = visits & WORD_MASK, visits >> 32, torch.as_tensor(number, device=visits.device), stream
    for key0, key1 in round_keys(seed):
        # Products of 64 bits may be negative as int64, so only 32 bits are kept after the shift.
        product0, product1 = c0 * PHILOX_MULTIPLIERS[0], c2 * PHILOX_MULTIPLIERS[1]
        c0, c2 = ((product1 >> 32) ^ c1 ^ key0) & WORD_MASK, ((product0 >> 32) ^ c3 ^ key1) & WORD_MASK
        c1, c3 = product1 & WORD_MASK, product0 & WORD_MASK
    return c0, c1, c2, c3
