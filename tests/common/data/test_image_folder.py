"""Folders of images become memory-mapped arrays: in parallel, resumable, with a list of unreadable images."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, remount, run
from PIL import Image
from rich.console import Console

from common.data.arrays import DATASET_FILE, array_path, check_arrays_checksum, read_arrays_folder, write_arrays
from common.data.datasets import load_dataset
from common.data.image_files import REMARKS, Remark, read_image
from common.data.image_folder import LISTING_FILE, STATUS_FILE, UNREADABLE_FILE, convert
from common.data.image_listing import ImageFolderConfig, list_images
from common.platform.errors import UserError
from common.spec.options import TrainConfig

COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def save(path, colour, size=(20, 20), mode="RGB"):
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


def make(images, **options):
    options = {"output": images.parent / "arrays", "image_shape": (16, 20, 3), "jobs": 2, **options}
    config = ImageFolderConfig(images=images, **options)
    convert(config, Console(quiet=True))
    return config.output


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
    assert sorted(path.name for path in output.iterdir()) == [
        "dataset.json",
        "test_images.npy",
        "test_labels.npy",
        "train_images.npy",
        "train_labels.npy",
    ]


def test_the_set_can_be_loaded_and_its_digest_knows_what_is_used(images):
    output = make(images)
    whole = load_dataset(TrainConfig(dataset="arrays", data_dir=output))
    part = load_dataset(TrainConfig(dataset="arrays", data_dir=output, train_size=20))
    assert whole.num_classes == 3 and whole.class_names == ["blue", "green", "red"] and len(part.train_images) == 20
    assert whole.sha256 != part.sha256
    normalised = (whole.train_images - whole.shift) * whole.scale
    assert np.allclose(normalised.mean(axis=(0, 1, 2)), 0, atol=1e-3)


def test_folders_for_training_and_testing_are_taken_as_they_are(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        for name in COLOURS:
            for index in range(count):
                save(tmp_path / "images" / part / name / "deeper" / f"{index}.png", COLOURS[name])
    listing = list_images(ImageFolderConfig(images=tmp_path / "images", output=tmp_path / "arrays"))
    assert listing.num_train == 9 and len(listing.files) == 15 and listing.class_names == sorted(COLOURS)
    assert all(path.startswith("train/") for path, _ in listing.files[:9])
    assert len(listing.deeper) == 15


@pytest.mark.parametrize(
    "parts",
    [("training_set", "test_set"), ("Train", "Validation"), ("seg_train", "seg_test"), ("train", "val", "test")],
)
def test_parts_under_usual_names_are_no_classes(tmp_path, parts):
    for part in parts:
        for name in ("cats", "dogs"):
            save(tmp_path / "images" / part / name / "1.png", COLOURS["red"])
    listing = list_images(ImageFolderConfig(images=tmp_path / "images", output=tmp_path / "arrays"))
    tested = parts[-1]
    assert listing.class_names == ["cats", "dogs"] and listing.num_train == 2 and listing.deeper == []
    assert [path for path, _ in listing.files[2:]] == [f"{tested}/cats/1.png", f"{tested}/dogs/1.png"]


@pytest.mark.parametrize("parts", [("a", "b"), ("train",), ("my_train", "extra_train", "test_set")])
def test_folders_of_folders_of_unknown_meaning_are_refused(tmp_path, parts):
    for part in parts:
        save(tmp_path / "images" / part / "cats" / "1.png", COLOURS["red"])
        save(tmp_path / "images" / part / "dogs" / "1.png", COLOURS["red"])
    with pytest.raises(UserError, match=rf"its sub-folders hold no images, but folders \({min(parts)}: cats, dogs"):
        list_images(ImageFolderConfig(images=tmp_path / "images", output=tmp_path / "arrays"))


def test_another_seed_tests_on_other_images_and_the_same_on_the_same(images, tmp_path):
    def tested(seed):
        listing = list_images(ImageFolderConfig(images=images, output=tmp_path, seed=seed))
        return listing.files[listing.num_train :]

    assert tested(0) == tested(0) != tested(1)


@pytest.mark.parametrize(("fit", "corner", "middle"), [("crop", 250, 250), ("pad", 0, 250), ("stretch", 250, 250)])
def test_images_are_brought_to_the_shape_asked_for(tmp_path, fit, corner, middle):
    save(tmp_path / "wide.png", (250, 250, 250), (40, 10))
    config = ImageFolderConfig(images=tmp_path, output=tmp_path, image_shape=(8, 8, 1), fit=fit)
    image = read_image(tmp_path / "wide.png", config.image_shape, config.fit).pixels
    assert image.shape == (8, 8, 1) and image[0, 0, 0] == corner and image[4, 4, 0] == middle


def test_a_picture_taken_sideways_is_turned(tmp_path):
    picture = Image.new("RGB", (20, 20))
    picture.paste((250, 0, 0), (0, 0, 20, 10))  # upper half red, lower half black
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    picture.save(tmp_path / "turned.png", exif=exif)
    image = read_image(tmp_path / "turned.png", (64, 64, 3), "crop").pixels
    assert image[5, 32].tolist() == [0, 0, 0] and image[-5, 32].tolist() == [250, 0, 0]


@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_a_large_photo_keeps_its_detail_however_it_is_turned(tmp_path, orientation):
    """Stripes as wide as the target's pixels: decoding a JPEG at the size for the other orientation would blur them."""
    height, width = 40, 160
    stripes = np.kron(np.indices((1, width))[1] % 2 * 255, np.ones((4 * height, 4))).astype(np.uint8)
    pixels = {1: stripes, 6: np.rot90(stripes), 8: np.rot90(stripes, -1)}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    found = read_image(tmp_path / "photo.jpg", (height, width, 1), "stretch").pixels
    assert found.std() > 100


