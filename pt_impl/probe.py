"""Multiplies two matrices in half precision; the exit status is 0 if the processor can do it.

`python -m pt_impl.probe bf16-mixed`: common.platform.processor starts it as a separate process, since a processor that
lacks an instruction ends the whole process. oneDNN multiplies with the instruction sets that it convolves with.
"""

import resource
import sys

import torch

DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a valid answer here: no core file
for precision in sys.argv[1:]:
    matrix = torch.ones((64, 64), dtype=DTYPES[precision])
    torch.matmul(matrix, matrix)
