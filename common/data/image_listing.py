"""The images of a folder, their labels, and the split into training and test images."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from common.platform.errors import UserError
from common.spec.options import MAX_CLASSES, ImageShape
from common.spec.randomness import STREAM_SPLIT, random_bits

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}  # others are ignored
TRAIN_WORD, TEST_WORDS = "train", ("test", "val")  # in names of folders such as training_set; the first one counts

# How an image of another shape is fitted to the data set's shape.
Fit = Literal["crop", "pad", "stretch"]


class ImageFolderConfig(BaseModel):
    """The options of make_dataset.py; `python make_dataset.py --help` prints them all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: Path = Field(
        description="folder with a sub-folder for each class; or with folders for training and testing (train and"
        " test or val, or such as training_set and test_set) that hold such sub-folders"
    )
    output: Path = Field(description="folder for the arrays, to be given as --data-dir with --dataset arrays")
    image_shape: ImageShape = Field(
        (64, 64, 3), description="height, width and channels (1 or 3) that every image is brought to"
    )
    fit: Fit = Field(
        "crop", description="where an image has another shape: cut what is too much, pad with black, or stretch"
    )
    test_share: float = Field(
        0.2, gt=0, lt=1, description="share of each class used for testing, if there is no folder test or val"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed for choosing those test images")
    unreadable: Literal["refuse", "skip"] = Field(
        "refuse",
        description="what to do with images that can't be read, which are always listed; refuse: make no"
        " data set; skip: leave them out",
    )
    jobs: Literal["auto"] | Annotated[int, Field(gt=0, le=1024)] = Field(
        "auto", description="processes; auto: one for each core"
    )

    @model_validator(mode="after")
    def _channels(self) -> "ImageFolderConfig":
        if self.image_shape[2] not in (1, 3):
            raise ValueError(
                f"--image-shape {' '.join(map(str, self.image_shape))}: the last is 1 (grey) or 3 (colour)"
            )
        return self


@dataclass(frozen=True)
class Listing:
    """The images to convert: (path within the source, label) of each; the first `num_train` are for training.

    Attributes:
      left_out: paths of the other files and folders, which are not used; hidden ones are not listed.
      deeper: paths of those images that are not in the folder of their class itself, but in one below it.
    """

    class_names: list[str]
    files: list[tuple[str, int]]
    num_train: int
    left_out: list[str]
    deeper: list[str]


def list_images(config: ImageFolderConfig) -> Listing:
    """Every image with its label, training images first; repeated calls return the same order."""
    source = config.images
    if not source.is_dir():
        what = "is a file" if source.exists() else "no such folder"
        raise UserError(f"--images {source}: {what}; for arrays of your own, see docs/options.md")
    if config.output.resolve().is_relative_to(source.resolve()):
        raise UserError(
            f"--output {config.output}: is inside --images {source}, as if it were a class; name a folder elsewhere"
        )
    folders, left_out = _content(source, "")
    if train_and_test := _parts(source, folders):
        of_train, of_test = train_and_test
        left_out += [name for name in folders if name not in train_and_test]
        class_names, beside_classes = _content(source, of_train)
        test_names, beside_test_classes = _content(source, of_test)
        left_out += beside_classes + beside_test_classes
        if unknown := sorted(set(test_names) - set(class_names)):
            raise UserError(f"--images {source}: {of_test}/{unknown[0]} is a class that {of_train}/ doesn't have")
        parts = [_files(source, f"{part}/{name}", left_out) for part in train_and_test for name in class_names]
        train, testing = parts[: len(class_names)], parts[len(class_names) :]
    else:
        class_names = folders
        train, testing = [], []
        for label, name in enumerate(class_names):
            files = _files(source, name, left_out)
            order = np.argsort(random_bits(len(files), config.seed, STREAM_SPLIT, label), kind="stable")
            count = min(max(1, round(config.test_share * len(files))), len(files) - 1) if len(files) > 1 else 0
            chosen = set(order[:count].tolist())
            testing.append([path for index, path in enumerate(files) if index in chosen])
            train.append([path for index, path in enumerate(files) if index not in chosen])
    if len(class_names) < 2:
        raise UserError(
            f"--images {source}: {len(class_names)} sub-folders; each class needs one, and two classes at least"
        )
    for name in class_names:
        if not name.isprintable():  # tables could not show it, and bytes that are not UTF-8 can't be written
            raise UserError(f"--images {source}: {name!a} can't be the name of a class; rename this folder")
    if len(class_names) > MAX_CLASSES:
        raise UserError(f"--images {source}: {len(class_names)} classes; {MAX_CLASSES} at most")
    for name, files in zip(class_names, train, strict=True):
        if not files:
            raise UserError(
                f"--images {source}: no images of class {name} for training ({', '.join(sorted(SUFFIXES))})"
            )
    if not any(testing):
        raise UserError(f"--images {source}: no images to test on")
    labelled = [(path, label) for part in (train, testing) for label, files in enumerate(part) for path in files]
    depth = 3 if train_and_test else 2
    deeper = [path for path, _ in labelled if len(Path(path).parts) > depth]
    return Listing(class_names, labelled, sum(map(len, train)), left_out, deeper)


def _parts(source: Path, folders: Sequence[str]) -> tuple[str, str] | None:
    """The folders of the training and of the test images; None if the sub-folders are the classes themselves.

    Raises UserError if they are neither: no sub-folder holds images, and nothing says which one is for training.
    """
    train = [name for name in folders if TRAIN_WORD in name.lower()]
    train = [TRAIN_WORD] if TRAIN_WORD in train else train
    test = [name for word in TEST_WORDS for name in folders if word in name.lower() and name not in train]
    test.sort(key=lambda name: name not in TEST_WORDS)
    if len(train) == 1 and test and train[0] == TRAIN_WORD and test[0] in TEST_WORDS:
        return train[0], test[0]
    inside = {name: _content(source, name) for name in folders}
    with_images = [any(Path(file).suffix.lower() in SUFFIXES for file in files) for _, files in inside.values()]
    if any(with_images) or not any(below for below, _ in inside.values()):
        return None
    if len(train) == 1 and test:
        return train[0], test[0]
    found = "; ".join(
        f"{name}: {', '.join(below[:3])}{', ...' * bool(below[3:])}" for name, (below, _) in inside.items()
    )
    raise UserError(
        f"--images {source}: its sub-folders hold no images, but folders ({found}); if those are the classes, name the"
        " sub-folders train and test; otherwise give the folder whose sub-folders are the classes"
    )


def _content(source: Path, folder: str) -> tuple[list[str], list[str]]:
    """Names of the sub-folders of a folder, sorted, and paths of all else in it, relative to `source`."""
    paths = [path for path in sorted((source / folder).iterdir()) if not path.name.startswith(".")]
    others = [str(path.relative_to(source)) for path in paths if not path.is_dir()]
    return [path.name for path in paths if path.is_dir()], others


def _files(source: Path, folder: str, left_out: list[str]) -> list[str]:
    """Paths of the images below a folder, relative to `source`, sorted. Adds the paths of all else to `left_out`."""
    images: list[str] = []
    for root, folders, names in os.walk(source / folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        left_out += [str(Path(root, name).relative_to(source)) for name in folders if Path(root, name).is_symlink()]
        for name in names:
            if name.startswith("."):
                continue
            path = Path(root, name)
            is_image = path.suffix.lower() in SUFFIXES and path.is_file()  # a pipe would block the reader
            (images if is_image else left_out).append(str(path.relative_to(source)))
    return sorted(images)