def test_what_is_cut_off_is_told_with_the_shape_that_fits(images, capsys):
    make_wide = {"images": images, "output": images.parent / "arrays", "image_shape": (16, 32, 3)}
    for path in images.rglob("*.*g"):
        save(path, (0, 0, 0), (31, 60))
    convert(ImageFolderConfig(**make_wide), Console(soft_wrap=True))
    lines = capsys.readouterr().out.splitlines()
    tall = sum(1 for _ in images.rglob("*.*g"))
    assert f"30 of 30 images: {REMARKS[Remark.CROPPED]}" in lines
    assert any(
        line.endswith("less would be cut off with height and width exchanged: --image-shape 32 16 3")
        and int(line.split()[0]) >= tall
        for line in lines
    )
    assert "3 classes: blue, green, red" in lines


def test_unreadable_images_are_listed_and_refused_or_skipped_as_asked(images):
    whole = (images / "red" / "1.jpg").read_bytes()
    (images / "red" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    (images / "blue" / "0.png").write_text("no image at all")
    with pytest.raises(
        UserError, match=f"2 of 30 images can't be read, listed in .*{UNREADABLE_FILE}; --unreadable skip"
    ):
        make(images)
    listed = (images.parent / "arrays" / UNREADABLE_FILE).read_text().splitlines()
    assert len(listed) == 2 and "blue/0.png: cannot identify" in listed[0] and "red/1.jpg: Truncated" in listed[1]
    with pytest.raises(UserError, match="no dataset.json"):
        read_arrays_folder(images.parent / "arrays")
    _, train, test = read_arrays_folder(make(images, unreadable="skip"))  # continues where the first conversion stopped
    assert len(train[0]) + len(test[0]) == 28
    for pictures, labels in (train, test):
        for picture, label in zip(pictures, labels, strict=True):
            assert picture[8, 10].argmax() == 2 - label


def test_an_interrupted_conversion_goes_on_where_it_stopped(tmp_path):
    for name in ("a", "b"):
        for index in range(300):
            save(tmp_path / "images" / name / f"{index}.png", (index % 250, 0, 0), (200, 200))
    options = ("--images", "images", "--output", "arrays", "--image-shape", "16", "16", "3", "--jobs", "1")
    command = [sys.executable, str(REPOSITORY / "make_dataset.py"), *options]
    status = tmp_path / "arrays" / ".status"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not (status.exists() and np.fromfile(status, np.uint8).any()):
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130 and process.stderr.read() == b"make_dataset.py: interrupted\n"
    done = int((np.fromfile(status, np.uint8) == 1).sum())
    assert 0 < done < 600
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"going on: {done} of 600 images are done" in again.stdout
    _, train, test = read_arrays_folder(tmp_path / "arrays")
    shades = sorted(int(picture[0, 0, 0]) for part in (train, test) for picture in part[0])
    assert shades == sorted(index % 250 for _ in "ab" for index in range(300))


def change_picture(images, output):
    (path,) = (images / "red").glob("0.*")
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_picture, "or images have changed since; remove it"),
        (lambda _, output: os.truncate(output / STATUS_FILE, 0), "can't go on .*.status should have a byte for each"),
        (lambda _, output: os.truncate(output / STATUS_FILE, 29), "can't go on .*.status should have a byte for each"),
        (lambda _, output: (output / STATUS_FILE).unlink(), "can't go on .*.status"),
        (lambda _, output: array_path(output, "train", "images").unlink(), "can't go on .*train_images.npy"),
        (lambda _, output: os.truncate(array_path(output, "test", "images"), 999), "can't go on .*test_images.npy"),
    ],
)
def test_what_has_changed_since_the_interruption_is_noticed(images, monkeypatch, change, message):
    def interrupted(*_):
        raise InterruptedError

    monkeypatch.setattr("common.data.image_folder._decode_all", interrupted)
    with pytest.raises(InterruptedError):
        make(images)
    output = images.parent / "arrays"
    change(images, output)
    with pytest.raises(UserError, match=f"--output .*{message}"):
        make(images)
    assert not (output / DATASET_FILE).exists()


