"""Arrays in safetensors files, under canonical names and in the canonical layout. Nothing is unpickled."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from common.platform.errors import UserError

Arrays = dict[str, NDArray[Any]]


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Writes all arrays, or nothing: to a temporary name first, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
    os.replace(temporary, path)


def read_arrays(path: Path, option: str = "") -> Arrays:
    """Raises UserError, which names `option`, where the file is missing or no safetensors file."""
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{option}{path}: not a readable safetensors file: {error}") from None


def arrays_sha256(arrays: Arrays) -> str:
    """Hex digest over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()
