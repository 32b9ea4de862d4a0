"""Checks of rank_zero."""

import contextlib
import io
import os
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

WEIGHTS, PATH = {"weight": torch.arange(3)}, Path("weights", "model.pt")


def group():
    """This process's rank, as on three nodes where each process is the first one of its node."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    return dist.get_rank()


def before_rename(call):
    """Calls `call(src, dst)` just before os.replace or os.rename, which pathlib uses too, renames a file."""

    def patched(real):
        return lambda src, dst, **options: (call(Path(src), Path(dst)), real(src, dst, **options))

    return mock.patch.multiple(os, replace=patched(os.replace), rename=patched(os.rename))


def test_one_download(work, ranks):
    """the data are downloaded once, and nobody reads data that are not complete"""
    Path("data").write_text("ha")  # left by a program that was ended during the download

    def prepare():
        rank, sleep = group(), time.sleep
        download = mock.Mock(side_effect=lambda path: (sleep(0.5), path.write_text("whole")))
        with mock.patch("time.sleep"):  # does nothing: the others must wait for rank 0, not for a fixed time
            work.prepare(Path("data"), download, rank)
        return download.call_count, Path("data").read_text()

    calls, found = zip(*ranks(prepare, 3))
    assert calls == (1, 0, 0), "how often each rank called download(): which ranks run each of your lines?"
    assert found == ("whole",) * 3, "what the ranks read after prepare(): what holds the others back?"


def test_one_message(work, ranks):
    """rank 0 prints a message, once"""

    def log():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            work.log("loss 0.1", group())
        return printed.getvalue()

    assert ranks(log, 3) == ["loss 0.1\n", "", ""], "what each rank printed: which ranks get past your condition?"


def test_one_save(work, ranks):
    """the weights are saved once, and when save() returns, every process can load them"""
    PATH.parent.mkdir()

    def save():
        rank = group()
        with mock.patch("torch.save", wraps=torch.save) as saved, before_rename(lambda *_: time.sleep(0.5)):
            work.save(WEIGHTS, PATH, rank)
        return saved.call_count, torch.load(PATH)["weight"].tolist() if PATH.exists() else "no file"

    calls, found = zip(*ranks(save, 3))
    assert calls == (1, 0, 0), "how often each rank called torch.save: which ranks run each of your lines?"
    assert found == ([0, 1, 2],) * 3, "what each rank loads: what has rank 0 done by the time that the others return?"


def test_never_half(work, ranks):
    """the file's name never stands for half a file"""
    PATH.parent.mkdir()
    PATH.write_text("old")
    os.link(PATH, "open")  # a hard link stands for a reader who has opened the old file

    def cut_off(obj, f, *_, **__):
        (f.write if hasattr(f, "write") else Path(f).write_bytes)(b"ha")
        raise KeyboardInterrupt

    def look(src, dst):
        assert src.resolve().parent == dst.resolve().parent, "where the unfinished file is, and the old one"
        assert dst.exists(), "the old file is gone before the new one has its name: what does a reader find then?"

    def save():
        group()
        with mock.patch("torch.save", cut_off), contextlib.suppress(KeyboardInterrupt):
            work.save(WEIGHTS, PATH, 0)
        assert PATH.read_bytes() == b"old", "under the name, if torch.save is cut off: which file was it writing?"
        with before_rename(look):
            work.save(WEIGHTS, PATH, 0)
        assert Path("open").read_bytes() == b"old", "what a reader of the old file has: what changes a file's content?"
        assert PATH.read_bytes() != b"old", "after save() the old file is still there: when do you not save at all?"

    ranks(save, 1)
