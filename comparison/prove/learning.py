"""`--check-learning`: can a row memorise a few images, and does it under- or overfit on all of them?

Networks are usually developed in these two steps. The first step tests whether the code can learn at all (Karpathy, "A
Recipe for Training Neural Networks", 2019: overfit a single batch). The second step divides the error of the trained
network into two parts (Ng, "Machine Learning Yearning", 2018, chapters 20 to 22): the error on the training set (bias),
and the additional error on the test set (variance). The larger part is the one to work on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
import scipy

from common.data.datasets import num_examples
from common.platform.errors import UserError
from common.record.predictions import Predictions
from common.record.results import EpochLine, read_metrics, read_result
from common.spec.options import TrainConfig
from comparison.numbers import ACCURACY, LOSS, SHARE
from comparison.plan.jobs import VariantValues, row_path
from comparison.run.side_runs import SideRunner
from comparison.run.store import FAILURE_FILE, Run, log_end

Learned = Literal["fits", "underfits", "overfits", "learns nothing"]

LEARNING_DIR = "learning"
SMALL, WHOLE = "small", "whole"  # the folders of a row's two runs
SMALL_SIZE = 64  # training images that a row must memorise
SMALL_STEPS = 200  # number of steps for that
SMALL_WARMUP_STEPS = 20
SMALL_ERROR = 0.01  # share of wrong images; a smaller bias or variance is called neither under- nor overfitting
UNLIKELY = 0.025  # probability by chance, in one direction: as with a 95 % interval
OVERFITTING_RISE = 0.1  # relative rise of the test loss above its minimum that is called overfitting
SMOOTHED_EPOCHS = 3  # number of epochs over which the test loss is averaged for that, since single epochs are noisy


def learning_run_epochs(run_dir: Path) -> list[EpochLine]:
    """The evaluations of a finished run; empty if the run is missing, has failed, or has damaged files."""
    try:
        read_result(run_dir)
        Predictions.read(run_dir)
        return read_metrics(run_dir, EpochLine)
    except UserError:
        return []


# --- A few images, memorised ---


@final
@dataclass(frozen=True)
class SmallSet:
    """The result of the first step.

    Attributes:
      steps: number of steps after which all images were right in an evaluation; None if they never were.
      found: the result in words, to follow the row's title.
    """

    steps: int | None
    found: str


def read_small_set(folder: Path, variant: VariantValues, name: str) -> SmallSet | None:
    """The first step's result of a row of the comparison in `folder`; None if it was not checked."""
    run_dir = folder / row_path(LEARNING_DIR, variant, name) / SMALL
    if failure := " ".join(log_end(run_dir / FAILURE_FILE, 1)):
        return SmallSet(None, f"failed on a few training images that it should memorise: {failure}")
    epochs = learning_run_epochs(run_dir)
    if not epochs:
        return None
    plan, count = read_result(run_dir).plan, epochs[0].test_count
    right = [line.test_correct for line in epochs]
    if count in right:
        steps = plan.last_step(epochs[right.index(count)].epoch)
        return SmallSet(steps, f"memorised {count} training images in {steps} steps")
    found = f"did not memorise {count} training images in {plan.total_steps} steps ({max(right)} were right at best)"
    return SmallSet(None, found)


# --- All images ---


