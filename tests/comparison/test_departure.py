"""Where two trainings part, and what to suspect."""

import numpy as np
from made_up import comparison

from common.platform.files import write_safetensors
from comparison.lockstep import find_departure


def test_images_of_another_integer_type_are_suspected(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    folders = []
    for name, pixels in (("a", images), ("b", images.astype(np.int8))):
        runs = comparison(tmp_path / name, implementations=["pt"], verify="never").runs
        folders.append(tmp_path / name / runs["run_dir"][0])
        write_safetensors(folders[-1] / "first_batch.safetensors", {"activation.input": (pixels - 33.0) / 78})
    assert "suspect an integer type such as int8 for uint8: " in find_departure(*folders, 1e-10)
