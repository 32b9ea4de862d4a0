"""Multiplies two matrices in half precision; the exit status is 0 if the processor can do it.

`python -m tf_impl.probe bf16-mixed`: common.platform.processor starts it as a separate process, since a processor that
lacks an instruction ends the whole process. oneDNN multiplies with the instruction sets that it convolves with.
"""

import resource
import sys

import tensorflow as tf

DTYPES = {"bf16-mixed": tf.bfloat16, "16-mixed": tf.float16}

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a valid answer here: no core file
for precision in sys.argv[1:]:
    matrix = tf.ones((64, 64), dtype=DTYPES[precision])
    tf.matmul(matrix, matrix)
