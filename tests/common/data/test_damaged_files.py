"""Images and weights that are damaged or cut off, as after a full disk, are refused in one line."""

import numpy as np
import pytest
from PIL import Image

from common.data.image_files import read_image
from common.platform.errors import UserError
from common.platform.files import read_safetensors, write_safetensors
from common.spec.networks import NetworkSpec


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp"])
def test_an_image_that_is_cut_off_is_refused(tmp_path, suffix):
    path = tmp_path / f"image{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    assert read_image(path, (8, 9, 3), "crop").pixels.shape == (8, 9, 3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=f"^{path}: "):
        read_image(path, (8, 9, 3), "crop")


def test_weights_that_are_damaged_are_refused(tmp_path):
    network = NetworkSpec.make("cnn", (4, 4, 1), 2)
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {name: array.astype(np.float32) for name, array in network.initial_weights(0).items()})
    content = path.read_bytes()
    for damaged in (content[:-1], content.replace(b"F32", b"I32", 1)):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^--weights {path}: "):
            network.check(read_safetensors(path, "--weights "), f"--weights {path}")
