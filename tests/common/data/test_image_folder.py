"""Folders of images become memory-mapped arrays: in parallel, resumable, with a list of unreadable images."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, wait_for
from PIL import Image

from common.data.arrays import DATASET_FILE, NPZ_NAMES, array_path, read_arrays_folder, write_arrays
from common.data.datasets import load_dataset
from common.data.image_files import REMARKS, Remark, read_image
from common.data.image_folder import UNREADABLE_FILE, list_images
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
    assert list_images(images).files == list_images(images).files
    load(images, image_shape=(16, 20, 3))  # made once


@pytest.mark.parametrize("parts", [("train", "val"), ("training_set", "test_set"), ("train", "val", "test")])
def test_parts_under_usual_names_are_no_classes(tmp_path, parts):
    for part in parts:
        for name in ("cats", "dogs"):
            save(tmp_path / "images" / part / name / "deeper" / "1.png")
    listing = list_images(tmp_path / "images")
    assert listing.class_names == ["cats", "dogs"] and listing.num_train == 2
    assert listing.left_out == list(parts[1:-1])
    assert [path for path, _ in listing.files[2:]] == [f"{parts[-1]}/{name}/deeper/1.png" for name in ("cats", "dogs")]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/cats", "a/dogs", "b/cats", "b/dogs"], r"its sub-folders hold no images, but folders \(a: cats, dogs"),
        (["train/cats", "train/dogs"], r"its sub-folders hold no images, but folders \(train: cats, dogs"),
        (["only"], "1 sub-folders; each class needs one"),
    ],
)
def test_folders_that_are_no_classes_are_refused(tmp_path, files, message):
    for file in files:
        save(tmp_path / "images" / file / "1.png")
    with pytest.raises(UserError, match=message):
        list_images(tmp_path / "images")


def test_a_set_says_once_what_was_assumed_and_cut_off(images, capsys):
    Image.fromarray(np.full((30, 40), 4095, np.uint16)).save(images / "red" / "dark.png")
    Image.new("RGBA", (40, 30)).save(images / "red" / "clear.png")
    for index in range(4):
        save(images / "green" / f"tall{index}.png", size=(31, 60))
    make(images, image_shape=(15, 20, 3))
    lines = capsys.readouterr().err.splitlines()
    assert "files and folders left out: 1, such as 'red/notes.txt'" in lines
    assert f"1 of 36 images: {REMARKS[Remark.WHITE_VALUE]}" in lines
    assert f"1 of 36 images: {REMARKS[Remark.BACKGROUND]}" in lines
    assert any(line.endswith("with height and width exchanged: --image-shape 20 15 3") for line in lines)


def test_unreadable_images_are_listed_and_left_out(images, capsys):
    whole = (images / "red" / "1.jpg").read_bytes()
    (images / "red" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "blue" / "0.png").write_text("no image at all")
    _, train, test = read_arrays_folder(make(images))
    said = f"2 of 30 images can't be read, listed in {make(images) / UNREADABLE_FILE}: left out"
    assert said in capsys.readouterr().err
    first, second = (make(images) / UNREADABLE_FILE).read_text().splitlines()
    assert "blue/0.png: cannot identify" in first and "red/1.jpg: Truncated" in second
    assert len(train[0]) + len(test[0]) == 28
    for pictures, labels in (train, test):
        for picture, label in zip(pictures, labels, strict=True):
            assert picture[8, 10].argmax() == 2 - label


def test_an_interrupted_conversion_goes_on_where_it_stopped(tmp_path):
    for name in ("a", "b"):
        for index in range(300):
            save(tmp_path / "images" / name / f"{index}.png", (index % 250, 0, 0), (200, 200))
    command = [sys.executable, "compare.py", "--dataset", tmp_path / "images", "--image-shape", "16", "16", "3"]
    output = tmp_path / "images-arrays-16x16x3"
    status = output / ".status"
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        wait_for(lambda: status.exists() and np.fromfile(status, np.uint8).any())
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130 and process.stderr.read().endswith(b"compare.py: interrupted\n")
    done = int((np.fromfile(status, np.uint8) == 1).sum())
    assert 0 < done < 600
    load(tmp_path / "images", image_shape=(16, 16, 3))
    _, train, test = read_arrays_folder(output)
    shades = sorted(int(picture[0, 0, 0]) for part in (train, test) for picture in part[0])
    assert shades == sorted(index % 250 for _ in "ab" for index in range(300))


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


def change_a_pixel(folder):
    array = np.load(array_path(folder, "test", "images"))
    array[0, 0, 0, 0] ^= 1
    np.save(array_path(folder, "test", "images"), array)


DAMAGES = (
    (lambda folder: (folder / DATASET_FILE).unlink(), "sub-folders; each class needs one"),
    (lambda folder: array_path(folder, "test", "images").write_bytes(b"x"), "not a readable .npy file"),
    (lambda folder: np.save(array_path(folder, "train", "labels"), np.full(24, 3)), "labels from 3 to 3, but 3"),
    (change_a_pixel, "its arrays have been changed since dataset.json was written"),
)


def test_a_damaged_set_is_refused(images):
    whole = make(images)
    for number, (damage, message) in enumerate(DAMAGES):
        folder = shutil.copytree(whole, images.parent / str(number))
        load(folder)
        damage(folder)
        with pytest.raises(UserError, match=message):
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
        ("other", images, ["a", "b", "a"], "'a' is the name of several classes"),
        ("other", images, ["a", "b"], "labels from 0 to 999, but 2 classes"),
        ("mine", images, names, "holds a data set already"),
    ):
        with pytest.raises(UserError, match=message):
            write_arrays(tmp_path / folder, (wrong, labels), (images, labels), given)
    assert not (tmp_path / "other" / DATASET_FILE).exists()


# --- Single images ---


@pytest.mark.parametrize(("fit", "corner"), [("crop", 250), ("pad", 0), ("stretch", 250)])
def test_images_are_brought_to_the_shape_asked_for(tmp_path, fit, corner):
    save(tmp_path / "wide.png", (250, 250, 250), (40, 10))
    image = read_image(tmp_path / "wide.png", (8, 8, 1), fit).pixels
    assert image.shape == (8, 8, 1) and image[0, 0, 0] == corner and image[4, 4, 0] == 250


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp"])
def test_an_image_that_is_cut_off_is_refused(tmp_path, suffix):
    path = tmp_path / f"image.{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=f"^{path}: "):
        read_image(path, (8, 9, 3), "crop")


@pytest.mark.parametrize(("orientation", "turns"), [(3, 2), (6, 1)])
def test_a_photo_is_turned_upright_and_keeps_its_detail(tmp_path, orientation, turns):
    """Stripes as wide as the target's pixels: decoding a JPEG at the size for the other orientation would blur them."""
    height, width = 40, 160
    stripes = np.kron(np.indices((1, width))[1] % 2 * 255, np.ones((4 * height, 4))).astype(np.uint8)
    stripes[: 2 * height] = 0  # the upper half is black
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.rot90(stripes, turns)).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    found = read_image(tmp_path / "photo.jpg", (height, width, 1), "stretch").pixels
    assert found[: height // 2 - 2].max() < 50 and found[height // 2 + 2 :].std() > 100


@pytest.mark.parametrize(("level", "expected"), [(65535, 255), (4095, 15)])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_the_largest_value_of_16_bits_is_taken_for_white(tmp_path, suffix, level, expected):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(np.full((8, 8), level, np.uint16)).save(path)
    found, remark = read_image(path, (8, 8, 1), "stretch")
    assert (found[0, 0, 0], remark) == (expected, Remark.WHITE_VALUE)


def test_ink_on_a_transparent_ground_lies_on_white(tmp_path):
    """Black ink in the right half, on a transparent ground that is black too, as drawing programs save it."""
    image = Image.new("RGBA", (16, 16))
    image.paste((0, 0, 0, 255), (8, 0, 16, 16))
    image.save(tmp_path / "drawing.png")
    pixels, assumed = read_image(tmp_path / "drawing.png", (16, 16, 3), "stretch")
    assert (pixels[:, :8] == 255).all() and (pixels[:, 8:] == 0).all() and assumed == Remark.BACKGROUND


@pytest.mark.parametrize(
    ("mode", "size", "message"),
    [
        ("1", (10_000, 5_001), "has more than 50,000,000 pixels; make it smaller"),
        ("F", (64, 64), "its pixels are floating-point numbers, which need not end at white"),
        ("I", (64, 64), "its pixels are 32-bit integers, which need not end at white"),
    ],
)
def test_pixels_that_cannot_be_used_are_refused(tmp_path, mode, size, message):
    Image.new(mode, size, 300).save(tmp_path / "image.tif")
    with pytest.raises(UserError, match=f"image.tif: {message}"):
        read_image(tmp_path / "image.tif", (64, 64, 1), "crop")
