"""Files that are written completely or not at all, and checked when they are read: text, JSON, arrays.

Nothing is unpickled: arrays are stored by name in safetensors files.
"""

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import numpy as np
import platformdirs
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from common.platform.errors import FileError, UserError

Arrays = dict[str, NDArray[Any]]
END_BYTES = 2**16
Model = TypeVar("Model", bound=BaseModel)


@contextmanager
def write_file_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to and renames it to `path` on success, so that readers never see half a file.

    Raises FileError if the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # a unique name, also on a shared disk
    try:
        with writing(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an error of writing `path` into a FileError with the system's message."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be written: {file_error_reason(error)}") from None


def file_error_reason(error: Exception) -> str:
    """The system's message of an error; the error's own text if there is none."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def user_cache() -> Path:
    """The folder of files that later runs of this user may reuse."""
    return platformdirs.user_cache_path("cnn-in-lockstep")


# --- The end of a log, and locks ---


def read_file_end(path: Path) -> str:
    """The last END_BYTES of a text. Raises OSError if it can't be read."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - END_BYTES))
        return file.read(END_BYTES).decode(errors="replace")


def lock_file(path: Path, wait: bool) -> IO[bytes]:
    """Locks the file `path`, which is made if it is missing, until the result is closed or the process ends.

    Args:
      wait: whether to wait for the process that holds the lock.

    Raises:
      BlockingIOError: another process holds the lock.
      OSError: the file can't be made or opened.
    """
    lock: IO[bytes] = path.open("a+b")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        lock.close()
        raise
    except OSError:  # a file system without locks
        pass
    return lock


# --- Fields of stored files ---


# As large as the whole numbers of arrays and tables may be.
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(gt=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


# --- Text, bytes and JSON ---


def write_text(path: Path, text: str) -> None:
    """Writes all of `text` or nothing, in UTF-8 whatever the system's encoding is."""
    with write_file_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes all of `content` or nothing."""
    with write_file_atomically(path) as temporary:
        temporary.write_bytes(content)


def write_json_model(path: Path, model: BaseModel) -> None:
    """Writes `model` as a JSON file, completely or not at all."""
    write_text(path, model.model_dump_json(indent=2) + "\n")


def read_json_model(schema: type[Model], path: Path, prefix: str = "") -> Model:
    """Reads a JSON file that follows `schema`.

    Raises UserError if the file is missing or can't be read (the message begins with `prefix`), or it breaks the
    schema.
    """
    try:
        return schema.model_validate_json(path.read_bytes().decode())
    except FileNotFoundError:
        raise UserError(f"{prefix}{path}: missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{prefix}{path}: cannot be read: {file_error_reason(error)}") from None
    except ValidationError as error:
        raise invalid_file_error(path, error) from None


def invalid_file_error(path: Path, error: ValidationError) -> UserError:
    """The error for a file that breaks its schema: the first problem and the field where it is."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or path.stem
    return UserError(f"{path}: not valid: {where}: {first['msg']}")


# --- Arrays ---


def write_safetensors(path: Path, arrays: Arrays, metadata: dict[str, str] | None = None) -> None:
    """Writes all arrays or nothing, as safetensors; `metadata` is for `read_safetensors_metadata`."""
    with write_file_atomically(path) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary, metadata)


def read_safetensors(path: Path, option: str = "") -> Arrays:
    """Reads a safetensors file. Raises UserError, which names `option`, if it is missing or not a safetensors file."""
    with _reading_arrays(path, option):
        return dict(load_file(path))


def read_safetensors_metadata(path: Path, option: str = "") -> dict[str, str]:
    """The metadata of a safetensors file. Raises UserError, which names `option`, if it is not a safetensors file."""
    with _reading_arrays(path, option), safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


@contextmanager
def _reading_arrays(path: Path, option: str) -> Iterator[None]:
    """Turns errors of reading a safetensors file into a UserError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:  # types that NumPy lacks: bfloat16, float8
        raise UserError(f"{option}{path}: holds numbers of a type that NumPy has not got ({error})") from None
    except (OSError, SafetensorError, ValueError, OverflowError) as error:  # NumPy's, of shapes that can't be
        raise UserError(f"{option}{path}: not a readable safetensors file: {file_error_reason(error)}") from None


def arrays_sha256(arrays: Arrays) -> str:
    """Hex digest over names, dtypes, shapes and bytes, in the sorted order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data)
    return digest.hexdigest()
