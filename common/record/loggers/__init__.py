"""Sinks for common tracking tools: TensorBoard, Weights & Biases, MLflow. `--logger` selects them."""

import importlib.util
from collections.abc import Sequence

from common.platform.errors import UserError
from common.record.loggers.tracker import Tracker
from common.spec.options import LoggerName

# The package that each tool needs; requirements-loggers.txt lists them all.
PACKAGES: dict[LoggerName, str] = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


def check_loggers(names: Sequence[LoggerName]) -> None:
    """Raises UserError if the package of a tool is not installed; imports none of them."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise UserError(
                f"--logger {name}: {PACKAGES[name]} is not installed; pip install -r requirements-loggers.txt"
            )


def make_tracker(name: LoggerName) -> Tracker:
    """Imports the tool's package only here, so that runs without the tool don't spend time on it."""
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
