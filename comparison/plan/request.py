"""`comparison.json`, the request that a comparison's folder begins with, and the lock of that folder."""

import atexit
import json
import os
import platform
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from common.platform.errors import UserError
from common.platform.files import lock_file, read_json_model, write_text
from common.record.run_folder import new_run_dir
from common.spec.options import TrainConfig
from comparison.plan.options import CompareConfig

REQUEST_FILE = "comparison.json"


class Request(BaseModel, frozen=True, extra="forbid"):
    """`comparison.json`.

    Attributes:
      commands: the command that began the comparison, and those that resumed it.
      config: the options of a run, with the accelerator and the devices that all implementations can use.
      created: the time when the comparison was begun, ISO 8601, UTC.
      warnings: what was noticed when the comparison was begun, such as a GPU that a framework can't use.
    """

    schema_version: Literal[2]
    created: str
    commands: list[str] = Field(min_length=1)
    options: CompareConfig
    config: TrainConfig
    warnings: list[str] = []

    def write(self, folder: Path) -> None:
        content = self.model_dump(mode="json", exclude={"options"})
        # Only the options that were given: for the others, the defaults of the version that reads the file apply.
        content["options"] = self.options.model_dump(mode="json", exclude_unset=True)
        write_text(folder / REQUEST_FILE, json.dumps(content, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path, option: str) -> "Request":
        """Reads the request. Raises UserError, which names `option`, if the folder has no comparison."""
        return read_json_model(cls, folder / REQUEST_FILE, f"{option} {folder}: holds no comparison; ")


LOCK_FILE = ".lock"


def make_output_dir(options: CompareConfig) -> Path:
    """Makes the folder of the comparison, or uses an empty one. Raises UserError if that is not possible."""
    folder = options.output_dir
    if folder is None:
        return new_run_dir(f"{options.dataset_name}-{options.network_name}", Path("results"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--output-dir {folder}: is not empty")
    except OSError as error:
        raise UserError(f"--output-dir {folder}: {error.strerror}") from None
    return folder


def take_request(folder: Path, option: str) -> Request:
    """Locks the comparison's folder for this process, and returns the request in it."""
    Request.read(folder, option)  # before the lock file is made: a folder without a request stays as it is
    hold_folder(folder, option)
    return Request.read(folder, option)  # again: the process that had the lock until now may have changed it


def hold_folder(folder: Path, option: str) -> None:
    """Locks the comparison's folder for this process. Raises UserError if another compare.py is at work there."""
    try:
        lock = lock_file(folder / LOCK_FILE, wait=False)
    except BlockingIOError:
        holder = (folder / LOCK_FILE).read_text(errors="replace").strip()
        raise UserError(f"{option} {folder}: another compare.py is at work there ({holder})") from None
    except OSError as error:
        raise UserError(f"{option} {folder}: {LOCK_FILE} cannot be locked: {error.strerror}") from None
    atexit.register(lock.close)  # keeps it open until this process ends in whatever way
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}\n".encode())
    lock.flush()
