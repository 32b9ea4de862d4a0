"""Sinks for the tools that people already use: TensorBoard, Weights & Biases, MLflow. `--logger` names them."""

import importlib.util
from collections.abc import Sequence

from common.platform.errors import UserError
from common.record.loggers.tracker import Tracker
from common.spec.options import LoggerName

# The package that each one writes with; requirements-loggers.txt has them all.
PACKAGES: dict[LoggerName, str] = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raises UserError where one is not installed, without importing any."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise UserError(
                f"--logger {name}: {PACKAGES[name]} is not installed; pip install -r requirements-loggers.txt"
            )


def make_tracker(name: LoggerName) -> Tracker:
    """Imports what it needs: none of them is a cost of runs without it."""
    match name:
        case "tensorboard":
            from common.record.loggers.to_tensorboard import TensorBoard

            return TensorBoard()
        case "wandb":
            from common.record.loggers.to_wandb import WeightsAndBiases

            return WeightsAndBiases()
        case "mlflow":
            from common.record.loggers.to_mlflow import MLflow

            return MLflow()
