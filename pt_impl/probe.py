"""Computes in half precision like a training step; the exit status is 0 if the processor can do it.

`python -m pt_impl.probe bf16-mixed`: common.platform.probing starts it as a separate process, since a processor that
lacks an instruction ends the whole process. With these sizes oneDNN uses the same instructions as for the networks.
"""

import resource
import sys

import torch
from torch import nn

DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def train_step(dtype: torch.dtype) -> None:
    """Forward and backward pass of a convolution and a dense layer."""
    convolution, dense = nn.Conv2d(32, 64, 3, padding="same"), nn.Linear(800, 512)
    images = torch.rand(32, 32, 14, 14).to(memory_format=torch.channels_last).requires_grad_()
    features = torch.rand(128, 800, requires_grad=True)
    with torch.autocast("cpu", dtype):
        outputs = convolution(images), dense(features)
    sum(output.float().square().mean() for output in outputs).backward()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a valid answer here: no core file
    for precision in sys.argv[1:]:
        train_step(DTYPES[precision])
