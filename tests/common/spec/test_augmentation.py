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
    augmentation = Augmentation.of(TrainConfig(**options), (HEIGHT, WIDTH, 2))
    return augmentation(IMAGES[: len(visits)], visits, SHIFT, SCALE)


def pixels(found):
    """The pixels before normalisation; exact for these numbers."""
    return (found / SCALE + SHIFT).astype(int)


def test_a_crop_moves_the_image_as_far_as_the_padding_every_way_as_often():
    found = pixels(augmented(random_crop=2))
    moved = {}
    for image in found:
        row, column = np.argwhere(image[..., 0] > 0)[0].tolist()
        down, right = (int(value) for value in (row, column) - image[row, column] + 1)
        moved[down, right] = moved.get((down, right), 0) + 1
        expected = np.zeros_like(image)
        for y in range(HEIGHT):
            for x in range(WIDTH):
                if 0 <= y - down < HEIGHT and 0 <= x - right < WIDTH:
                    expected[y, x] = IMAGE[y - down, x - right]
        assert (image == expected).all()
    assert sorted(moved) == [(y, x) for y in range(-2, 3) for x in range(-2, 3)]
    spread = np.sqrt(COUNT / 25)
    assert all(abs(count - COUNT / 25) < 5 * spread for count in moved.values())


def test_half_of_the_images_are_mirrored():
    found = pixels(augmented(horizontal_flip=True))
    mirrored = (found == IMAGE[:, ::-1]).all(axis=(1, 2, 3))
    assert ((found == IMAGE).all(axis=(1, 2, 3)) ^ mirrored).all()
    assert abs(mirrored.sum() - COUNT / 2) < 5 * np.sqrt(COUNT / 4)


def test_what_is_cut_out_is_a_square_of_the_mean_colour_that_may_reach_over_the_edge():
    found = augmented(cutout=3)
    gone = (found == 0).all(axis=-1)
    assert (pixels(found)[~gone] == np.broadcast_to(IMAGE, found.shape)[~gone]).all()
    sizes = set()
    for image in gone:
        rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
        assert image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        sizes.add((len(rows), len(columns)))
    assert sizes == {(height, width) for height in (2, 3) for width in (2, 3)}
    # A pixel away from the edges is covered if the centre is one of nine pixels.
    assert abs(gone[:, 2, 4].mean() - 9 / (HEIGHT * WIDTH)) < 5 * 0.5 / np.sqrt(COUNT)


def test_all_three_together_are_crop_flip_and_cutout():
    crop, both = pixels(augmented(random_crop=2)), pixels(augmented(random_crop=2, horizontal_flip=True))
    mirrored = (pixels(augmented(horizontal_flip=True)) == IMAGE[:, ::-1]).all(axis=(1, 2, 3))
    for image, cropped, mirror in zip(both, crop, mirrored, strict=True):
        assert (image == (cropped[:, ::-1] if mirror else cropped)).all()
    every, gone = augmented(random_crop=2, horizontal_flip=True, cutout=3), augmented(cutout=3) == 0
    assert (every[gone] == 0).all() and (pixels(every)[~gone] == both[~gone]).all()


def test_an_example_is_changed_alike_in_one_epoch_and_in_any_batch_and_otherwise_in_the_next():
    options = {"random_crop": 2, "horizontal_flip": True, "cutout": 3}
    found = augmented(**options)
    assert (augmented(VISITS[[7, 2]], **options) == found[[7, 2]]).all()
    same = (augmented(visits(2, np.arange(COUNT)), **options) == found).all(axis=(1, 2, 3))
    assert same.mean() < 0.01  # there are 25 crops, 2 sides and 54 places


def test_nothing_to_change_is_no_augmentation_and_too_much_is_refused():
    assert Augmentation.of(TrainConfig(), (8, 8, 1)) is None
    with pytest.raises(UserError, match="--random-crop 9: images are 8 x 12; at most 8"):
        Augmentation.of(TrainConfig(random_crop=9), (8, 12, 1))
    with pytest.raises(UserError, match="--cutout 9: images are 8 x 12; at most 8"):
        Augmentation.of(TrainConfig(cutout=9), (8, 12, 1))