@pytest.mark.parametrize("inside", [".", "red/arrays"])
def test_arrays_are_not_made_among_the_images(images, inside):
    with pytest.raises(UserError, match=r"--output .*: is inside --images .*; name a folder elsewhere"):
        make(images, output=images / inside)
    assert not (images / "red" / "arrays").exists()


def test_what_is_left_out_is_listed(tmp_path):
    for part in ("train", "test", "val"):
        for name in ("a", "b"):
            save(tmp_path / "images" / part / name / "0.png", (0, 0, 0))
    (tmp_path / "images" / "train" / "a" / "1.heic").touch()
    (tmp_path / "images" / "train" / "a" / ".hidden").touch()
    (tmp_path / "images" / "train" / "linked").symlink_to("a")  # a class of its own
    (tmp_path / "images" / "train" / "b" / "link").symlink_to("../a")
    (tmp_path / "images" / "test" / "notes.txt").touch()
    config = ImageFolderConfig(images=tmp_path / "images", output=tmp_path / "arrays")
    listing = list_images(config)
    assert listing.class_names == ["a", "b", "linked"] and len(listing.files) == 5
    assert sorted(listing.left_out) == [
        "test/notes.txt",
        "train/a/1.heic",
        "train/b/link",
        "train/linked/1.heic",
        "val",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": Path("nowhere")}, "--images nowhere: no such folder"),
        ({"fit": "pad"}, "a conversion of other images or with other options was begun there"),
        ({}, "holds a data set already"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line(images, change, message):
    output = make(images)
    if "fit" in change:
        (output / DATASET_FILE).unlink()
        (output / LISTING_FILE).write_text("another")
    with pytest.raises(UserError, match=message):
        make(**{"images": images, "output": output, **change})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / DATASET_FILE).unlink(), "no dataset.json there; make_dataset.py makes"),
        (lambda folder: array_path(folder, "test", "images").write_bytes(b"x"), "not a readable .npy file"),
        (lambda folder: np.save(array_path(folder, "train", "labels"), np.full(24, 3)), "labels from 3 to 3, but 3"),
        (lambda folder: np.save(array_path(folder, "train", "labels"), np.zeros(5)), "float64 .5,., should be int64"),
        (
            lambda folder: np.save(array_path(folder, "train", "images"), np.zeros((24, 1, 5000, 3), np.uint8)),
            "train_images.npy: .24, 1, 5000, 3., sides should be 1 to 4,096",
        ),
        (
            lambda folder: np.save(array_path(folder, "test", "images"), np.zeros((6, 8, 8, 3), np.uint8)),
            "training and test images differ in size",
        ),
    ],
)
def test_a_damaged_set_is_refused(images, damage, message):
    output = make(images)
    damage(output)
    with pytest.raises(UserError, match=message):
        load_dataset(TrainConfig(dataset="arrays", data_dir=output))


