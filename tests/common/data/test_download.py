"""Downloads from a server on this machine: checksums, mirrors, damage, races."""

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
import time

import pytest
from conftest import REPOSITORY, remount, wait_for

from common.data import download
from common.data.download import Source
from common.platform.errors import UserError

CONTENT = {"a": b"first file" * 1000, "b": b"second file" * 1000}
MD5 = {name: hashlib.md5(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def server():
    """Serves `server.files` (path -> bytes, or a function that answers) and records the paths in `server.asked`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802  (the name that http.server calls)
            self.server.asked.append(self.path)
            content = self.server.files.get(self.path)
            if callable(content):
                with contextlib.suppress(OSError):
                    content(self)
                return
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked = {}, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def read_all(source, folder):
    return dict(zip(source.md5, (content for _, content in source.read(folder)), strict=True))


def leftovers(folder):
    return [path for path in folder.rglob(".*") if path.is_file() and path.name != ".lock"]


def test_files_are_fetched_once_and_however_they_are_compressed(server, tmp_path):
    server.files = {f"/{name}.gz": gzip.compress(content, 9 - i) for i, (name, content) in enumerate(CONTENT.items())}
    source = Source("d", MD5, (server.url + "/{}",))
    assert read_all(source, tmp_path) == CONTENT
    assert read_all(source, tmp_path) == CONTENT
    assert sorted(server.asked) == ["/a.gz", "/b.gz"]
    assert not leftovers(tmp_path)


def test_what_is_there_is_not_fetched_raw_or_compressed(server, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(CONTENT["a"])
    (tmp_path / "d" / "b.gz").write_bytes(gzip.compress(CONTENT["b"]))
    assert read_all(Source("d", MD5, (server.url + "/{}",)), tmp_path) == CONTENT
    assert server.asked == []


def silent(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    time.sleep(60)


def test_a_server_that_does_not_answer_is_passed_over(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 1)
    server.files = {"/bad/a.gz": silent, "/good/a.gz": gzip.compress(CONTENT["a"])}
    source = Source("d", {"a": MD5["a"]}, (server.url + "/bad/{}", server.url + "/good/{}"))
    assert read_all(source, tmp_path) == {"a": CONTENT["a"]}
    with pytest.raises(UserError, match="bad/a.gz: .*(ReadTimeout|ConnectionError)"):
        Source("e", {"a": MD5["a"]}, (server.url + "/bad/{}",)).fetch(tmp_path)
    assert not leftovers(tmp_path)


def test_an_archive_gives_all_its_files_and_only_those_wanted(server, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, content in {"folder/a": CONTENT["a"], "folder/b": CONTENT["b"], "folder/readme": b"x"}.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.files = {"/all.tar.gz": buffer.getvalue()}
    assert read_all(Source("d", MD5, (server.url + "/all.tar.gz",)), tmp_path / "data") == CONTENT
    assert server.asked == ["/all.tar.gz"]
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [".lock", "a.gz", "b.gz"]
    with pytest.raises(UserError, match="no c in the archive"):
        Source("e", {"c": MD5["a"]}, (server.url + "/all.tar.gz",)).fetch(tmp_path / "data")


@pytest.mark.parametrize(
    "first",
    [None, b"junk", gzip.compress(b"another content"), gzip.compress(CONTENT["a"])[:-20], b""],
    ids=["not there", "junk", "another file", "cut short", "empty"],
)
def test_a_mirror_that_fails_or_gives_something_else_is_passed_over(server, tmp_path, request, first):
    server.files = {"/good/a.gz": gzip.compress(CONTENT["a"])}
    if first is not None:
        server.files["/bad/a.gz"] = first
    source = Source("d", {"a": MD5["a"]}, (server.url + "/bad/{}", server.url + "/good/{}"))
    assert read_all(source, tmp_path) == {"a": CONTENT["a"]}
    assert server.asked == ["/bad/a.gz", "/good/a.gz"]
    assert not leftovers(tmp_path)


def test_where_no_mirror_works_each_is_named_with_its_reason_and_nothing_is_left(server, tmp_path):
    server.files = {"/two/a.gz": gzip.compress(b"another content")}
    source = Source("d", {"a": MD5["a"]}, (server.url + "/one/{}", server.url + "/two/{}", "http://127.0.0.1:9/{}"))
    with pytest.raises(UserError) as caught:
        source.fetch(tmp_path)
    message = str(caught.value)
    assert "a not in" in message and "--data-dir" in message
    assert "/one/a.gz: 404" in message and "/two/a.gz: content of a has md5" in message and "ConnectionError" in message
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]


def test_without_space_for_a_download_there_is_a_line_and_nothing_is_left(server, small_disk):
    disk, content = small_disk(65536), os.urandom(100_000)
    server.files = {"/a.gz": gzip.compress(content)}
    source = Source("d", {"a": hashlib.md5(content).hexdigest()}, (server.url + "/{}",))
    with pytest.raises(UserError, match="No space left on device"):
        source.fetch(disk)
    assert not leftovers(disk)
    remount(disk, "size=100M")
    assert read_all(source, disk) == {"a": content}


def test_a_folder_that_cannot_be_written_to_is_one_line_and_whole_files_in_it_are_read(server, small_disk):
    disk, source = small_disk(100_000), Source("d", {"a": MD5["a"]}, (server.url + "/{}",))
    remount(disk, "ro")
    with pytest.raises(UserError, match=f"^--data-dir {disk}: Read-only file system$"):
        source.fetch(disk)
    remount(disk, "rw")
    (disk / "d").mkdir()
    (disk / "d" / "a").write_bytes(CONTENT["a"])
    remount(disk, "ro")
    assert read_all(source, disk) == {"a": CONTENT["a"]}


@pytest.mark.parametrize("terminal", [False, True])
def test_the_address_is_printed_and_on_a_terminal_there_is_a_bar(server, tmp_path, monkeypatch, capsys, terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    content = os.urandom(200_000)
    server.files = {"/a.gz": gzip.compress(content)}
    Source("d", {"a": hashlib.md5(content).hexdigest()}, (server.url + "/{}",)).fetch(tmp_path)
    error = capsys.readouterr().err
    assert error.startswith(f"downloading {server.url}/a.gz\n")
    assert ("200.1/200.1 kB" in error) == terminal
    assert terminal or error.count("\n") == 1


# --- Several processes ---

PROGRAM = """
import fcntl
from pathlib import Path
from common.data.download import Source
source = Source("d", {md5!r}, {urls!r})
"""


def start(source, code):
    program = PROGRAM.format(md5=source.md5, urls=source.urls) + code
    return subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stderr=subprocess.PIPE)


def run_at_once(source, code, processes=4):
    running = [start(source, code) for _ in range(processes)]
    errors = [process.communicate(timeout=100)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * processes, errors


def test_processes_that_want_the_same_download_it_once(server, tmp_path):
    def answer(handler):
        time.sleep(1)  # by then, the other processes want it too
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(gzip.compress(CONTENT["a"]))

    server.files = {"/a.gz": answer}
    source = Source("d", {"a": MD5["a"]}, (server.url + "/{}",))
    run_at_once(source, f"assert len(list(source.read(Path({str(tmp_path)!r})))) == 1")
    assert server.asked == ["/a.gz"]


def test_processes_that_write_at_once_all_get_whole_files(server, tmp_path):
    """On a file system without locks all of them download the file at the same time, here in each of five rounds."""
    content = bytes(range(256)) * 40000
    compressed, together = gzip.compress(content), threading.Barrier(4)

    def answer(handler):
        together.wait(100)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(compressed)

    server.files = {"/a.gz": answer}
    source = Source("d", {"a": hashlib.md5(content).hexdigest()}, (server.url + "/{}",))
    code = f"""
def no_lock(*arguments):
    raise OSError
fcntl.flock = no_lock
for number in range(5):
    [(path, content)] = source.read(Path({str(tmp_path)!r}, str(number)))
    assert len(content) == {len(content)}
"""
    run_at_once(source, code)
    assert len(server.asked) == 20
    assert not leftovers(tmp_path)


def test_a_process_that_is_killed_while_it_downloads_leaves_nothing(server, tmp_path):
    def half(handler):
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(gzip.compress(CONTENT["a"])[:20])
        time.sleep(60)

    server.files = {"/a.gz": half}
    with start(Source("d", MD5, (server.url + "/{}",)), f"source.fetch(Path({str(tmp_path)!r}))") as process:
        wait_for(lambda: server.asked)
        time.sleep(0.5)
        process.kill()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]
