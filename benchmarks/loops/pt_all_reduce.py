"""Times gloo's all-reduce among the processes that torchrun has started; rank 0 writes the file named as argument."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from common.platform.files import write_text

SIZES = [2**exponent for exponent in range(12, 23, 2)]  # bytes: 4 KiB to 4 MiB
TIMES = 15  # all-reduces of each size, after one that is not counted


def measure(num_bytes: int) -> float:
    """The median of several times of the slowest process, in seconds."""
    values = torch.ones(num_bytes // 4)
    seconds = []
    for _ in range(TIMES + 1):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        took = torch.tensor(time.perf_counter() - start)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        seconds.append(float(took))
        values.fill_(1)
    return sorted(seconds[1:])[TIMES // 2]


def main(path: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    timings = [{"replicas": dist.get_world_size(), "num_bytes": size, "seconds": measure(size)} for size in SIZES]
    if dist.get_rank() == 0:
        write_text(path, json.dumps(timings) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
