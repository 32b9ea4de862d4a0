"""Tuned mode without one of its measures, for the programs `benchmarks/loops/*_without.py`."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.inside import MakeBare, train_beside
from benchmarks.paired import Implementation
from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.spec.options import TrainConfig

# Measures of each tuning.py that no option switches.
MEASURES: dict[Implementation, list[str]] = {
    "tf": ["several-steps"],
    "pt": ["channels-last"],
    "ptl": [
        "manual-optimization",
        "step-fetches",
        "no-profiler",
        "recording-hooks",
        "hook-names",
        "no-broadcast",
    ],
    "keras": ["several-steps", "no-autotune"],
}
NOTHING = "nothing"  # removes no measure


def run_without(
    implementation: Implementation, without: dict[str, Callable[[], None]], make_bare: MakeBare, launch: ModuleType
) -> None:
    """`python -m benchmarks.loops.<implementation>_without MEASURE` with the options of a run.

    Args:
      without: measure -> function that removes it, in this process.
      make_bare, launch: see `train_beside`.

    Raises:
      UserError: the measure is not known.
    """
    # sys.argv stays as it is: Lightning starts further replicas with it.
    measure, *arguments = sys.argv[1:] or [""]
    if measure not in (NOTHING, *without):
        raise UserError(f"{measure!r}: no measure of {implementation}_impl; there are {', '.join((NOTHING, *without))}")
    program = f"benchmarks.loops.{implementation}_without {measure}"
    config = parse_options(
        TrainConfig, f"python -m {program}", "Trains in tuned mode without one of its measures.", arguments
    )
    without.get(measure, lambda: None)()
    train_beside(make_bare, launch, config)


def replace(owner: Any, **pieces: Any) -> None:
    """Sets attributes of a module or a class, which must exist already."""
    for name, piece in pieces.items():
        assert hasattr(owner, name), f"{owner} has no {name}"
        setattr(owner, name, piece)
