"""`python -m tf_impl`: reads the options, then trains. `--help` prints them all."""

import os

from common.cli import parse_train_config
from common.errors import one_line_errors
from common.quiet import held_back_stderr

with one_line_errors("python -m tf_impl"):
    config = parse_train_config("tf_impl", "Trains a network with TensorFlow (tf.distribute.MirroredStrategy).")
    # TensorFlow tells of CPU instructions and absent GPUs at length, before and whatever its log level says.
    # Whoever sets the level sees it all; its errors come as exceptions in any case.
    asked = "TF_CPP_MIN_LOG_LEVEL" in os.environ
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Imported here: a mistake in the options is told at once, not after TensorFlow has loaded.
    with held_back_stderr(unless=asked):
        from tf_impl.train import main

    main(config)
