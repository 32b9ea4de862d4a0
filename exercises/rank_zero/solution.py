"""Rank-0 duties: what is to happen once, and not once in each process: downloading, printing, saving.

torchrun --standalone --nproc-per-node 3 -m exercises.rank_zero.exercise
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

Weights = dict[str, torch.Tensor]


def prepare(path: Path, download: Callable[[Path], None], rank: int) -> None:
    """Has `download(path)` called by rank 0 alone. When it returns, in whichever process, the file is complete."""
    # Gap 1: who calls, and who waits?
    if rank == 0:
        download(path)
    dist.barrier()


def log(message: str, rank: int) -> None:
    """Prints it once."""
    # Gap 2
    if rank == 0:
        print(message, flush=True)


def save(weights: Weights, path: Path, rank: int) -> None:
    """Saves what all processes have. When it returns, in whichever process, the file is there.

    A reader who comes while it is written, or after the program was ended in the middle of it, finds the file that was
    there before (none, if there was none), never a half: the new one is written under another name in the same folder,
    and takes the old one's place by being renamed.
    """
    # Gap 3: torch.save, os.replace, and whoever has to wait.
    if rank == 0:
        unfinished = path.with_suffix(".unfinished")
        torch.save(weights, unfinished)
        os.replace(unfinished, path)
    dist.barrier()


def main() -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group(
        "gloo", **({} if world_size > 1 else {"store": dist.HashStore(), "rank": 0, "world_size": 1})
    )

    def download(path: Path) -> None:
        print(f"rank {rank} downloads", flush=True)
        time.sleep(1)  # the network
        path.write_text("data")

    # One folder for all, as a cluster's file system: rank 0 makes it, and tells its name.
    names = [tempfile.mkdtemp(prefix="rank-zero-") if rank == 0 else ""]
    dist.broadcast_object_list(names)
    folder = Path(names[0])
    log(f"{world_size} process(es)", rank)
    prepare(folder / "data.txt", download, rank)
    found = torch.tensor(int((folder / "data.txt").read_text() == "data"))
    dist.all_reduce(found)
    log(f"{found} process(es) have the data", rank)
    save({"weight": torch.ones(3)}, folder / "model.pt", rank)
    found = torch.tensor(int(torch.load(folder / "model.pt")["weight"].sum()) // 3)
    dist.all_reduce(found)
    log(f"{found} process(es) can read the weights", rank)
    if rank == 0:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
