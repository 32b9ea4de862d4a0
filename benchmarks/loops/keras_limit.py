"""Keras in turns with TensorFlow's bare loop, which is the limit of both; see benchmarks.inside."""

import os
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_impl.launch
from benchmarks.inside import BareLoop, train_beside
from benchmarks.loops import tf_limit
from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.program import as_program
from common.spec.options import TrainConfig


def make_bare(experiment: Experiment) -> BareLoop:
    """TensorFlow's bare loop. It is made and run within fit, in the scope of fit's strategy.

    A scope applies to one thread, so the bare loop has a thread of its own.
    """
    thread = ThreadPoolExecutor(max_workers=1)
    loop = thread.submit(tf_limit.make_bare, experiment).result()
    return lambda steps: thread.submit(loop, steps).result()


if __name__ == "__main__":
    with as_program("keras_limit"):
        config = parse_options(TrainConfig, "python -m benchmarks.loops.keras_limit", "Keras's limit.")
        train_beside(make_bare, keras_impl.launch, config)
