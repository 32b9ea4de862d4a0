"""Published files: where they lie in a data folder, where they come from, what they must contain.

Checksums are over the content (decompressed, unpacked), so that it does not matter how a mirror or a
colleague compressed it. A file appears under its name only when it is whole and right, by renaming, so
any number of processes can fetch the same file at once.
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
LEAST_RATE = 2000  # bytes per second, on the average since the first TIMEOUT_SECONDS


@dataclass(frozen=True)
class Source:
    """The files of one data set.

    Attributes:
      folder: where they lie below the data folder, as in torchvision.
      md5: file name -> hex digest of the decompressed content, as published.
      urls: places to download from, tried in order; `{}` stands for a file's name, without it the URL
        is an archive of all the files.
    """

    folder: str
    md5: dict[str, str]
    urls: tuple[str, ...]

    def ready(self, data_dir: Path) -> dict[str, Path]:
        """File name -> path for those that are there, raw or gzip-compressed."""
        folder = data_dir / self.folder
        found = {}
        for name in self.md5:
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    found[name] = path
                    break
        return found

    def fetch(self, data_dir: Path) -> dict[str, Path]:
        """File name -> path of all files, after downloading those that are not there.

        Raises:
          UserError: naming every place that was tried and what it said.
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
        # One process downloads; others that want the same wait here, and find it. The lock only spares the network:
        # on a file system that has none, files still appear whole or not at all.
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
        """The checked content of a file that `ready` or `fetch` gave."""
        content = read_bytes(path)
        self.check(name, content, f"{path} is damaged or another file; remove it to download it again")
        return content


def _reason(error: Exception) -> str:
    """Short: what requests says of a failed connection repeats the address three times."""
    import requests  # whose exceptions are OSErrors

    if isinstance(error, requests.RequestException) and error.response is None:
        return type(error).__name__
    return str(error)


def _contents(path: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file wanted, out of one gzip-compressed file or an archive of them."""
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
    """The downloaded file, under a name of its own that goes away again, with progress on a terminal."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".download.")
    os.close(handle)
    try:
        bar = _Bar(url)
        try:
            # Imported here, and requests with it: they take a quarter of a second that runs whose data are there can do
            # without.
            import pooch

            pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_SECONDS)(url, temporary, None)
        finally:
            bar.close()
        yield Path(temporary)
    finally:
        os.unlink(temporary)


class _Bar:
    """What pooch asks of a progress bar (total, update, reset, close), drawn by rich."""

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
        """Raises UserError where it is too much, or too slow to be waited for."""
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
