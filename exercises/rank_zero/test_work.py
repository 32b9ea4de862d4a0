import contextlib
import io
import os
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

WEIGHTS, PATH = {"weight": torch.arange(3)}, Path("weights", "model.pt")


def test_one_download(work, ranks):
    """the data are downloaded once, and nobody reads data that are not complete"""
    Path("data").write_text("ha")  # left by a program that was ended during the download

    def prepare():
        rank, sleep = dist.get_rank(), time.sleep
        download = mock.Mock(side_effect=lambda path: (sleep(0.5), path.write_text("whole")))
        with mock.patch("time.sleep"):  # does nothing: the others must wait for rank 0, not for a fixed time
            work.prepare(Path("data"), download, rank)
        return download.call_count, Path("data").read_text()

    hint = "how often each rank called download(), and what it reads then: which ranks run each of your lines?"
    assert ranks(prepare, 3) == [(1, "whole"), (0, "whole"), (0, "whole")], hint


def test_one_message(work, ranks):
    """rank 0 prints a message, once"""

    def log():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            work.log("loss 0.1", dist.get_rank())
        return printed.getvalue()

    assert ranks(log, 3) == ["loss 0.1\n", "", ""], "what each rank printed: which ranks get past your condition?"


def test_one_save(work, ranks):
    """the weights are saved once, the file's name never stands for half a file, and then every process can load it"""
    PATH.parent.mkdir()
    PATH.write_text("old")
    os.link(PATH, "open")  # a hard link stands for a reader who has opened the old file

    def save():
        def rename(source, target, real=os.replace, **options):
            there = PATH.read_bytes() if PATH.exists() else "no file"
            assert there == b"old", "what a reader finds before the rename: which file does torch.save write?"
            assert Path(source).resolve().parent == PATH.resolve().parent, "folders of the unfinished and the old file"
            time.sleep(0.5)  # the other ranks have time to return, which they must not
            real(source, target, **options)

        os.replace = os.rename = renamed = mock.Mock(side_effect=rename)  # pathlib uses them too
        with mock.patch("torch.save", wraps=torch.save) as saved:
            work.save(WEIGHTS, PATH, dist.get_rank())
        assert Path("open").read_bytes() == b"old", "what a reader of the old file has: what changes a file's content?"
        weights = "the old file" if PATH.samefile("open") else torch.load(PATH)["weight"].tolist()
        return saved.call_count, renamed.call_count, weights

    hint = "how often each rank saved, how often it renamed, and what it loads: which ranks run each of your lines?"
    assert ranks(save, 3) == [(1, 1, [0, 1, 2]), (0, 0, [0, 1, 2]), (0, 0, [0, 1, 2])], hint
