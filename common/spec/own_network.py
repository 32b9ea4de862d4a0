"""A network of the user's: a folder with `pt.py`, `tf.py` or `jax.py`, see docs/porting.md.

Training must know its parameters, its initial weights, and which value in one framework is which in another. Only the
frameworks can tell. `python -m port.prepare` runs the files, checks that they are the same network, and writes this to
the user's cache, where it is found by the content of the folder.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from common.platform.errors import UserError
from common.platform.files import Arrays, lock_file, read_json_model, read_safetensors, user_cache
from common.platform.machine import REPOSITORY

NETWORK_FILES = {"pt": "pt.py", "tf": "tf.py", "jax": "jax.py"}  # framework -> its file in a network's folder
NETWORK_FILE = "network.json"
COPIES_FOLDER = "network"  # the folder in that of a comparison
CACHE_FORMAT = 4  # of the files in the cache

Shape = tuple[int, int, int]


class Prepared(BaseModel, frozen=True, extra="forbid"):
    """`network.json`.

    Attributes:
      parameters: canonical name -> shape, in the order in which the reference uses them. The reference is the folder's
        first file in the order of NETWORK_FILES; a name is that of its layer, and the kind of the parameter.
      flops_per_image: floating-point operations of one forward pass over one image, of kernels alone.
      drops: whether the network has dropout, for which each framework draws random numbers of its own.
      has_loss: whether the files have a function `loss`, which replaces the cross-entropy.
      num_outputs: of each image; with a loss of its own a network may have others than a score for each class.
    """

    parameters: dict[str, tuple[int, ...]]
    flops_per_image: int
    drops: bool
    has_loss: bool
    num_outputs: int


@dataclass(frozen=True, eq=False)  # compared by identity: its arrays have no single truth value
class Layout:
    """Where a framework keeps each value of the canonical arrays.

    Attributes:
      shapes: canonical name -> shape.
      places: the framework's name of an array -> int64, of its shape: the number of each value, if the values of all
        canonical arrays are counted one array after the other.
    """

    shapes: dict[str, tuple[int, ...]]
    places: Arrays

    def to_native(self, arrays: Arrays) -> Arrays:
        """The framework's arrays, from canonical ones; of those that are there."""
        flat = [np.ravel(arrays[name]) if name in arrays else np.zeros(_size(of)) for name, of in self.shapes.items()]
        there = [np.full(_size(shape), name in arrays) for name, shape in self.shapes.items()]
        kind = np.result_type(*(array.dtype for array in arrays.values()))
        values, known = np.concatenate(flat).astype(kind), np.concatenate(there)
        return {name: values[places] for name, places in self.places.items() if known[places.flat[0]]}

    def to_canonical(self, arrays: Arrays) -> Arrays:
        """The canonical arrays of the framework's: `to_native` backwards. Arrays of other names are left out."""
        own = {name: array for name, array in arrays.items() if name in self.places}
        ends = np.cumsum([_size(shape) for shape in self.shapes.values()])
        values = np.zeros(ends[-1], np.result_type(*(array.dtype for array in own.values())))
        known = np.zeros(ends[-1], bool)
        for name, array in own.items():
            values[self.places[name]], known[self.places[name]] = array, True
        parts = zip(self.shapes.items(), np.split(values, ends[:-1]), np.split(known, ends[:-1]), strict=True)
        return {name: part.reshape(shape) for (name, shape), part, there in parts if there[0]}


def to_native(layout: Layout | None, arrays: Arrays) -> Arrays:
    """The framework's arrays; the canonical ones where there is no layout, since it has the same."""
    return layout.to_native(arrays) if layout else arrays


def to_canonical(layout: Layout | None, arrays: Arrays) -> Arrays:
    """`to_native` backwards."""
    return layout.to_canonical(arrays) if layout else arrays


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape))


def is_folder(model: str) -> bool:
    """Whether `--model` names a folder of the user's."""
    return "/" in model


def read_prepared(place: Path) -> Prepared:
    """What is known of a network. Raises UserError.

    Args:
      place: what `prepare_network` returns, or a comparison's copy.
    """
    return read_json_model(Prepared, place / NETWORK_FILE)


