"""Computes in half precision like a training step; the exit status is 0 if the processor can do it.

`python -m tf_impl.probe bf16-mixed`: common.platform.probing starts it as a separate process, since a processor that
lacks an instruction ends the whole process. With these sizes oneDNN uses the same instructions as for the networks.
"""

import resource
import sys

import tensorflow as tf

DTYPES = {"bf16-mixed": tf.bfloat16, "16-mixed": tf.float16}


@tf.function
def train_step(dtype: tf.DType) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Forward and backward pass of a convolution and a dense layer; results not returned would not be computed."""
    kernels = [tf.random.uniform((3, 3, 32, 64)), tf.random.uniform((800, 512))]
    images, features = tf.random.uniform((32, 14, 14, 32)), tf.random.uniform((128, 800))
    inputs = [*kernels, images, features]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        kernel, matrix, images, features = (tf.cast(one, dtype) for one in inputs)
        outputs = tf.nn.conv2d(images, kernel, strides=1, padding="SAME"), tf.matmul(features, matrix)
        loss = tf.add_n([tf.reduce_mean(tf.square(tf.cast(output, tf.float32))) for output in outputs])
    return loss, tape.gradient(loss, inputs)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a valid answer here: no core file
    sys.dont_write_bytecode = True  # as in parallel.py
    for precision in sys.argv[1:]:
        train_step(DTYPES[precision])
