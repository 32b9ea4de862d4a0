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

RANKS = 3
save_whole = torch.save


def group() -> int:
    """This process's rank, as on three nodes where each process is the first one of its node, without torchrun."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    del os.environ["RANK"]
    return dist.get_rank()


@check("the data are downloaded once", "in how many processes does this line run?", ranks=RANKS, seconds=6)
def one_download(work: ModuleType) -> object:
    rank, calls = group(), []
    work.prepare(Path("data"), lambda path: (calls.append(rank), path.write_text("whole")), rank)
    return calls


@one_download.judge
def _(*calls: Any) -> None:
    ranks = sum(calls, [])
    expect(ranks == [0], f"download was called by ranks {ranks}")


@check(
    "nobody reads data that are not complete",
    "what holds the others back? can a file be there and not be complete?",
    ranks=RANKS,
    seconds=6,
)
def complete_download(work: ModuleType) -> object:
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
    return Path("data").read_text() if Path("data").exists() else "nothing"


@complete_download.judge
def _(*found: Any) -> None:
    expect(found == ("whole",) * RANKS, f"after prepare() the ranks read {list(found)}")


@check(
    "prepare() returns in no process if the download has failed",
    "which of your lines run if download() raises an error?",
    ranks=RANKS,
    seconds=6,
)
def failed_download(work: ModuleType) -> object:
    rank = group()

    def download(path: Path) -> None:
        raise ConnectionError

    try:
        work.prepare(Path("data"), download, rank)
    except NotImplementedError:  # the gap is open
        raise
    except Exception:  # noqa: BLE001 - in the other ranks it depends on what they wait for
        return False
    finally:
        if rank == 0:
            dist.destroy_process_group()  # as at the program's end, which ends the others' waiting
    return True


@failed_download.judge
def _(*returned: Any) -> None:
    ranks = [rank for rank, has in enumerate(returned) if has]
    expect(not ranks, f"download() raised a ConnectionError in rank 0, and prepare() returned in ranks {ranks}")


@check("a message is printed once", "as many lines as processes?", ranks=RANKS, seconds=6)
def one_message(work: ModuleType) -> object:
    rank = group()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        work.log("loss 0.1", rank)
    return printed.getvalue()


@one_message.judge
def _(first: Any, *others: Any) -> None:
    expect(first.strip() == "loss 0.1", f"rank 0 printed {first!r}")
    expect(not any(others), "other ranks have printed too")


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
def one_save(work: ModuleType) -> object:
    saved(work, group())
    dist.barrier()
    return Path("savers").read_text().split() if Path("savers").exists() else []


@one_save.judge
def _(*ranks: Any) -> None:
    for savers in ranks:
        expect(savers == ["0"], f"torch.save was called by ranks {', '.join(savers) or 'none'}")


@check(
    "when save() returns, every process can load",
    "the activity's other function has the same duty",
    ranks=RANKS,
    seconds=6,
)
def complete_save(work: ModuleType) -> object:
    def slowly(real: Any, *arguments: Any, **options: Any) -> None:
        time.sleep(0.5)
        real(*arguments, **options)

    rank = group()
    with (
        mock.patch("os.replace", functools.partial(slowly, os.replace)),
        mock.patch("os.rename", functools.partial(slowly, os.rename)),
    ):
        saved(work, rank)
    there = Path("model.pt").exists()
    return there, torch.load("model.pt")["weight"] if there else None


@complete_save.judge
def _(*ranks: Any) -> None:
    there = [one for one, _ in ranks]
    expect(all(there), f"whether model.pt was there, by rank: {there}")
    for _, weight in ranks:
        expect(weight == [0, 1, 2], "model.pt holds something else")


@check("save() returns only if the file is there", "which of your lines run if the disk is full?")
def full_disk(work: ModuleType) -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with mock.patch("torch.save", side_effect=OSError(28, "No space left on device")):
        try:
            work.save({"weight": torch.arange(3)}, Path("model.pt"), 0)
        except OSError:
            return None
    return sorted(path.name for path in Path().iterdir())


@full_disk.judge
def _(files: Any) -> None:
    expect(files is None, f"torch.save raised an error, for the disk was full, and save() returned; files: {files}")


@check("the file's name never stands for half a file", "rename is done at once; writing is not", ranks=1, seconds=6)
def never_half(work: ModuleType) -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    Path("model.pt").write_text("the last one")

    def cut_off(obj: object, f: object, *_: object, **__: object) -> None:
        with opened(f) as file:
            file.write(b"ha")
        raise KeyboardInterrupt

    with mock.patch("torch.save", cut_off), contextlib.suppress(KeyboardInterrupt):
        work.save({"weight": torch.arange(3)}, Path("model.pt"), 0)
    return Path("model.pt").read_text() if Path("model.pt").exists() else "nothing"


@never_half.judge
def _(found: Any) -> None:
    expect(found == "the last one", f"ended while it was saving, it left {found!r} under the name of the last file")


@check(
    "the new file takes the old one's place at once",
    "what is under the file's name just before the rename? where does the unfinished one lie?",
)
def replaced(work: ModuleType) -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    last, there, folders, whole = Path("weights", "model.pt"), [], [], []
    last.parent.mkdir()
    last.write_text("the last one")
    os.link(last, "open")  # a hard link to the old file, which stands for a reader who has opened it

    def rename(real: Any, source: Any, target: Any, **options: Any) -> None:
        there.append(last.read_text() if last.exists() else "nothing")
        folders.append(Path(source).resolve().parent)
        try:
            torch.load(source)
            whole.append(True)
        except Exception:  # noqa: BLE001 - however it can't be read
            whole.append(False)
        real(source, target, **options)

    with (
        mock.patch("os.replace", functools.partial(rename, os.replace)),
        mock.patch("os.rename", functools.partial(rename, os.rename)),
    ):
        work.save({"weight": torch.arange(3)}, last, 0)
    is_old = last.read_bytes() == b"the last one"
    return {
        "open": Path("open").read_text(errors="replace"),
        "there": there,
        "whole": whole,
        "here": str(last.parent.resolve()),
        "folders": list(map(str, folders)),
        "old": is_old,
        "weight": None if is_old else torch.load(last)["weight"],
    }


@replaced.judge
def _(seen: Any) -> None:
    expect(seen["open"] == "the last one", "the last file was written over, under its readers' eyes")
    expect("nothing" not in seen["there"], "just before the rename the last file was gone already")
    expect(set(seen["folders"]) <= {seen["here"]}, "the unfinished file lay in another folder, maybe on another disk")
    expect(all(seen["whole"]), "when it got its name, the file was not complete: was it closed?")
    expect(seen["old"] is False, "the last file is still there under its name")
    expect(seen["weight"] == [0, 1, 2], "model.pt holds something else")
