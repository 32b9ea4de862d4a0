import numpy as np
import pytest

from common.platform.errors import UserError
from common.spec.augmentation import Augmentation
from common.spec.options import TrainConfig
from common.spec.randomness import visits

HEIGHT, WIDTH, COUNT = 6, 9, 4000
SHIFT, SCALE = np.array([10.0, 20.0], np.float32), np.array([0.5, 0.25], np.float32)
# Each pixel stores its row (1 to 6) and its column (1 to 9); black is 0.
IMAGE = np.stack(np.meshgrid(np.arange(1, HEIGHT + 1), np.arange(1, WIDTH + 1), indexing="ij"), axis=-1)
IMAGES = np.broadcast_to(IMAGE.astype(np.uint8), (COUNT, HEIGHT, WIDTH, 2))
VISITS = visits(1, np.arange(COUNT))


def augmented(visits=VISITS, **options):
    """The pixels before normalisation; exact for these numbers."""
    augmentation = Augmentation.of(TrainConfig(**options), (HEIGHT, WIDTH, 2))
    return (augmentation(IMAGES[: len(visits)], visits, SHIFT, SCALE) / SCALE + SHIFT).astype(int)


def test_a_crop_moves_the_image_as_far_as_the_padding_every_way_as_often():
    padded = np.pad(IMAGE, ((4, 4), (4, 4), (0, 0)))
    moved = {}
    for image in augmented(random_crop=2):
        row, column = np.argwhere(image[..., 0] > 0)[0].tolist()
        down, right = (int(value) for value in (row, column) - image[row, column] + 1)
        moved[down, right] = moved.get((down, right), 0) + 1
        assert (image == padded[4 - down : 4 - down + HEIGHT, 4 - right : 4 - right + WIDTH]).all()
    assert sorted(moved) == [(y, x) for y in range(-2, 3) for x in range(-2, 3)]
    assert all(abs(count - COUNT / 25) < 5 * np.sqrt(COUNT / 25) for count in moved.values())


def test_half_of_the_images_are_mirrored_and_both_together_are_crop_and_flip():
    flipped = augmented(horizontal_flip=True)
    mirrored = (flipped == IMAGE[:, ::-1]).all(axis=(1, 2, 3))
    assert ((flipped == IMAGE).all(axis=(1, 2, 3)) ^ mirrored).all()
    assert abs(mirrored.sum() - COUNT / 2) < 5 * np.sqrt(COUNT / 4)
    cropped = augmented(random_crop=2)
    cropped[mirrored] = cropped[mirrored][:, :, ::-1]
    assert (augmented(random_crop=2, horizontal_flip=True) == cropped).all()


def test_a_crop_that_is_too_large_is_refused():
    with pytest.raises(UserError, match="--random-crop 9: images are 8 x 12; at most 8"):
        Augmentation.of(TrainConfig(random_crop=9), (8, 12, 1))
