"""Folders of images and files of arrays become memory-mapped arrays."""

import numpy as np
import pytest
from PIL import Image

from common.data.arrays import DATASET_FILE, NPZ_NAMES, array_path, read_arrays_folder, write_arrays
from common.data.datasets import load_dataset
from common.data.image_folder import list_images, read_image
from common.platform.errors import UserError
from common.spec.options import TrainConfig

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def save(path, colour=(0, 0, 0), size=(20, 20), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


@pytest.fixture
def images(tmp_path):
    """Ten images of each of three colours, of several sizes, formats and modes."""
    folder = tmp_path / "images"
    for name, colour in COLOURS.items():
        for index in range(10):
            suffix = ("png", "jpg", "bmp")[index % 3]
            save(folder / name / f"{index}.{suffix}", colour, (20 + index, 31), "P" if suffix == "png" else "RGB")
    (folder / "red" / "notes.txt").write_text("no image")
    return folder


def load(folder, **options):
    return load_dataset(TrainConfig(dataset=str(folder), **options))


def make(images, image_shape=(16, 20, 3)):
    load(images, image_shape=image_shape)
    return images.parent / f"images-arrays-{'x'.join(map(str, image_shape))}"


# --- Whole folders ---


def test_every_image_lands_with_its_label_in_one_of_the_two_sets(images):
    output = make(images)
    info, train, test = read_arrays_folder(output)
    assert info.class_names == ["blue", "green", "red"]
    assert train[0].shape == (24, 16, 20, 3) and test[0].shape == (6, 16, 20, 3)
    for pictures, labels in (train, test):
        assert isinstance(pictures, np.memmap) and not pictures.flags.writeable
        for picture, label in zip(pictures, labels, strict=True):
            assert np.abs(picture.astype(int) - COLOURS[info.class_names[label]]).max() <= 6  # JPEG is not exact
    assert np.bincount(test[1]).tolist() == [2, 2, 2] and np.bincount(train[1]).tolist() == [8, 8, 8]
    pixels = np.asarray(train[0], dtype=np.float64) / 255
    assert np.allclose(info.mean, pixels.mean(axis=(0, 1, 2))) and np.allclose(info.std, pixels.std(axis=(0, 1, 2)))
    arrays = [f"{part}_{kind}.npy" for part in ("test", "train") for kind in ("images", "labels")]
    assert sorted(path.name for path in output.iterdir()) == [DATASET_FILE, *arrays]
    whole, part = load(output), load(output, train_size=20)
    assert whole.class_names == info.class_names and len(part.train_images) == 20 and whole.sha256 != part.sha256
    assert np.allclose(((whole.train_images - whole.shift) * whole.scale).mean(axis=(0, 1, 2)), 0, atol=1e-3)
    load(images, image_shape=(16, 20, 3))  # made once


@pytest.mark.parametrize("parts", [("train", "val"), ("training_set", "test_set"), ("train", "val", "test")])
def test_parts_under_usual_names_are_no_classes(tmp_path, parts):
    paths = [tmp_path / "images" / part / name / "1.png" for part in parts for name in ("cats", "dogs")]
    for path in paths:
        save(path)
    listing = list_images(tmp_path / "images")
    assert listing.class_names == ["cats", "dogs"] and listing.left_out == paths[2:-2]
    assert [*listing.train, *listing.test] == [*zip(paths[:2] + paths[-2:], (0, 1, 0, 1), strict=True)]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/cats", "a/dogs", "b/cats", "b/dogs"], "no images of class a for training"),
        (["train/cats", "train/dogs"], "1 sub-folders; each class needs one"),
        (["cats", "dogs"], "no images to test on; a class needs five"),
    ],
)
def test_folders_that_are_no_classes_are_refused(tmp_path, files, message):
    for file in files:
        save(tmp_path / "images" / file / "1.png")
    with pytest.raises(UserError, match=message):
        list_images(tmp_path / "images")


def test_what_is_left_out_is_named(images, capsys):
    whole = (images / "red" / "1.jpg").read_bytes()
    (images / "red" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "blue" / "0.png").write_text("no image at all")
    _, train, test = read_arrays_folder(make(images))
    said = capsys.readouterr().err
    assert f"left out: 1, such as {images}/red/notes.txt\n" in said
    assert f"left out: {images}/blue/0.png: cannot identify" in said
    assert f"left out: {images}/red/1.jpg: Truncated" in said
    assert len(train[0]) + len(test[0]) == 28
    for pictures, labels in (train, test):
        for picture, label in zip(pictures, labels, strict=True):
            assert picture[8, 10].argmax() == 2 - label


def test_an_interrupted_conversion_begins_again(images):
    output = images.parent / "images-arrays-16x20x3"
    output.mkdir()
    array_path(output, "train", "images").write_bytes(b"half of them")
    assert make(images) == output and len(read_arrays_folder(output)[1][0]) == 24


