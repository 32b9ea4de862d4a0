"""Keras in turns with TensorFlow's bare loop, which is the limit of both; see benchmarks.within_a_run."""

from concurrent.futures import ThreadPoolExecutor

from benchmarks.loops import tf_limit
from benchmarks.within_a_run import BareLoop, train_beside
from common.experiment import Experiment
from keras_impl.backend import BACKEND


def make_bare(experiment: Experiment) -> BareLoop:
    """TensorFlow's bare loop. It is made and run within fit, in the scope of fit's strategy.

    A scope applies to one thread, so the bare loop has a thread of its own.
    """
    thread = ThreadPoolExecutor(max_workers=1)
    loop = thread.submit(tf_limit.make_bare, experiment).result()
    return lambda steps: thread.submit(loop, steps).result()


if __name__ == "__main__":
    train_beside(make_bare, BACKEND, "benchmarks.loops.keras_limit")
