import numpy as np
import pytest

from common.spec.randomness import kept_by_dropout, philox, visits

ALL = 2**32 - 1
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)  # pi's first hex digits after the point


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    # Test vectors published by Philox's authors ("kat_vectors" of the Random123 library), Philox4x32 with 10 rounds.
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL,) * 4, (ALL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_philox_gives_the_published_numbers(counter, key, words):
    assert philox(key[0] + (key[1] << 32), *counter) == words


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_so_many_values_are_dropped_and_none_of_them_knows_of_another(rate):
    of_one_epoch = visits(1, np.arange(200))
    masks = kept_by_dropout(3, of_one_epoch, 0, 1003, rate)
    assert masks.shape == (200, 1003)
    spread = np.sqrt(rate * (1 - rate) / masks.size)
    assert abs(masks.mean() - (1 - rate)) < 5 * spread
    others = [kept_by_dropout(3, of_one_epoch, 1, 1003, rate), kept_by_dropout(4, of_one_epoch, 0, 1003, rate)]
    others += [
        kept_by_dropout(3, visits(2, np.arange(200)), 0, 1003, rate),
        np.roll(masks, 1, axis=0),
        np.roll(masks, 1, axis=1),
    ]
    for other in others:  # this share agrees with an independent mask
        assert abs((masks == other).mean() - (rate**2 + (1 - rate) ** 2)) < 5 * 0.5 / np.sqrt(masks.size)