@cache
def read_layout(model: str, image_shape: Shape, num_classes: int, framework: str, of: str = "arrays") -> Layout:
    """The layout in a framework, a key of NETWORK_FILES.

    It is that of its arrays, or of its layers as `port.run` sees them (`layers`). Raises UserError.
    """
    place = prepare_network(model, image_shape, num_classes, [framework])
    return Layout(read_prepared(place).parameters, read_safetensors(place / layout_file(framework, of)))


def layout_file(framework: str, of: str = "arrays") -> str:
    return f"{of}-{framework}.safetensors"


def prepared_files(model: str, image_shape: Shape, num_classes: int) -> list[str]:
    """The keys of NETWORK_FILES whose layouts are known already. Raises UserError."""
    place = prepare_network(model, image_shape, num_classes)
    return [name for name in NETWORK_FILES if (place / layout_file(name)).exists()]


def weights_file(seed: int) -> str:
    """Canonical name -> array, float64, as the reference's own initialisers draw them."""
    return f"weights-{seed}.safetensors"


def digest_of(model: str) -> str:
    """Over the user's files. Raises UserError if there are none."""
    digest = hashlib.sha256()
    for path in own_files(Path(model)):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def prepare_network(
    model: str, image_shape: Shape, num_classes: int, frameworks: Sequence[str] = (), seed: int | None = None
) -> Path:
    """The folder in the cache with what was asked for; what is missing there is made, in some seconds.

    Args:
      frameworks: whose layouts are needed, keys of NETWORK_FILES.
      seed: whose initial weights are needed; None: none.

    Raises:
      UserError: the folder or a file is missing, a file can't be run, or it is another network than the reference.
    """
    folder = Path(model)
    key = hashlib.sha256(repr((CACHE_FORMAT, digest_of(model), image_shape, num_classes)).encode()).hexdigest()
    place = user_cache() / "networks" / f"{folder.name}-{key[:16]}"
    wanted = [NETWORK_FILE, *map(layout_file, frameworks), *([] if seed is None else [weights_file(seed)])]
    if all((place / name).exists() for name in wanted):
        return place
    for framework in frameworks:
        check_file(model, framework)
    place.mkdir(parents=True, exist_ok=True)
    with lock_file(place / ".lock", wait=True):
        if all((place / name).exists() for name in wanted):  # made by another process meanwhile
            return place
        words = ["--image-shape", *image_shape, "--num-classes", num_classes]
        missing = [name for name in frameworks if not (place / layout_file(name)).exists()]
        words += ["--frameworks", *missing] if missing else []
        words += ["--seed", seed] if seed is not None else []
        command = [sys.executable, "-m", "port.prepare", folder.resolve(), place, *words]
        done = subprocess.run(list(map(str, command)), cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise UserError(f"--model {model}: {lines[-1]}")
    return place


def copy_into(model: str, comparison: Path, image_shape: Shape, num_classes: int) -> str:
    """Copies the user's files into a comparison's folder, with what is known of the network; returns the new folder."""
    copy = comparison.absolute() / COPIES_FOLDER / Path(model).name
    copy.mkdir(parents=True)
    for path in (*own_files(Path(model)), prepare_network(model, image_shape, num_classes) / NETWORK_FILE):
        shutil.copy(path, copy)
    return str(copy)


def drops_by_itself(comparison: Path) -> bool:
    """Whether a comparison is of a network of the user's with dropout, whose losses differ between frameworks."""
    return any(read_prepared(path.parent).drops for path in comparison.glob(f"{COPIES_FOLDER}/*/{NETWORK_FILE}"))


def check_file(model: str, framework: str) -> None:
    """Raises UserError if the folder has no file for the framework."""
    if not Path(model, NETWORK_FILES[framework]).is_file():
        raise UserError(f"--model {model}: has no {NETWORK_FILES[framework]}")


def own_files(folder: Path) -> list[Path]:
    """The user's files that make a network, by name. Raises UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"--model {folder}: no such folder")
    paths = sorted([*folder.glob("*.py"), *folder.glob("names.yaml")])
    if not {path.name for path in paths} & {*NETWORK_FILES.values()}:
        raise UserError(f"--model {folder}: has none of {', '.join(NETWORK_FILES.values())}")
    return paths
