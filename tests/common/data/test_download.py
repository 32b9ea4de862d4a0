"""Downloads from a server on this machine: checksums, mirrors, a full disk, several processes."""

import contextlib
import gzip
import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import threading
import time

import pytest
from conftest import REPOSITORY

from common.data import download
from common.data.download import Source
from common.platform.errors import UserError

CONTENT = {"a": b"first file" * 1000, "b": b"second file" * 1000}
MD5 = {name: hashlib.md5(content).hexdigest() for name, content in CONTENT.items()}
ONE = {"a": MD5["a"]}
A_COMPRESSED = gzip.compress(CONTENT["a"])


@pytest.fixture
def server():
    """Serves `server.files` (path -> bytes), after `server.delays` (path -> seconds); `server.asked` has the paths."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802  (the name that http.server calls)
            self.server.asked.append(self.path)
            content = self.server.files.get(self.path)
            time.sleep(self.server.delays.get(self.path, 0))
            with contextlib.suppress(OSError):
                self.send_response(200 if content is not None else 404)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.delays = {}, [], {}
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def read_all(source, folder):
    return dict(zip(source.md5, (content for _, content in source.read(folder)), strict=True))


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_files_are_fetched_once_and_not_if_they_are_there_raw_or_compressed(server, tmp_path):
    server.files = {f"/{name}.gz": gzip.compress(content) for name, content in CONTENT.items()}
    source = Source("d", MD5, (server.url + "/{}",))
    for _ in range(2):
        assert read_all(source, tmp_path) == CONTENT and sorted(server.asked) == ["/a.gz", "/b.gz"]
    (tmp_path / "d" / "a.gz").unlink()
    (tmp_path / "d" / "a").write_bytes(CONTENT["a"])
    assert read_all(source, tmp_path) == CONTENT and len(server.asked) == 2


def test_an_archive_gives_all_its_files_and_only_those_wanted(server, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in {"folder/a": CONTENT["a"], "folder/b": CONTENT["b"], "folder/readme": b"x"}.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.files = {"/all.tar.gz": buffer.getvalue()}
    assert read_all(Source("d", MD5, (server.url + "/all.tar.gz",)), tmp_path) == CONTENT
    assert server.asked == ["/all.tar.gz"] and files_in(tmp_path) == [".lock", "a.gz", "b.gz"]


BAD_MIRRORS = {
    "missing": (None, "404"),
    "other": (gzip.compress(b"another content"), "content of a has md5"),
    "cut": (A_COMPRESSED[:-20], "ended before the end-of-stream"),
    "silent": (A_COMPRESSED, "ReadTimeout"),
}


@pytest.mark.parametrize("mirror", BAD_MIRRORS)
def test_a_mirror_that_fails_or_gives_something_else_is_passed_over(server, tmp_path, monkeypatch, mirror):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 1)
    content, reason = BAD_MIRRORS[mirror]
    server.files = {"/good/a.gz": A_COMPRESSED, f"/{mirror}/a.gz": content}
    server.delays = {"/silent/a.gz": 3}
    bad = f"{server.url}/{mirror}/{{}}"
    with pytest.raises(UserError) as error:
        read_all(Source("d", ONE, (bad,)), tmp_path)
    assert "a not in" in str(error.value) and f"/{mirror}/a.gz: " in str(error.value) and reason in str(error.value)
    assert files_in(tmp_path) == [".lock"]
    assert read_all(Source("d", ONE, (bad, server.url + "/good/{}")), tmp_path) == {"a": CONTENT["a"]}
    assert files_in(tmp_path) == [".lock", "a.gz"]


def test_processes_that_want_the_same_download_it_once(server, tmp_path):
    server.files, server.delays = {"/a.gz": A_COMPRESSED}, {"/a.gz": 1}  # by then, the other processes want it too
    code = f"""
from pathlib import Path
from common.data.download import Source
assert len(list(Source("d", {ONE!r}, ("{server.url}/{{}}",)).read(Path("{tmp_path}")))) == 1
"""
    running = [subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY) for _ in range(3)]
    assert [process.wait(100) for process in running] == [0] * 3 and server.asked == ["/a.gz"]
