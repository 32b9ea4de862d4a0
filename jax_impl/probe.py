"""Multiplies two matrices in half precision; the exit status is 0 if the processor can do it.

`python -m jax_impl.probe bf16-mixed`: common.platform.processor starts it as a separate process, since a processor that
lacks an instruction ends the whole process.
"""

import resource
import sys

import jax.numpy as jnp

DTYPES = {"bf16-mixed": jnp.bfloat16, "16-mixed": jnp.float16}

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a valid answer here: no core file
for precision in sys.argv[1:]:
    matrix = jnp.ones((64, 64), DTYPES[precision])
    jnp.matmul(matrix, matrix).block_until_ready()