def test_mistakes_are_reported_in_one_line(images):
    output = make(images)
    with pytest.raises(UserError, match=r"--dataset .*nowhere: no such file or folder"):
        load("./nowhere")
    with pytest.raises(UserError, match="is 1 .grey. or 3 .colour."):
        load(images, image_shape=(16, 20, 2))
    save(images / "red" / "one more.png")
    with pytest.raises(UserError, match=f"has changed since {output} was made of it; remove that folder"):
        make(images)


@pytest.mark.parametrize("names", NPZ_NAMES)
def test_an_npz_becomes_a_data_set(tmp_path, names):
    images, labels = np.random.default_rng(0).integers(0, 256, (50, 8, 9), np.uint8), np.arange(50) % 3
    arrays = dict(zip(names, (images, labels[:, None], images[:7], labels[:7]), strict=False))
    np.savez(tmp_path / "mine.npz", **arrays, class_names=["a", "b", "c"])
    data = load(tmp_path / "mine.npz")
    assert data.class_names == ["a", "b", "c"] and data.image_shape == (8, 9, 1)
    if len(names) == 4:
        assert (data.train_images[..., 0] == images).all() and (data.test_labels == labels[:7]).all()
    else:
        assert np.bincount(data.test_labels).tolist() == [3, 3, 3] and len(data.train_labels) == 41
    np.savez(tmp_path / "other.npz", pictures=images)
    with pytest.raises(UserError, match="other.npz: has the arrays pictures; should have train_images"):
        load(tmp_path / "other.npz")


# --- Sets that have been made ---


def test_a_damaged_set_is_refused(images):
    folder = make(images)
    array_path(folder, "test", "images").write_bytes(b"x")
    with pytest.raises(UserError, match="not a readable .npy file"):
        load(folder)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_of_ones_own_become_a_data_set(tmp_path, dtype):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (1200, 9, 8, 5)).astype(dtype), np.arange(1200) % 1000
    images = images * 7 - 400 if dtype == np.float32 else images
    names = [str(number) for number in range(1000)]
    write_arrays(tmp_path / "mine", (images, labels), (images[:10], labels[:10]), names)
    data = load(tmp_path / "mine")
    assert np.array_equal(data.train_images, images) and data.num_classes == 1000 and len(data.test_labels) == 10
    assert data.train_images.dtype == dtype
    normalised = (images.astype(np.float64) - data.shift) * data.scale
    assert np.allclose(normalised.mean((0, 1, 2)), 0, atol=1e-4) and np.allclose(normalised.std((0, 1, 2)), 1)
    for folder, wrong, given, message in (
        ("other", images / np.float64(9), names, "train images: float64 .* should be uint8"),
        ("other", images, ["a"], "1 class names, should be 2 to 10000"),
        ("other", images, ["a", "b"], "train labels: should be one for each of 1200 images, from 0 to 1"),
        ("mine", images, names, "holds a data set already"),
    ):
        with pytest.raises(UserError, match=message):
            write_arrays(tmp_path / folder, (wrong, labels), (images, labels), given)
    assert not (tmp_path / "other" / DATASET_FILE).exists()


# --- Single images ---


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
def test_an_image_that_is_cut_off_is_refused(tmp_path, suffix):
    path = tmp_path / f"image.{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=f"^{path}: "):
        read_image(path, (8, 9, 3))


@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, 1)])
def test_a_photo_is_turned_upright_and_keeps_its_detail(tmp_path, orientation, turns):
    """Stripes of two of the target's pixels: decoding a JPEG at a size that is too small would blur them."""
    height, width = 40, 160
    stripes = np.kron(np.indices((1, width // 2))[1] % 2 * 255, np.ones((4 * height, 8))).astype(np.uint8)
    stripes[: 2 * height] = 0  # the upper half is black
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.rot90(stripes, turns)).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    found, _ = read_image(tmp_path / "photo.jpg", (height, width, 1))
    assert found[: height // 2 - 2].max() < 50 and found[height // 2 + 2 :].std() > 90


@pytest.mark.parametrize(("level", "expected"), [(65535, 255), (4095, 15)])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_the_largest_value_of_16_bits_is_taken_for_white(tmp_path, suffix, level, expected):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(np.full((8, 8), level, np.uint16)).save(path)
    assert read_image(path, (8, 8, 1))[0][0, 0, 0] == expected


def test_ink_on_a_transparent_ground_lies_on_white(tmp_path):
    """Black ink in the right half, on a transparent ground that is black too, as drawing programs save it."""
    image = Image.new("RGBA", (16, 16))
    image.paste((0, 0, 0, 255), (8, 0, 16, 16))
    image.save(tmp_path / "drawing.png")
    pixels, _ = read_image(tmp_path / "drawing.png", (16, 16, 3))
    assert (pixels[:, :8] == 255).all() and (pixels[:, 8:] == 0).all()


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_that_cannot_be_used_are_refused(tmp_path, mode):
    Image.new(mode, (64, 64), 300).save(tmp_path / "image.tif")
    with pytest.raises(UserError, match="image.tif: its pixels have more than 16 bits"):
        read_image(tmp_path / "image.tif", (64, 64, 1))
