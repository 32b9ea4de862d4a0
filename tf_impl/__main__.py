"""`python -m tf_impl`: reads the options, then trains. `--help` prints them all."""

import os
import sys

from common.cli import parse_train_config
from common.errors import whole_program
from common.probing import prepare_processor

with whole_program("python -m tf_impl"):
    config = parse_train_config("tf_impl", "Trains a network with TensorFlow (tf.distribute.MirroredStrategy).")
    # Fewer of TensorFlow's notes on CPU instructions and absent GPUs; its errors come as exceptions in any case.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Keras imports these where they are installed, for a second; no run uses them.
    sys.modules.update(dict.fromkeys(("matplotlib", "pandas", "sklearn")))
    prepare_processor(config, "tensorflow", "tf_impl.probe")
    # Imported here: a mistake in the options is told at once, not after TensorFlow has loaded.
    from tf_impl.train import main

    main(config)
