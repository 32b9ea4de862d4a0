"""`python -m tf_impl`: reads the options, then trains, evaluates or predicts. `--help` prints all options."""

import os

import common.platform.quiet_start  # noqa: F401 - see there
from common.platform.program import as_program

with as_program("python -m tf_impl"):
    # Imported inside `as_program`: Ctrl-C during these imports prints one line, not a stack trace.
    from common.resolve import prepare_processor
    from common.trained.command import parse_command
    from common.trained.use import read_used, show

    command = parse_command("tf_impl", "Trains a network with TensorFlow (loop written out; MirroredStrategy).")
    used = read_used(command)
    # Hides most of TensorFlow's notes on CPU instructions and missing GPUs. Its errors are raised as exceptions anyway.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    prepare_processor(command.config, "tensorflow", "tf_impl.probe")
    # Imported late: a mistake in the options is reported at once, not after TensorFlow has loaded.
    if command.config.mode == "tuned":
        import tf_impl.tuning  # noqa: F401 - before Keras: see there
    from tf_impl.launch import classify, main

    if used is None:
        main(command.config)
    else:
        show(command, "tf", used, classify(command.config, used.dataset))
