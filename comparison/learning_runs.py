"""The runs of `--check-learning`, two for each row. `comparison.learning` reads their results."""

import math
from functools import partial

from common.data.datasets import num_examples
from common.spec.options import TrainConfig
from comparison.learning import SMALL, WHOLE, finished_epochs, learning_path
from comparison.side_runs import SideRunner

SMALL_SIZE = 64  # training images that a row must learn by heart
SMALL_STEPS = 200  # number of steps for that
SMALL_WARMUP_STEPS = 20
MISSING = "no check of learning of"  # begins the message about a failed run


def by_heart(config: TrainConfig) -> TrainConfig:
    """The options of the first run: train on a few images, without any regularisation, and evaluate on these images.

    Dropout is a part of the network and stays; it is off in the evaluation.
    """
    replicas = config.nodes * (1 if config.devices == "auto" else config.devices)
    count = min(num_examples(config)[0], max(SMALL_SIZE, replicas * config.microbatches))
    steps_per_epoch = math.ceil(count / config.examples_per_step)
    return config.made_for(
        "by heart",
        train_size=count,
        test_size=count,
        evaluate_on="train",
        epochs=math.ceil(SMALL_STEPS / steps_per_epoch),
        warmup_steps=SMALL_WARMUP_STEPS,
    )


def evaluated_on_training(config: TrainConfig) -> TrainConfig:
    """The options of the second run: the same training, evaluated on as many training images as there are test ones."""
    return config.replace(evaluate_on="train", test_size=min(num_examples(config)))


def check_small(runner: SideRunner) -> None:
    """Makes the missing runs on a few images. Reports a failed run."""
    doing, path = "check of learning, a few training images by heart:", partial(learning_path, step=SMALL)
    runner.make(doing, MISSING, path, by_heart, finished_epochs)


def check_whole(runner: SideRunner) -> None:
    """Makes the missing runs on all training images. Reports a failed run."""
    doing, path = "check of learning, loss on all training images:", partial(learning_path, step=WHOLE)
    runner.make(doing, MISSING, path, evaluated_on_training, finished_epochs)
