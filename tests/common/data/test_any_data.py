"""Readers of data: any bytes give the right arrays or a one-line error."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from fuzzing import damaged, how_many, line_or_result, try_out
from hypothesis import strategies as st
from PIL import Image

from common.data.arrays import array_path, open_array, read_arrays_folder, write_arrays_info
from common.data.formats import CIFAR_SHAPE, parse_cifar_binary, parse_cifar_pickle, parse_idx
from common.data.image_files import read_image
from common.data.image_listing import SUFFIXES
from common.platform.errors import UserError
from common.platform.files import read_safetensors, write_safetensors
from common.spec.networks import NetworkSpec


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


ARRAYS = [np.arange(size, dtype=np.uint8).reshape(shape) for size, shape in ((6, (6,)), (24, (2, 3, 4)), (0, (0, 5)))]


@how_many
def test_idx(cases):
    def check(content):
        with line_or_result():
            array = parse_idx(content, "f")
            assert idx(array) == content

    try_out(cases, check, st.one_of(damaged(*map(idx, ARRAYS)), st.binary(max_size=64)))


def test_dimensions_that_are_too_large_for_no_bytes_are_reported():
    with line_or_result():
        parse_idx(bytes([0, 0, 8, 4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 6, 0, 1, 2, 3, 4, 5]), "f")
        pytest.fail("it is no array")


RECORD = 1 + int(np.prod(CIFAR_SHAPE))


@how_many
def test_cifars_binary_format(cases):
    def check(size, coarse):
        content = bytes(index % 251 for index in range(size))
        with line_or_result():
            images, labels = parse_cifar_binary(content, "f", 1 + coarse)
            records = np.frombuffer(content, np.uint8).reshape(len(labels), RECORD + coarse)
            assert np.array_equal(labels, records[:, coarse])
            assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(len(labels), -1), records[:, 1 + coarse :])

    near = st.integers(0, 3).flatmap(lambda number: st.integers(-2, 2).map(lambda off: max(0, number * RECORD + off)))
    try_out(cases, check, st.one_of(near, st.integers(0, 4 * RECORD)), st.integers(0, 1))


def batch():
    pixels = np.arange(2 * (RECORD - 1), dtype=np.uint64).astype(np.uint8).reshape(2, -1)
    return {b"data": pixels, b"labels": [3, 7], b"batch_label": b"one", b"filenames": [b"a.png", b"b.png"]}


@how_many
def test_cifars_pickled_format(cases, capsys):
    """Nothing that the pickle names may run, and no number in it may make the reader allocate much memory."""
    pickles = [pickle.dumps(batch(), protocol) for protocol in (2, 4)]
    right = parse_cifar_pickle(pickles[0], "f")

    def check(content):
        with line_or_result():
            images, labels = parse_cifar_pickle(content, "f")
            assert images.dtype == np.uint8 and images.shape == (len(labels), 32, 32, 3)
            if content in pickles:
                assert np.array_equal(images, right[0]) and np.array_equal(labels, right[1])

    try_out(cases, check, damaged(*pickles))
    assert capsys.readouterr() == ("", "")


def test_a_pickle_with_a_huge_frame_is_reported():
    with line_or_result():
        parse_cifar_pickle(b"\x80\x04\x95" + b"\xff" * 8 + b"}.", "f")
        pytest.fail("it is no batch")


@pytest.mark.parametrize("index", [2**20, 2**31 - 1, 2**32 - 1])
def test_a_pickle_with_a_huge_index_takes_no_memory(index):
    content = b"\x80\x02}r" + index.to_bytes(4, "little") + b"."
    with line_or_result():
        parse_cifar_pickle(content, "f")
        pytest.fail("it is no batch")


def pictures():
    """Small images in every supported format."""
    image = Image.fromarray((np.arange(12 * 10 * 3) % 251).astype(np.uint8).reshape(12, 10, 3))
    grey = Image.fromarray(np.arange(120, dtype=np.uint16).reshape(12, 10) * 500)
    found = {}
    for suffix in sorted(SUFFIXES):
        file = io.BytesIO()
        one = image.convert("L") if suffix == ".pgm" else image
        one.save(file, Image.registered_extensions()[suffix])
        found[suffix] = [file.getvalue()]
    file = io.BytesIO()
    grey.save(file, "PNG")
    return found | {".png": [*found[".png"], file.getvalue()]}


@how_many
def test_images(cases, tmp_path):
    kinds = pictures()

    def check(kind, data, channels, fit):
        content = data.draw(damaged(*kinds[kind]))
        path = tmp_path / f"image{kind}"
        path.write_bytes(content)
        with line_or_result():
            image = read_image(path, (8, 9, channels), fit).pixels
            assert image.shape == (8, 9, channels) and image.dtype == np.uint8

    fits = st.sampled_from(["crop", "pad", "stretch"])
    try_out(cases, check, st.sampled_from(sorted(kinds)), st.data(), st.sampled_from([1, 3]), fits)


def folder_of_arrays(folder: Path):
    for part, number in (("train", 4), ("test", 2)):
        np.save(array_path(folder, part, "images"), np.full((number, 3, 3, 1), number, np.uint8))
        np.save(array_path(folder, part, "labels"), np.arange(number, dtype=np.int64) % 2)
    write_arrays_info(folder, ["a", "b"])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@how_many
def test_folders_of_arrays(cases, tmp_path):
    files = folder_of_arrays(tmp_path)

    def check(name, data):
        content = data.draw(damaged(files[name]))
        (tmp_path / name).write_bytes(content)
        try:
            with line_or_result():
                info, train, test = read_arrays_folder(tmp_path)
                for images, labels in (train, test):
                    assert images.dtype == np.uint8 and images.shape == (len(labels), 3, 3, 1)
                    assert set(labels.tolist()) <= set(range(len(info.class_names)))
                assert np.isfinite([*info.mean, *info.std]).all() and min(info.std) > 0
                assert all(name.isprintable() for name in info.class_names)
        finally:
            (tmp_path / name).write_bytes(files[name])

    try_out(cases, check, st.sampled_from(sorted(files)), st.data())


@how_many
def test_weights(cases, tmp_path):
    network = NetworkSpec.make("cnn", (4, 4, 1), 2)
    small = {name: array.astype(np.float32) for name, array in network.initial_weights(0).items()}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, small)
    whole = path.read_bytes()
    types = [b"F32", b"F64", b"F16", b"BF16", b"I64", b"BOOL", b"F8_E4M3", b"C64", b"ABC"]

    def check(content, kind):
        path.write_bytes(content.replace(b"F32", kind, 1))
        with line_or_result():
            weights = network.check(read_safetensors(path, "--weights "), f"--weights {path}")
            assert {name: array.shape for name, array in weights.items()} == {
                name: array.shape for name, array in small.items()
            }
            assert all(np.isfinite(array).all() for array in weights.values())

    try_out(cases, check, damaged(whole), st.sampled_from(types))


@pytest.mark.parametrize("read", [lambda path: read_image(path, (4, 4, 1), "crop"), open_array])
def test_a_picture_or_an_array_that_never_ends_is_refused(tmp_path, read):
    os.mkfifo(tmp_path / "a")
    (tmp_path / "b").symlink_to("/dev/zero")
    for path in tmp_path.iterdir():
        with pytest.raises(UserError, match="not a regular file"):
            read(path)
