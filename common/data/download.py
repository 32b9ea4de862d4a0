"""Published files: where they are kept, the URLs to download them from, and the checksums of their contents.

Checksums are computed over the decompressed, unpacked content. They do not depend on how a mirror or a colleague
compressed it. pooch could only check the compressed files, and knows one URL for each; so it only downloads here.
"""

import gzip
import hashlib
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from common.data.formats import read_bytes
from common.platform.errors import UserError
from common.platform.files import file_error_reason, lock_file, write_bytes

TIMEOUT_SECONDS = 30  # without a byte from the server


@dataclass(frozen=True)
class Source:
    """The files of one data set.

    Attributes:
      folder: the files' folder within the data folder, as in torchvision.
      md5: file name -> hex digest of the decompressed content, as published.
      urls: URLs to download from, tried in order. `{}` is replaced by a file's name with .gz. A URL without `{}` is an
        archive of all the files. Without URLs, the files are read where they exist, but never downloaded.
    """

    folder: str
    md5: dict[str, str]
    urls: tuple[str, ...] = ()

    def paths(self, data_dir: Path) -> dict[str, Path]:
        """File name -> path of the files that exist, raw or gzip-compressed; all of them are complete."""
        folder = data_dir / self.folder
        return {name: path for name in self.md5 for path in (folder / f"{name}.gz", folder / name) if path.is_file()}

    def is_complete(self, data_dir: Path) -> bool:
        return len(self.paths(data_dir)) == len(self.md5)

    def read(self, data_dir: Path) -> Iterator[tuple[str, bytes]]:
        """Yields (path, checked content) of all files in the order of `md5`; downloads those that are missing.

        Raises UserError if a file is damaged, the folder can't be written to, or no URL worked; the message then names
        every URL with its error.
        """
        if not self.is_complete(data_dir):
            folder = data_dir / self.folder
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # One process downloads. Others that need the same files wait here, and then find them. The lock only
                # avoids repeated downloads: on a file system without locks, files still appear complete or not at all.
                with lock_file(folder / ".lock", wait=True):
                    for name in self.md5:
                        if name not in self.paths(data_dir):  # an archive brings all of them at once
                            self._download(name, folder)
            except OSError as error:
                raise UserError(f"--data-dir {data_dir}: {file_error_reason(error)}") from None
        for name, path in self.paths(data_dir).items():
            content = read_bytes(path)
            self._check(name, content, f"{path} is damaged or another file; remove it to download it again")
            yield str(path), content

    def _download(self, name: str, folder: Path) -> None:
        """Downloads `name`, or an archive of all files, from the first URL that works."""
        failures = []
        for template in self.urls:
            url = template.format(f"{name}.gz")
            try:
                with tempfile.TemporaryFile(dir=folder) as file:  # without a name: a killed process leaves nothing
                    _request(url, file)
                    file.seek(0)
                    for member, content in self._unpack(file, None if url == template else name):
                        self._check(member, content, url)
                        write_bytes(folder / f"{member}.gz", gzip.compress(content, compresslevel=1, mtime=0))
                return
            except (OSError, EOFError, zlib.error, tarfile.TarError, UserError) as error:
                # Errors of requests without a response repeat the address three times.
                reason = str(error) if getattr(error, "response", error) is not None else type(error).__name__
                failures.append(f"{url}: {reason}")
        raise UserError(f"{name} not in {folder} (--data-dir), and no download worked: " + "; ".join(failures))

    def _unpack(self, file: IO[bytes], name: str | None) -> Iterator[tuple[str, bytes]]:
        """Yields (name, content) of the gzip-compressed file `name`, or of all files if `file` is an archive (None)."""
        if name is not None:
            yield name, gzip.GzipFile(fileobj=file).read()
            return
        with tarfile.open(fileobj=file) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for wanted in self.md5:
                content = archive.extractfile(members[wanted]) if wanted in members else None
                if content is None:
                    raise UserError(f"no {wanted} in the archive")
                yield wanted, content.read()

    def _check(self, name: str, content: bytes, where: str) -> None:
        """Raises UserError unless `content` is what was published as `name`."""
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != self.md5[name]:
            raise UserError(f"{where}: content of {name} has md5 {md5}, published is {self.md5[name]}")


def _request(url: str, file: IO[bytes]) -> None:
    """Writes what is at `url` to `file`; shows the progress on a terminal."""
    # Imported here: with requests, the import takes a quarter of a second. Only downloads need it.
    import pooch

    print(f"downloading {url}", file=sys.stderr)
    console = Console(stderr=True)
    columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        # What pooch asks of a progress bar; it sets `total`, in bytes, which is 0 if the server does not announce it.
        bar = SimpleNamespace(total=0, reset=lambda: progress.reset(task), close=lambda: None)
        bar.update = lambda num_bytes: progress.update(task, advance=num_bytes, total=bar.total or None)
        pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_SECONDS)(url, file, None)
