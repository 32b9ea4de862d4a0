"""Checks of rank_zero."""

import contextlib
import io
import os
import time
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

save_whole = torch.save


def group():
    """This process's rank, as on three nodes where each process is the first one of its node."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    return dist.get_rank()


def test_one_download(work, ranks):
    """the data are downloaded once, and nobody reads data that are not complete"""

    def prepare():
        rank, calls = group(), []
        if rank == 0:
            Path("data").write_text("ha")  # left by a program that was ended during the download
        dist.barrier()

        def download(path):
            calls.append(rank)
            path.write_text("ha")
            time.sleep(0.3)
            path.write_text("whole")

        # The others must wait for rank 0, not for a fixed time: time.sleep does nothing there.
        with contextlib.nullcontext() if rank == 0 else mock.patch("time.sleep"):
            work.prepare(Path("data"), download, rank)
        return calls, Path("data").read_text()

    calls, found = zip(*ranks(prepare, 3))
    assert sum(calls, []) == [0], "ranks that called download(): which ranks run each of your lines?"
    assert found == ("whole",) * 3, "what the ranks read after prepare(): what holds the others back?"


def test_one_message(work, ranks):
    """rank 0 prints a message, once"""

    def log():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            work.log("loss 0.1", group())
        return printed.getvalue()

    assert ranks(log, 3) == ["loss 0.1\n", "", ""], "what each rank printed: which ranks get past your condition?"


def slow_save(obj, f, *_, **__):
    """torch.save on a slow disk: the second half is written later."""
    buffer = io.BytesIO()
    save_whole(obj, buffer)
    whole = buffer.getvalue()
    with contextlib.nullcontext(f) if hasattr(f, "write") else open(f, "wb") as file:
        file.write(whole[: len(whole) // 2])
        file.flush()
        time.sleep(0.3)
        file.write(whole[len(whole) // 2 :])


def test_one_save(work, ranks):
    """the weights are saved once, and when save() returns, every process can load them"""

    def save():
        rank, calls = group(), []
        with mock.patch("torch.save", lambda *given, **options: (calls.append(rank), slow_save(*given, **options))):
            work.save({"weight": torch.arange(3)}, Path("model.pt"), rank)
        return calls, torch.load("model.pt")["weight"].tolist() if Path("model.pt").exists() else "no file"

    calls, found = zip(*ranks(save, 3))
    assert sum(calls, []) == [0], "ranks that called torch.save: which ranks run each of your lines?"
    assert found == ([0, 1, 2],) * 3, "what each rank loads: what has rank 0 done by the time that the others return?"


def test_never_half(work, ranks):
    """the file's name never stands for half a file"""

    def save():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        folder = Path("weights")
        folder.mkdir()
        (folder / "model.pt").write_text("the last one")
        os.link(folder / "model.pt", "open")  # a hard link stands for a reader who has opened the old file

        def cut_off(obj, f, *_, **__):
            with contextlib.nullcontext(f) if hasattr(f, "write") else open(f, "wb") as file:
                file.write(b"ha")
            assert Path(file.name).resolve().parent == folder.resolve(), "the unfinished file is in another folder"
            raise KeyboardInterrupt

        with mock.patch("torch.save", cut_off), contextlib.suppress(KeyboardInterrupt):
            work.save({"weight": torch.arange(3)}, folder / "model.pt", 0)
        after_half = (folder / "model.pt").read_text(errors="replace") if (folder / "model.pt").exists() else "nothing"
        work.save({"weight": torch.arange(3)}, folder / "model.pt", 0)
        opened = Path("open").read_text(errors="replace")
        return after_half, opened, torch.load(folder / "model.pt")["weight"].tolist()

    ((after_half, opened, weight),) = ranks(save, 1)
    assert after_half == "the last one", "under the name, if torch.save is cut off: which of your lines still run?"
    assert weight == [0, 1, 2], "under the name after the next save(): when do you not save at all?"
    assert opened == "the last one", "what a reader of the old file has: who changes a name, and who what is in a file?"
