"""Checks of rank_zero."""

import contextlib
import functools
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from exercises.checking import check, expect

RANKS = 3
check_ranks = functools.partial(check, ranks=RANKS, seconds=6)
save_whole = torch.save


def group() -> int:
    """This process's rank, as on three nodes where each process is the first one of its node, without torchrun."""
    dist.init_process_group("gloo")
    os.environ["LOCAL_RANK"] = "0"
    del os.environ["RANK"]
    return dist.get_rank()


def alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@check_ranks("the data are downloaded once", "which ranks run each of your lines?")
def one_download(work: ModuleType) -> object:
    rank, calls = group(), []
    work.prepare(Path("data"), lambda path: (calls.append(rank), path.write_text("whole")), rank)
    return calls


@one_download.judge
def _(*calls: Any) -> None:
    ranks = sum(calls, [])
    expect(ranks == [0], f"ranks that called download(): yours {ranks}, wanted [0]")


@check_ranks("nobody reads data that are not complete", "what holds the others back? is a file that is there complete?")
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
    told = f"what the ranks read after prepare(): yours {list(found)}, wanted 'whole' in each"
    expect(found == ("whole",) * RANKS, told)


@check_ranks("prepare() returns in no process if download() fails", "which of your lines run if it raises an error?")
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


@check_ranks("rank 0 prints a message, once", "which ranks get past your condition? where does the text go?")
def one_message(work: ModuleType) -> object:
    rank = group()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        work.log("loss 0.1", rank)
    return printed.getvalue()


@one_message.judge
def _(*printed: Any) -> None:
    ranks = [rank for rank, text in enumerate(printed) if text]
    expect(ranks == [0], f"ranks that printed: yours {ranks}, wanted [0]")
    told = f"what rank 0 printed: yours {printed[0]!r}, wanted 'loss 0.1\\n'"
    expect(printed[0].strip() == "loss 0.1", told, hint="what does the docstring say is printed?")


def opened(file: Any) -> contextlib.AbstractContextManager[Any]:
    """Opens the file that torch.save is given, for writing: a path, or a file that is open already."""
    return contextlib.nullcontext(file) if hasattr(file, "write") else open(file, "wb")


def slow_save(obj: object, f: object, *_: object, **__: object) -> None:
    """Imitates torch.save on a slow disk: the second half is written later."""
    buffer = io.BytesIO()
    save_whole(obj, buffer)
    whole = buffer.getvalue()
    with opened(f) as file:
        file.write(whole[: len(whole) // 2])
        file.flush()
        time.sleep(0.5)
        file.write(whole[len(whole) // 2 :])


@contextlib.contextmanager
def before_rename(call: Callable[[Path], None]) -> Iterator[None]:
    """Calls `call` with the path of a file just before os.replace or os.rename, which pathlib uses too, renames it."""

    def rename(real: Any, src: Any, dst: Any, **options: Any) -> None:
        call(Path(src))
        real(src, dst, **options)

    with mock.patch.multiple(
        os, **{real.__name__: functools.partial(rename, real) for real in (os.replace, os.rename)}
    ):
        yield


def saved(work: ModuleType, rank: int) -> list[int]:
    """[rank] if torch.save was called in this process; one `rank` more for each further call."""
    calls = []
    with mock.patch("torch.save", lambda *given, **options: (calls.append(rank), slow_save(*given, **options))):
        work.save({"weight": torch.arange(3)}, Path("model.pt"), rank)
    return calls


@check_ranks("the weights are saved once", "which ranks run each of your lines?")
def one_save(work: ModuleType) -> object:
    return saved(work, group())


@one_save.judge
def _(*calls: Any) -> None:
    ranks = sum(calls, [])
    expect(ranks == [0], f"ranks that called torch.save: yours {ranks}, wanted [0]")


@check_ranks("when save() returns, every process can load", "what has rank 0 done by the time that the others return?")
def complete_save(work: ModuleType) -> object:
    with before_rename(lambda path: time.sleep(0.5)):
        saved(work, group())
    there = Path("model.pt").exists()
    return there, torch.load("model.pt")["weight"] if there else None


@complete_save.judge
def _(*ranks: Any) -> None:
    there = [rank for rank, (found, _) in enumerate(ranks) if found]
    expect(len(there) == RANKS, f"ranks that found model.pt: yours {there}, wanted {list(range(RANKS))}")
    for _, weight in ranks:
        expect(weight == [0, 1, 2], "model.pt holds something else")


@check("save() returns only if the file is there", "which of your lines run if the disk is full?")
def full_disk(work: ModuleType) -> object:
    alone()
    with mock.patch("torch.save", side_effect=OSError(28, "No space left on device")):
        try:
            work.save({"weight": torch.arange(3)}, Path("model.pt"), 0)
        except NotImplementedError:  # the gap is open
            raise
        except Exception:  # noqa: BLE001 - this error, or another one that says more
            return None
    return sorted(path.name for path in Path().iterdir())


@full_disk.judge
def _(files: Any) -> None:
    expect(files is None, f"torch.save raised an error, because the disk was full, and save() returned; files: {files}")


@check(
    "the file's name never stands for half a file",
    "if torch.save is cut off, what is under the name by then, and which of your lines still run?",
)
def never_half(work: ModuleType) -> object:
    alone()
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
    expect(found == "the last one", f"under the name, if saving is cut off: yours {found!r}, wanted 'the last one'")


@check("the new file takes the old one's place at once", "what is under the file's name just before the rename?")
def replaced(work: ModuleType) -> object:
    alone()
    last, there, folders, whole = Path("weights", "model.pt"), [], [], []
    last.parent.mkdir()
    last.write_text("the last one")
    os.link(last, "open")  # a hard link to the old file, which stands for a reader who has opened it

    def look(unfinished: Path) -> None:
        there.append(last.exists())
        folders.append(unfinished.resolve().parent)
        try:
            torch.load(unfinished)
            whole.append(True)
        except Exception:  # noqa: BLE001 - however it can't be read
            whole.append(False)

    with before_rename(look):
        work.save({"weight": torch.arange(3)}, last, 0)
    is_old = last.read_bytes() == b"the last one"
    return {
        "open": Path("open").read_text(errors="replace"),
        "there": there,
        "whole": whole,
        "here": last.parent.resolve(),
        "folders": folders,
        "old": is_old,
        "weight": None if is_old else torch.load(last)["weight"],
    }


@replaced.judge
def _(seen: Any) -> None:
    over = "which of your calls changes a name, and which changes what is in a file?"
    expect(seen["open"] == "the last one", "the old file was overwritten while a reader had it open", hint=over)
    expect(all(seen["there"]), "the old file was gone before the rename")
    apart = "the unfinished file lay in another folder, maybe on another disk"
    expect(set(seen["folders"]) <= {seen["here"]}, apart, hint="print the whole path of the unfinished file")
    late = "when are the last bytes of an open file written?"
    expect(all(seen["whole"]), "when the file got its name, it was not complete", hint=late)
    expect(seen["old"] is False, "the old file is still there", hint="when do you not save at all?")
    expect(seen["weight"] == [0, 1, 2], "model.pt holds something else", hint="what is given to torch.save?")
