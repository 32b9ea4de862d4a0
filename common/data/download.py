"""Published files: their folders, the URLs to download them from, and the checksums of their contents.

Checksums are computed over the decompressed, unpacked content. They do not depend on how a mirror or a colleague
compressed it. A file is checked, written under a temporary name, and then renamed. So a file with its final name is
always complete and correct, and any number of processes can fetch the same file at the same time.
"""

import fcntl
import gzip
import hashlib
import os
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from common.data.formats import MOST_BYTES, read_bytes
from common.platform.errors import UserError
from common.platform.files import written_whole

TIMEOUT_SECONDS = 30  # without a byte from the server
LEAST_RATE = 2000  # bytes per second on average since the start; checked after TIMEOUT_SECONDS


@dataclass(frozen=True)
class Source:
    """The files of one data set.

    Attributes:
      folder: the files' folder within the data folder, as in torchvision.
      md5: file name -> hex digest of the decompressed content, as published.
      urls: URLs to download from, tried in order. `{}` is replaced by a file's name with .gz. A URL without `{}` is an
        archive of all the files.
    """

    folder: str
    md5: dict[str, str]
    urls: tuple[str, ...]

    def ready(self, data_dir: Path) -> dict[str, Path]:
        """File name -> path of the files that exist, raw or gzip-compressed."""
        folder = data_dir / self.folder
        found = {}
        for name in self.md5:
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    found[name] = path
                    break
        return found

    def fetch(self, data_dir: Path) -> dict[str, Path]:
        """File name -> path of all files; downloads those that are missing.

        Raises:
          UserError: the folder can't be made, or no URL worked; the message then names every URL with its error.
        """
        folder = data_dir / self.folder
        found = self.ready(data_dir)
        missing = [name for name in self.md5 if name not in found]
        if not missing:
            return found
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--data-dir {data_dir}: {error}") from None
        archive = all("{}" not in url for url in self.urls)
        # One process downloads. Others that need the same files wait here, and then find them. The lock only avoids
        # repeated downloads: on a file system without locks, files still appear complete or not at all.
        with open(folder / ".lock", "w") as lock:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            missing = [name for name in missing if name not in self.ready(data_dir)]
            for group in [missing] if archive and missing else [[name] for name in missing]:
                self._fetch_group(folder, group)
        return self.ready(data_dir)

    def _fetch_group(self, folder: Path, names: list[str]) -> None:
        failures = []
        for url in (one.format(f"{names[0]}.gz") for one in self.urls):
            try:
                with _download(url, folder) as path:
                    for name, content in _contents(path, names):
                        self.check(name, content, url)
                        with written_whole(folder / f"{name}.gz") as temporary:
                            temporary.write_bytes(gzip.compress(content, compresslevel=1, mtime=0))
                return
            except (OSError, EOFError, zlib.error, tarfile.TarError, UserError) as error:
                failures.append(f"{url}: {_reason(error)}")
        raise UserError(
            f"{', '.join(names)} not in {folder} (--data-dir), and no download worked: " + "; ".join(failures)
        )

    def check(self, name: str, content: bytes, where: str) -> None:
        """Raises UserError unless `content` is what was published as `name`."""
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != self.md5[name]:
            raise UserError(f"{where}: content of {name} has md5 {found}, published is {self.md5[name]}")

    def read(self, path: Path, name: str) -> bytes:
        """The checked content of a file that `ready` or `fetch` returned."""
        content = read_bytes(path)
        self.check(name, content, f"{path} is damaged or another file; remove it to download it again")
        return content


def _reason(error: Exception) -> str:
    """A short error message: requests repeats the address three times when a connection fails."""
    import requests  # its exceptions are OSErrors

    if isinstance(error, requests.RequestException) and error.response is None:
        return type(error).__name__
    return str(error)


def _contents(path: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of every file in `names`, from one gzip-compressed file or from an archive."""
    if not tarfile.is_tarfile(path):
        yield names[0], read_bytes(path, compressed=True)
        return
    with tarfile.open(path) as archive:
        members = {Path(member.name).name: member for member in archive if member.isfile()}
        for name in names:
            member = archive.extractfile(members[name]) if name in members else None
            if member is None:
                raise UserError(f"no {name} in the archive")
            if members[name].size > MOST_BYTES:
                raise UserError(f"{name} in the archive would have {members[name].size:,} bytes")
            yield name, member.read()


@contextmanager
def _download(url: str, folder: Path) -> Iterator[Path]:
    """Downloads into a temporary file, which is removed afterwards; shows the progress on a terminal."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".download.")
    os.close(handle)
    try:
        bar = _Bar(url)
        try:
            # Imported here: with requests, the import takes a quarter of a second. Only downloads need it.
            import pooch

            pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_SECONDS)(url, temporary, None)
        finally:
            bar.close()
        yield Path(temporary)
    finally:
        os.unlink(temporary)


class _Bar:
    """A progress bar drawn by rich, with the methods that pooch needs: total, update, reset, close."""

    def __init__(self, url: str) -> None:
        print(f"downloading {url}", file=sys.stderr)
        self._progress = Progress(
            TextColumn("  "),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("")
        self._total = self._done = 0
        self._started = time.monotonic()

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, value: int) -> None:
        self._total = value
        self._progress.update(self._task, total=value or None)
        if self._progress.console.is_terminal:
            self._progress.start()

    def update(self, size: int) -> None:
        """Raises UserError if the file is too large or the download is too slow."""
        self._progress.advance(self._task, size)
        self._done += size
        seconds = time.monotonic() - self._started
        if self._done > MOST_BYTES:
            raise UserError(f"more than {MOST_BYTES:,} bytes")
        if seconds > TIMEOUT_SECONDS and self._done < LEAST_RATE * seconds:
            raise UserError(f"only {self._done:,} bytes in {seconds:.0f} seconds")

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
