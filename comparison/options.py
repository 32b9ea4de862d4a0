"""The options of compare.py: those of a run, passed on to every implementation alike, and its own."""

import os
import shutil
import sys
from pathlib import Path

from pydantic import Field

from common.config import TrainConfig, TrainingOptions
from common.errors import UserError
from common.machine import REPOSITORY
from common.rundir import new_run_dir


class CompareConfig(TrainingOptions):
    """`python compare.py --help` prints all of it."""

    implementations: list[str] = Field(
        ["tf", "pt", "ptl"],
        min_length=1,
        description="which to run, in this order; NAME stands for the folder NAME_impl",
    )
    python: list[str] = Field(
        [], description="interpreters, as NAME=PATH, for implementations that live in another environment"
    )
    output_dir: Path | None = Field(None, description="folder for all results; unset: a new one under results/")
    timeout: float = Field(3600.0, gt=0, description="seconds that one implementation may take")

    def train_config(self, run_dir: Path | None = None) -> TrainConfig:
        """The part that goes to an implementation."""
        options = {name: getattr(self, name) for name in TrainingOptions.model_fields}
        return TrainConfig(**options, run_dir=run_dir)

    def make_output_dir(self) -> Path:
        """The folder of the comparison, made and empty. Raises UserError where it can't be."""
        folder = self.output_dir
        if folder is None:
            return new_run_dir(f"{self.dataset}-{self.model}", Path("results"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UserError(f"--output-dir {folder}: is not empty")
        except OSError as error:
            raise UserError(f"--output-dir {folder}: {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise UserError(f"--output-dir {folder}: not writable")
        return folder

    def check_implementations(self) -> None:
        """Raises UserError for a name that is no implementation here, or stands twice."""
        known = sorted(path.parent.name.removesuffix("_impl") for path in REPOSITORY.glob("*_impl/__main__.py"))
        for name in self.implementations:
            if name not in known:
                raise UserError(f"--implementations {name}: not one of {', '.join(known)}")
            if self.implementations.count(name) > 1:
                raise UserError(f"--implementations {name}: named twice")

    def interpreters(self) -> dict[str, str]:
        """Implementation -> path of its Python. Raises UserError for one that cannot be run."""
        paths = dict.fromkeys(self.implementations, sys.executable)
        for item in self.python:
            name, _, path = item.partition("=")
            if name not in paths or not path:
                raise UserError(f"--python {item}: should be NAME=PATH with NAME one of {', '.join(paths)}")
            found = shutil.which(path)
            if found is None:
                raise UserError(f"--python {item}: no program at {path}")
            paths[name] = found
        return paths
