"""Rank-0 duties: downloading, printing and saving must happen once, not once in each process.

torchrun --standalone --nproc-per-node 3 rank_zero.py
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

Weights = dict[str, torch.Tensor]


def prepare(path: Path, download: Callable[[Path], None], rank: int) -> None:
    """Rank 0 alone calls `download(path)`, even if there is a file already: it may be incomplete.

    When `prepare` returns, in any process, the file is complete.
    """
    # Gap 1: which rank calls `download`, and which ranks wait?
    ### BEGIN SOLUTION
    if rank == 0:
        download(path)
    dist.barrier()
    ### END SOLUTION


def log(message: str, rank: int) -> None:
    """Rank 0 prints `message`. The other processes print nothing."""
    # Gap 2
    ### BEGIN SOLUTION
    if rank == 0:
        print(message, flush=True)
    ### END SOLUTION


def save(weights: Weights, path: Path, rank: int) -> None:
    """Saves weights, which are the same in all processes. When `save` returns, in any process, the new file is there.

    It is written under another name in the same folder, and replaces the old file when it is renamed. Before that, and
    if the program is ended while it writes, a reader finds the old file, or none. An unfinished file may stay.
    """
    # Gap 3: use torch.save, and os.replace or Path.replace. Which ranks have to wait?
    ### BEGIN SOLUTION
    if rank == 0:
        unfinished = path.with_suffix(".unfinished")
        torch.save(weights, unfinished)
        os.replace(unfinished, path)
    dist.barrier()
    ### END SOLUTION


def main() -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # without torchrun
    dist.init_process_group("gloo", **({} if world_size > 1 else alone))

    def download(path: Path) -> None:
        print(f"rank {rank} downloads", flush=True)
        time.sleep(1)  # imitates a slow network
        path.write_text("data")

    # One folder for all processes, as on a cluster's file system. Rank 0 creates it and sends its name to the others.
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
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