@pytest.mark.quick("1", "9")
@pytest.mark.parametrize("pages", [1, 6, 7, 9, 11, 12])
def test_without_space_for_a_set_there_is_a_line_and_a_second_try_works(images, small_disk, pages):
    """The disk fills up at one file after another; in the last two cases all images are already written."""
    output = small_disk(4096 * pages) / "set"
    options = ("--images", images, "--image-shape", 16, 20, 3, "--output", output)
    done = run(sys.executable, "make_dataset.py", *options, expect=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"make_dataset.py: error: {output}") and "No space left on device" in line
    remount(output.parent, "size=100M")
    run(sys.executable, "make_dataset.py", *options)
    check_arrays_checksum(output)


def test_arrays_that_were_changed_are_distinguished_from_those_described(images):
    output = make(images)
    check_arrays_checksum(output)
    path = array_path(output, "test", "images")
    array = np.load(path)
    array[0, 0, 0, 0] ^= 1
    np.save(path, array)
    with pytest.raises(UserError, match="its arrays have been changed since dataset.json was written"):
        load_dataset(TrainConfig(dataset="arrays", data_dir=output))


def test_arrays_are_summed_once_for_each_state_of_the_files(images, monkeypatch):
    config = TrainConfig(dataset="arrays", data_dir=make(images))
    load_dataset(config)
    with monkeypatch.context() as patched:
        patched.setattr("common.data.arrays._pieces", None)
        load_dataset(config)
    os.utime(array_path(config.data_dir, "train", "labels"), ns=(1, 1))
    load_dataset(config)  # the same content at another time


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": [float("nan")] * 3}, "mean.0: "),
        ({"std": [0.0, 0.2, 0.2]}, "std.0: Input should be greater than or equal to 0.000001"),
        ({"std": [1e-300, 0.2, 0.2]}, "dataset.json: not valid: std.0: "),
        ({"std": [-1.0, 0.2, 0.2]}, "std.0: "),
        ({"std": [float("inf"), 0.2, 0.2]}, "std.0: "),
        ({"std": [0.2]}, "mean of 3 channels, std of 1"),
        ({"schema_version": 99}, "schema_version: Input should be 1"),
        ({"class_names": ["a", "b\n", "c"]}, r"class_names: .*'b\\n' can't be shown"),
        ({"class_names": ["a", "b", "a"]}, "class_names: .*'a' is the name of several classes"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(images, values, message):
    output = make(images)
    described = json.loads((output / DATASET_FILE).read_text())
    (output / DATASET_FILE).write_text(json.dumps({**described, **values}))
    with pytest.raises(UserError, match=message):
        load_dataset(TrainConfig(dataset="arrays", data_dir=output))


@pytest.mark.parametrize(
    "header", [b"{'descr': '|u1', 'shape': (", b"{'descr': '|u1', 'fortran_order': 1}", b"\xff" * 90]
)
def test_an_array_with_a_damaged_header_is_refused(images, header):
    output = make(images)
    path = array_path(output, "train", "images")
    content = path.read_bytes()
    path.write_bytes(content[:10] + header + content[10 + len(header) :])
    with pytest.raises(UserError, match="not a readable .npy file"):
        load_dataset(TrainConfig(dataset="arrays", data_dir=output))


def test_sixteen_bits_are_brought_to_eight_and_not_cut_off(tmp_path):
    grey = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(read_image(tmp_path / "grey.png", (64, 64, 1), "stretch").pixels[..., 0], grey >> 8)


def write_tiff(path, pixels, bits, photometric=1):
    """An uncompressed TIFF of one channel, of 12 or 16 bits; Pillow writes none of 12. The format: TIFF 6.0."""
    height, width = pixels.shape
    if bits == 12:
        first, second = pixels[:, ::2].astype(np.uint32), pixels[:, 1::2].astype(np.uint32)
        packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=-1).astype(np.uint8)
        content = packed.tobytes()
    else:
        content = pixels.astype("<u2").tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 0, 277: 1, 278: height}
    tags |= {279: len(content), 273: 8 + 2 + 12 * 9 + 4}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + content)


