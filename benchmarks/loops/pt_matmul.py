"""The best speed of PyTorch's matrix products in each precision."""

from functools import partial

import torch

from benchmarks.paired import write_speed
from benchmarks.products import SIZES, flops_per_second, prepare_half_precision
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig
from pt_impl.replicas import join_group, setup_devices, synchronize

DTYPES = {"64": torch.float64, "32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


def main() -> None:
    config = setup_devices(
        parse_options(TrainConfig, "python -m benchmarks.loops.pt_matmul", "PyTorch's matrix products.")
    )
    prepare_half_precision(config, "torch", "pt_impl.probe")
    device = join_group(config, 0, "")
    size = SIZES[config.accelerator]
    speeds = {}
    for name, dtype in DTYPES.items():
        a, b = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
        speeds[name] = flops_per_second(size, partial(torch.matmul, a, b), synchronize)
    write_speed(config.run_dir, **speeds)


if __name__ == "__main__":
    with as_program("pt_matmul"):
        main()
