"""Checks of rank_zero."""

import contextlib
import functools
import io
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from exercises.checking import check, expect
from exercises.ranks import gathered

RANKS = 3
save_whole = torch.save


def group() -> int:
    """This process's rank. LOCAL_RANK becomes 0, as on three nodes where each process is the first one of its node."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    return dist.get_rank()


@check("the data are downloaded once", "in how many processes does this line run?", ranks=RANKS, seconds=6)
def one_download(work: ModuleType) -> None:
    rank, calls = group(), []
    work.prepare(Path("data"), lambda path: (calls.append(rank), path.write_text("whole")), rank)
    ranks = sum(gathered(calls), [])
    expect(ranks == [0], f"download was called by ranks {ranks}")


@check(
    "nobody reads data that are not complete",
    "what holds the others back? can a file be there and not be complete?",
    ranks=RANKS,
    seconds=6,
)
def complete_download(work: ModuleType) -> None:
    rank = group()
    if rank == 0:
        Path("data").write_text("ha")  # left by a program that was ended during the download
    dist.barrier()

    def download(path: Path) -> None:
        path.write_text("ha")
        time.sleep(0.5)
        path.write_text("whole")

    # The others must wait for rank 0, not for a fixed time: time.sleep does nothing there.
    with contextlib.nullcontext() if rank == 0 else mock.patch("time.sleep"):
        work.prepare(Path("data"), download, rank)
    found = Path("data").read_text() if Path("data").exists() else "nothing"
    everyone = gathered(found)
    expect(everyone == ["whole"] * RANKS, f"after prepare() the ranks read {everyone}")


@check("a message is printed once", "as many lines as processes?", ranks=RANKS, seconds=6)
def one_message(work: ModuleType) -> None:
    rank = group()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        work.log("loss 0.1", rank)
    everyone = gathered(printed.getvalue())
    expect(everyone[0].strip() == "loss 0.1", f"rank 0 printed {everyone[0]!r}")
    expect(not any(everyone[1:]), "other ranks have printed too")


def opened(file: Any) -> contextlib.AbstractContextManager[Any]:
    """Opens the file that torch.save is given, for writing: a path, or a file that is open already."""
    return contextlib.nullcontext(file) if hasattr(file, "write") else open(file, "wb")


def slow_save(obj: object, f: object, *_: object, **__: object) -> None:
    """Imitates torch.save on a slow disk: the second half is written later. The rank is added to the file `savers`."""
    with open("savers", "a") as savers:
        savers.write(f"{dist.get_rank()}\n")
    buffer = io.BytesIO()
    save_whole(obj, buffer)
    whole = buffer.getvalue()
    with opened(f) as file:
        file.write(whole[: len(whole) // 2])
        file.flush()
        time.sleep(0.5)
        file.write(whole[len(whole) // 2 :])


def saved(work: ModuleType, rank: int) -> None:
    with mock.patch("torch.save", slow_save):
        work.save({"weight": torch.arange(3)}, Path("model.pt"), rank)


@check("the weights are saved once", "all processes have the same weights", ranks=RANKS, seconds=6)
def one_save(work: ModuleType) -> None:
    saved(work, group())
    dist.barrier()
    savers = Path("savers").read_text().split() if Path("savers").exists() else []
    expect(savers == ["0"], f"torch.save was called by ranks {', '.join(savers) or 'none'}")


@check(
    "when save() returns, every process can load",
    "the activity's other function has the same duty",
    ranks=RANKS,
    seconds=6,
)
def complete_save(work: ModuleType) -> None:
    def slowly(real: Any, *arguments: Any, **options: Any) -> None:
        time.sleep(0.5)
        real(*arguments, **options)

    rank = group()
    with (
        mock.patch("os.replace", functools.partial(slowly, os.replace)),
        mock.patch("os.rename", functools.partial(slowly, os.rename)),
    ):
        saved(work, rank)
    everyone = gathered(Path("model.pt").exists())
    expect(all(everyone), f"whether model.pt was there, by rank: {everyone}")
    expect(torch.load("model.pt")["weight"].tolist() == [0, 1, 2], "model.pt holds something else")


@check("the file's name never stands for half a file", "rename is done at once; writing is not", ranks=1, seconds=6)
def never_half(work: ModuleType) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    Path("model.pt").write_text("the last one")

    def cut_off(obj: object, f: object, *_: object, **__: object) -> None:
        with opened(f) as file:
            file.write(b"ha")
        raise KeyboardInterrupt

    with mock.patch("torch.save", cut_off), contextlib.suppress(KeyboardInterrupt):
        work.save({"weight": torch.arange(3)}, Path("model.pt"), 0)
    found = Path("model.pt").read_text() if Path("model.pt").exists() else "nothing"
    expect(found == "the last one", f"ended while it was saving, it left {found!r} under the name of the last file")


@check(
    "the new file takes the old one's place at once",
    "what is under the file's name just before the rename? where does the unfinished one lie?",
)
def replaced(work: ModuleType) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    last, there, folders = Path("model.pt").resolve(), [], []
    last.write_text("the last one")
    os.link(last, "open")  # a hard link to the old file, which stands for a reader who has opened it

    def rename(real: Any, source: Any, target: Any, **options: Any) -> None:
        there.append(last.read_text() if last.exists() else "nothing")
        folders.append(Path(source).resolve().parent)
        real(source, target, **options)

    with (
        mock.patch("os.replace", functools.partial(rename, os.replace)),
        mock.patch("os.rename", functools.partial(rename, os.rename)),
    ):
        work.save({"weight": torch.arange(3)}, Path("model.pt"), 0)
    expect(Path("open").read_text() == "the last one", "the last file was written over, under its readers' eyes")
    expect("nothing" not in there, "just before the rename the last file was gone already")
    expect(set(folders) <= {last.parent}, "the unfinished file lay in another folder, maybe on another disk")
    expect(last.read_bytes() != b"the last one", "the last file is still there under its name")
    expect(torch.load(last)["weight"].tolist() == [0, 1, 2], "model.pt holds something else")
