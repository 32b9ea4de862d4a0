"""The runs of `--check-learning`, two for each row. `comparison.learning` reads their results."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.data.datasets import num_examples
from common.platform.errors import UserError
from common.record.predictions import Predictions
from common.record.results import EpochLine, read_metrics, read_result
from common.spec.options import Mode, TrainConfig
from comparison.jobs import Values, Variant, row_name, row_path
from comparison.side_runs import SideRun, SideRunner

LEARNING_DIR = "learning"
SMALL, WHOLE = "small", "whole"  # the folders of a row's two runs
SMALL_SIZE = 64  # training images that a row must learn by heart
SMALL_STEPS = 200  # number of steps for that
SMALL_WARMUP_STEPS = 20


def small_changes(config: TrainConfig) -> dict[str, Any]:
    """Options of the first run: train on a few images, without any regularisation, and evaluate on these images.

    Dropout is a part of the network and stays; it is off in the evaluation.
    """
    replicas = config.nodes * (1 if config.devices == "auto" else config.devices)
    count = min(num_examples(config)[0], max(SMALL_SIZE, replicas * config.microbatches))
    steps_per_epoch = math.ceil(count / config.examples_per_step)
    return {
        "train_size": count,
        "test_size": count,
        "evaluate_on": "train",
        "epochs": math.ceil(SMALL_STEPS / steps_per_epoch),
        "max_steps": -1,
        "schedule": "constant",
        **dict.fromkeys(("step_size", "gamma", "pct_start", "div_factor", "final_div_factor")),
        "warmup_steps": SMALL_WARMUP_STEPS,
        "weight_decay": 0.0,
        "label_smoothing": 0.0,
        "random_crop": 0,
        "horizontal_flip": False,
        "cutout": 0,
        "ema_decay": None,
    }


def whole_changes(config: TrainConfig) -> dict[str, Any]:
    """Options of the second run: the same training, evaluated on as many training images as there are test images."""
    return {"evaluate_on": "train", "test_size": min(num_examples(config))}


def check_small(runner: SideRunner, variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]]) -> None:
    """Makes the missing runs on a few images. Reports a failed run."""
    runs = _missing(runner, SMALL, variants, contenders)
    runner.make("check of learning, a few training images by heart:", "no check of learning of", runs)


def check_whole(runner: SideRunner, variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]]) -> None:
    """Makes the missing runs on all training images. Reports a failed run."""
    runs = _missing(runner, WHOLE, variants, contenders)
    runner.make("check of learning, loss on all training images:", "no check of learning of", runs)


def _missing(
    runner: SideRunner, step: str, variants: Sequence[Variant], contenders: Sequence[tuple[str, Mode]]
) -> list[SideRun]:
    runs = []
    for variant in variants:
        changes = small_changes(variant.config) if step == SMALL else whole_changes(variant.config)
        for implementation, mode in contenders:
            path = learning_path(dict(variant.values), row_name(implementation, mode), step)
            if not finished_epochs(runner.folder / path):
                runs.append(SideRun(path, variant, implementation, mode, changes))
    return runs


def learning_path(variant: Values, name: str, step: str) -> Path:
    """The folder of a row's run for `step` (SMALL or WHOLE), relative to the comparison's folder."""
    return row_path(LEARNING_DIR, variant, name) / step


def finished_epochs(run_dir: Path) -> list[EpochLine]:
    """The evaluations of a finished run; empty if the run is missing, has failed, or has damaged files."""
    try:
        read_result(run_dir)
        Predictions.read(run_dir)
        return read_metrics(run_dir, EpochLine)
    except UserError:
        return []
