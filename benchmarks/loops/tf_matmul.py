"""The best speed of TensorFlow's matrix products in each precision."""

import os
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks.paired import write_speed
from benchmarks.products import SIZES, flops_per_second, prepare_half_precision
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig
from tf_impl.parallel import make_strategy
from tf_impl.replicas import setup_devices, synchronize

DTYPES = {"64": tf.float64, "32": tf.float32, "bf16": tf.bfloat16, "16": tf.float16}


def main() -> None:
    config = setup_devices(
        parse_options(TrainConfig, "python -m benchmarks.loops.tf_matmul", "TensorFlow's matrix products.")
    )
    prepare_half_precision(config, "tensorflow", "tf_impl.probe")
    make_strategy(config)
    size = SIZES[config.accelerator]
    speeds = {}
    for name, dtype in DTYPES.items():
        a, b = (tf.cast(tf.random.uniform((size, size)), dtype) for _ in range(2))
        speeds[name] = flops_per_second(size, partial(tf.matmul, a, b), synchronize)
    write_speed(config.run_dir, **speeds)


if __name__ == "__main__":
    with as_program("tf_matmul"):
        main()