@final
@dataclass(frozen=True)
class Fit:
    """The second step: the evaluations of one training after each epoch, on training images and on test images.

    Attributes:
      train: on training images; the fields test_loss, test_accuracy and so on are of these images.
      test: on test images, from a measured run with the same seed.
      commonest: share of the most frequent class among the training images, from 0 to 1.
    """

    train: list[EpochLine]
    test: list[EpochLine]
    commonest: float

    @property
    def verdict(self) -> Learned:
        train, test = self.train[-1], self.test[-1]
        guessed = scipy.stats.binomtest(train.test_correct, train.test_count, self.commonest, alternative="greater")
        if guessed.pvalue > UNLIKELY:
            return "learns nothing"
        accuracy, of_test = (line.test_correct / line.test_count for line in (train, test))
        bias, variance = 1 - accuracy, accuracy - of_test
        counts = np.array([[line.test_correct, line.test_count - line.test_correct] for line in (train, test)])
        by_chance = scipy.stats.fisher_exact(counts, alternative="greater").pvalue > UNLIKELY
        if self.rise is not None or (variance >= max(SMALL_ERROR, bias) and not by_chance):
            return "overfits"
        return "underfits" if bias >= SMALL_ERROR else "fits"

    @property
    def rise(self) -> tuple[int, float] | None:
        """The epoch with the lowest test loss, and the relative rise since then; None if the test loss has not risen.

        The rise is between means over SMOOTHED_EPOCHS epochs. It counts only if the loss on training images fell
        meanwhile.
        """
        losses, trained = ([line.test_loss for line in lines] for lines in (self.test, self.train))
        if len(losses) < 2 * SMOOTHED_EPOCHS:
            return None
        means = np.convolve(losses, np.full(SMOOTHED_EPOCHS, 1 / SMOOTHED_EPOCHS), mode="valid")
        lowest = int(means.argmin())
        share = float(means[-1] / means[lowest]) - 1
        if share < OVERFITTING_RISE or trained[-1] >= min(trained[: lowest + SMOOTHED_EPOCHS]):
            return None
        return int(np.argmin(losses)) + 1, share

    @property
    def words(self) -> str:
        """The numbers behind the verdict, and what to try next."""
        train, test = self.train[-1], self.test[-1]
        words = [
            f"{train.test_accuracy:{ACCURACY}} of training images and {test.test_accuracy:{ACCURACY}} of test images"
            f" are right, the losses are {train.test_loss:{LOSS}} and {test.test_loss:{LOSS}}"
        ]
        if self.verdict == "learns nothing":
            words.append("try another learning rate; look at the images and labels that the network is given")
        if self.verdict == "overfits":
            if self.rise:
                epoch, share = self.rise
                words.append(f"the test loss was lowest after epoch {epoch} and has risen by {share:{SHARE}} since")
            words.append("try more images, augmentation, weight decay or dropout")
        if self.verdict == "underfits":
            losses = [line.test_loss for line in self.train]
            if len(losses) < 2 or losses[-1] < (1 - OVERFITTING_RISE / 2) * losses[-2]:
                words.append("the loss on training images may still fall; try more epochs")
            else:
                words.append(
                    "the loss on training images no longer falls; try another learning rate or a larger network"
                )
        return "; ".join(words)


def read_fit(folder: Path, variant: VariantValues, name: str, runs: Sequence[Run]) -> Fit | None:
    """The second step of a row of the comparison in `folder`; None if it was not checked.

    Args:
      runs: the row's measured runs; one of them must have the seed of the check, otherwise the result is None.
    """
    run_dir = folder / row_path(LEARNING_DIR, variant, name) / WHOLE
    train = learning_run_epochs(run_dir)
    if not train:
        return None
    seed = read_result(run_dir).config.seed
    test = next((run.epochs for run in runs if run.record.seed == seed and len(run.epochs) == len(train)), None)
    if test is None:
        return None
    labels = Predictions.read(run_dir).labels
    return Fit(train, test, float(np.bincount(labels).max() / len(labels)))


# --- Both runs ---

NO_LEARNING_CHECK = "no check of learning of"  # begins the message about a failed run


def by_heart(config: TrainConfig) -> TrainConfig:
    """The options of the first run: train on a few images, without any regularisation, and evaluate on these images.

    Dropout is a part of the network and stays; it is off in the evaluation.
    """
    replicas = config.nodes * (1 if config.devices == "auto" else config.devices)
    count = min(num_examples(config)[0], max(SMALL_SIZE, replicas * config.microbatches))
    steps_per_epoch = math.ceil(count / config.examples_per_step)
    return config.made_for(
        "memorise",
        train_size=count,
        test_size=count,
        evaluate_on="train",
        epochs=math.ceil(SMALL_STEPS / steps_per_epoch),
        warmup_steps=SMALL_WARMUP_STEPS,
    )


def evaluated_on_training(config: TrainConfig) -> TrainConfig:
    """The options of the second run: the same training, evaluated on as many training images as there are test ones."""
    return config.replace(evaluate_on="train", test_size=min(num_examples(config)))


def make_memorising_runs(runner: SideRunner) -> None:
    """Makes the missing runs on a few images. Reports a failed run."""
    doing = "check of learning, memorising a few training images:"
    runner.make(doing, NO_LEARNING_CHECK, (LEARNING_DIR, SMALL), by_heart, learning_run_epochs)


def make_whole_set_runs(runner: SideRunner) -> None:
    """Makes the missing runs on all training images. Reports a failed run."""
    doing = "check of learning, loss on all training images:"
    runner.make(doing, NO_LEARNING_CHECK, (LEARNING_DIR, WHOLE), evaluated_on_training, learning_run_epochs)