def declare_significant_bits(path, bits):
    """Puts the chunk sBIT behind the header of a PNG."""
    content, chunk = path.read_bytes(), b"sBIT" + bytes([bits])
    path.write_bytes(content[:33] + struct.pack(">I", 1) + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[33:])


@pytest.mark.parametrize(
    ("kind", "largest", "expected", "assumed"),
    [
        ("tiff 12", 4095, 255, False),
        ("tiff 16", 65535, 255, True),
        ("tiff 16", 4095, 15, True),
        ("tiff 16 white is zero", 65535, 0, True),
        ("png", 65535, 255, True),
        ("png of 12 significant bits", 4095, 255, False),
        ("png of 12 significant bits", 65520, 255, False),
        ("png of 16 significant bits", 4095, 15, False),
        ("pgm", 65535, 255, False),
    ],
)
def test_white_is_what_the_file_says(tmp_path, kind, largest, expected, assumed):
    pixels = np.linspace(0, largest, 64).round().astype(np.uint16).reshape(8, 8)
    path = tmp_path / f"image.{kind[:4].strip()}"
    if kind.startswith("tiff"):
        write_tiff(path, pixels, int(kind.split()[1]), photometric=0 if "zero" in kind else 1)
    else:
        if largest == 65520:  # scaled, as the PNG specification wants it
            pixels = pixels // 16 * 16
        Image.fromarray(pixels).save(path)
        if "significant" in kind:
            declare_significant_bits(path, int(kind.split()[2]))
    found, what = read_image(path, (8, 8, 1), "stretch")
    assert (found[-1, -1, 0], what == Remark.WHITE_VALUE) == (expected, assumed)
    assert abs(int(found[0, 0, 0]) - (255 if "zero" in kind else 0)) == 0
    assert abs(int(found[4, 0, 0]) - 0.508 * (found[-1, -1, 0] + found[0, 0, 0])) <= 2 or "zero" in kind


def test_a_set_says_once_what_was_assumed(images, capsys):
    Image.fromarray(np.full((20, 20), 4095, np.uint16)).save(images / "red" / "dark.png")
    Image.new("RGBA", (20, 20)).save(images / "red" / "clear.png")
    Image.new("LA", (20, 20)).save(images / "red" / "clear too.png")
    config = ImageFolderConfig(images=images, output=images.parent / "arrays", image_shape=(16, 20, 3))
    convert(config, Console(soft_wrap=True))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("1 of 33 images: 16 bits, and no word on which value is white; 65535 was taken") == 1
    assert lines[0] == "files and folders left out: 1, such as 'red/notes.txt'"
    assert lines.count("2 of 33 images: transparent in places; a white background was taken") == 1


def drawing(mode):
    """Black ink in the right half, on a transparent ground that is black too, as drawing programs save it."""
    image = Image.new("RGBA", (16, 16))
    image.paste((0, 0, 0, 255), (8, 0, 16, 16))
    if mode != "P":
        return image.convert(mode), {}
    image = Image.new("P", (16, 16))
    image.putpalette([0, 0, 0] * 256)
    image.paste(1, (8, 0, 16, 16))
    return image, {"transparency": 0}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "suffix"), [("RGBA", "png"), ("LA", "png"), ("P", "png"), ("P", "gif"), ("RGBA", "webp"), ("RGBA", "tif")]
)
def test_ink_on_a_transparent_ground_lies_on_white(tmp_path, mode, suffix, channels):
    image, options = drawing(mode)
    image.save(tmp_path / f"drawing.{suffix}", **options, **({"lossless": True} if suffix == "webp" else {}))
    pixels, assumed = read_image(tmp_path / f"drawing.{suffix}", (16, 16, channels), "stretch")
    assert (pixels[:, :8] == 255).all() and (pixels[:, 8:] == 0).all() and assumed == Remark.BACKGROUND


