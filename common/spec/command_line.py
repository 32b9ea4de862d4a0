"""The command line of an implementation."""

from collections.abc import Sequence

from common.platform.cli import parse_options
from common.spec.options import TrainConfig


def parse_train_config(implementation: str, about: str, arguments: Sequence[str] | None = None) -> TrainConfig:
    """The command line of `python -m <implementation>`; see `parse_options`."""
    return parse_options(TrainConfig, f"python -m {implementation}", about, arguments)
