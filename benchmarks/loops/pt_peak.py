"""The speed of matrix products in PyTorch: python -m benchmarks.loops.pt_peak cuda 8192.

Prints the fastest of ten products of n x n matrices, 2 n^3 operations each, in float32 with and without TF32, and in
bfloat16.
"""

import sys
import time

import torch


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(device: str, n: int) -> None:
    for name in ("float32", "TF32", "bfloat16")[:: 1 if device == "cuda" else 2]:  # a CPU has no TF32
        torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
        kind = torch.bfloat16 if name == "bfloat16" else torch.float32
        a, b = (torch.randn(n, n, device=device, dtype=kind) for _ in range(2))
        seconds = []
        for _ in range(10):
            wait(device)
            start = time.perf_counter()
            torch.matmul(a, b)
            wait(device)
            seconds.append(time.perf_counter() - start)
        print(f"{name}: {2 * n**3 / min(seconds) / 1e12:.3g} TFLOP/s")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
