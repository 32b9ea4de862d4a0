"""The speed of matrix products in PyTorch, 2 n^3 operations each: the fastest of ten, on the GPU if there is one."""

import time

import torch

if __name__ == "__main__":
    device, n = ("cuda", 8192) if torch.cuda.is_available() else ("cpu", 1024)
    for name in ("float32", "TF32", "bfloat16")[:: 1 if device == "cuda" else 2]:  # a CPU has no TF32
        torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
        kind = torch.bfloat16 if name == "bfloat16" else torch.float32
        a, b = (torch.randn(n, n, device=device, dtype=kind) for _ in range(2))
        seconds = []
        for _ in range(10):
            getattr(torch, device).synchronize()
            start = time.perf_counter()
            torch.matmul(a, b)
            getattr(torch, device).synchronize()
            seconds.append(time.perf_counter() - start)
        print(f"{name}: {2 * n**3 / min(seconds) / 1e12:.3g} TFLOP/s")