def test_an_alpha_channel_without_transparency_needs_no_assumption(tmp_path):
    Image.new("RGBA", (16, 16), (10, 20, 30, 255)).save(tmp_path / "opaque.png")
    pixels, assumed = read_image(tmp_path / "opaque.png", (16, 16, 3), "stretch")
    assert (pixels == (10, 20, 30)).all() and not assumed


def test_a_small_file_can_not_fill_the_memory(tmp_path, recwarn):
    Image.new("1", (10_000, 5_001)).save(tmp_path / "large.png")
    with pytest.raises(UserError, match=r"large.png: has more than 50,000,000 pixels; make it smaller$"):
        read_image(tmp_path / "large.png", (64, 64, 1), "crop")
    assert not recwarn


@pytest.mark.parametrize(("kind", "what"), [("F", "floating-point numbers"), ("I", "32-bit integers")])
def test_pixels_without_a_known_white_are_refused(tmp_path, kind, what):
    Image.new(kind, (64, 64), 300).save(tmp_path / "image.tif")
    with pytest.raises(UserError, match=f"its pixels are {what}, which need not end at white"):
        read_image(tmp_path / "image.tif", (64, 64, 1), "stretch")


@pytest.mark.parametrize("name", [b"gr\xfcn", b"two\nlines", b"\x1b[31mred"])
def test_a_folder_whose_name_can_not_be_shown_is_refused(images, name):
    (images / "red").rename(images / os.fsdecode(name))
    with pytest.raises(UserError, match="can't be the name of a class; rename this folder") as told:
        make(images)
    assert str(told.value).isascii() and str(told.value).isprintable()


def test_files_of_any_name_are_read_or_listed(images):
    (images / "red" / "0.png").rename(images / "red" / os.fsdecode(b"\xff.png"))
    (images / "red" / os.fsdecode(b"\xfe.png")).write_bytes(b"no image")
    output = make(images, unreadable="skip")
    assert "red/\\udcfe.png: " in (output / UNREADABLE_FILE).read_text()


def test_one_class_is_no_data_set(tmp_path):
    save(tmp_path / "images" / "only" / "1.png", (0, 0, 0))
    with pytest.raises(UserError, match="1 sub-folders; each class needs one"):
        list_images(ImageFolderConfig(images=tmp_path / "images", output=tmp_path / "arrays"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_of_ones_own_become_a_data_set(tmp_path, dtype):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (1200, 9, 8, 5)).astype(dtype), np.arange(1200) % 1000
    images = images * 7 - 400 if dtype == np.float32 else images
    names = [str(number) for number in range(1000)]
    write_arrays(tmp_path / "mine", (images, labels), (images[:10], labels[:10]), names)
    data = load_dataset(TrainConfig(dataset="arrays", data_dir=tmp_path / "mine"))
    assert np.array_equal(data.train_images, images) and data.num_classes == 1000 and len(data.test_labels) == 10
    assert data.train_images.dtype == dtype
    normalised = (images.astype(np.float64) - data.shift) * data.scale
    assert np.allclose(normalised.mean((0, 1, 2)), 0, atol=1e-4) and np.allclose(normalised.std((0, 1, 2)), 1)
    for wrong, words in (
        (images / np.float64(9), "float64 .* should be uint8"),
        (images[0], r".* \(9, 8, 5\), should be"),
    ):
        with pytest.raises(UserError, match=f"train images: {words}"):
            write_arrays(tmp_path / "other", (wrong, labels), (images, labels), names)
    for wrong, words in ((["a", "b", "a"], "'a' is the name of several classes"), (["a"], "at least 2 items")):
        with pytest.raises(UserError, match=f"class_names: .*{words}"):
            write_arrays(tmp_path / "other", (images, labels), (images, labels), wrong)
    assert not (tmp_path / "other").exists()
    with pytest.raises(UserError, match="labels from 0 to 999, but 2 classes"):
        write_arrays(tmp_path / "other", (images, labels), (images, labels), ["a", "b"])
    assert not (tmp_path / "other" / "dataset.json").exists()
    with pytest.raises(UserError, match="holds a data set already"):
        write_arrays(tmp_path / "mine", (images, labels), (images, labels), names)
