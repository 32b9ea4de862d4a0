"""The options of compare.py: its own, and those of a run, which it passes on to every implementation."""

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from common.implementations import IMPLEMENTATIONS, interpreter_of, modes_of
from common.platform.cli import as_typed, complaint, option_name
from common.platform.errors import UserError
from common.platform.machine import REPOSITORY
from common.spec.options import ABOUT_MODE, Mode, TrainConfig, TrainingOptions, option, options_of_kind

# Kinds of compare.py's own options: which rows there are, how a run is made, how many runs, sweeps, how results are
# judged and shown, the folder. --resume may change options of the kinds in RESUME_WITH, --report-only of those in
# REPORT_WITH.
OptionKind = Literal["rows", "run", "repeating", "study", "reading", "folder"]
RESUME_WITH: tuple[OptionKind, ...] = ("rows", "run", "repeating", "reading")
REPORT_WITH: tuple[OptionKind, ...] = ("reading",)

FIRST_ROUNDS = 3  # with --ratio-within; fewer may agree by chance
LIST_OPTIONS = ("seeds", "implementations", "mode")  # options of which --resume may add values


Seed = Annotated[int, Field(ge=0, lt=2**63)]
LearningRate = Annotated[float, Field(gt=0, le=1e38, allow_inf_nan=False)]


def _percent(value: Any) -> Any:
    """`3%` as a share."""
    if isinstance(value, str) and value.endswith("%"):
        with suppress(ValueError):
            return float(value.removesuffix("%")) / 100
    return value


Percent = Annotated[float, BeforeValidator(_percent), Field(gt=0, lt=1, allow_inf_nan=False)]


SHORT_NAMES = {implementation.title.lower(): name for name, implementation in IMPLEMENTATIONS.items()}
SHORT_NAMES["torch"] = "pt"


def _short_names(value: Any) -> Any:
    """Replaces long names by short ones: `PyTorch` by `pt`."""
    if not isinstance(value, list):
        return value
    return [SHORT_NAMES.get(name.lower(), name) if isinstance(name, str) else name for name in value]


class CompareConfig(TrainingOptions):
    """The options of compare.py; `python compare.py --help` prints all of them."""

    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        "the comparison": ("rows", "run", "repeating", "folder"),
        "sweeps": ("study",),
        "how results are judged and shown": ("reading",),
        **TrainingOptions.headings,
    }

    implementations: Annotated[list[str], BeforeValidator(_short_names)] = option(
        "rows", ["tf", "pt", "ptl"], shown="first", min_length=1
    )
    """which to run: tensorflow, keras, pytorch, lightning, jax, or tf, pt, ptl for short (NAME stands for the
    folder NAME_impl); the first is the reference: the others must train identically, and ratios are relative to
    its speed"""
    mode: list[Mode] = option(
        "rows",
        [],
        shown="first",
        description=f"{ABOUT_MODE}; each mode has its own row; unset: tutorial and plain, or plain alone where the"
        " tutorials' programs can't run or would train differently",
    )
    python: list[str] = option("run", [])
    """interpreters, as NAME=PATH, for implementations that live in another environment"""
    output_dir: Path | None = option("folder", None)
    """folder for all results; unset: a new one under results/"""
    timeout: float = option("run", 3600.0, gt=0, le=10**8)
    """seconds that one run may take"""
    turns: Literal["auto", "never"] = option("run", "auto")
    """auto: the programs of a round stay loaded and take turns to train, a tenth of a second each, so that what
    slows the machine down cancels in their ratios; never: one whole run after the other, which measures
    start-up and memory, too"""

    verify: Literal["auto", "never"] = option("run", "auto")
    """auto: prove with the first steps in 64-bit precision that all rows train identically, once for each
    configuration and version of the code; never: skip the proof"""

    check_learning: bool = option("run", False)
    """also check that each row learns: first that it can memorise a few training images, in a separate run;
    then, from the losses on training and test images, whether it under- or overfits"""

    repeats: int = option("repeating", 3, shown="first", gt=0, le=10**4)
    """rounds; each runs every implementation once in each mode, in rotating order, for every seed"""
    ratio_within: Percent | None = option(
        "repeating",
        None,
        description="run rounds until the ends of each ratio's 95 % interval are within this share of it, such as 3%:"
        f" at least {FIRST_ROUNDS}, at most --repeats, which must be larger; unset: exactly --repeats",
    )
    seeds: list[Seed] = option("repeating", [0], min_length=1)
    """seeds of initial weights, example order, dropout, augmentation and synthetic data; several show the spread
    of accuracy"""
    resume: Path | None = option("folder", None, shown="first")
    """folder of an earlier comparison to continue: do missing runs, and more rounds with a larger --repeats"""

    sweep: list[str] = option("study", [], shown="first")
    """values to compare, as OPTION=VALUE,VALUE,..., for an option of data, model, training or machine, such as
    batch-size or devices; several sweeps are combined with each other"""
    scaling: Literal["strong", "weak", "both"] = option("study", "both")
    """in a sweep of devices or num-nodes: strong keeps the global batch size, weak multiplies it by the devices
    on all nodes"""
    sweep_learning_rate: list[Literal["keep", "linear"] | LearningRate] = option("study", ["keep"], min_length=1)
    """the learning rate where a sweep changes the batch size: kept, scaled with it, or the best of several, such
    as 0.02 0.05 0.1, for each batch size"""

    target_accuracy: float | None = option("reading", None, gt=0, le=1)
    """also report when the test accuracy first reached this share, such as 0.99: epochs, steps, seconds"""
    report_only: Path | None = option("folder", None)
    """folder of a comparison: run nothing, only regenerate its tables and report"""

    @model_validator(mode="after")
    def _compares(self) -> Self:
        for name in (*LIST_OPTIONS, "sweep_learning_rate"):
            values = getattr(self, name)
            if twice := [value for value in values if values.count(value) > 1]:
                raise ValueError(f"{option_name(name)} {twice[0]}: named twice")
        if len(self.sweep_learning_rate) > 1 and self.rates != self.sweep_learning_rate:
            raise ValueError(f"--sweep-learning-rate {as_typed(self.sweep_learning_rate)}: one word, or several rates")
        if self.ratio_within is not None and self.repeats <= FIRST_ROUNDS:
            raise ValueError(
                f"--repeats {self.repeats}: with --ratio-within, {FIRST_ROUNDS} rounds are run in any case; give the"
                " largest number of rounds to run, such as --repeats 20"
            )
        folders = options_of_kind(CompareConfig, "folder")
        named = [option_name(name) for name in folders if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{named[0]} and {named[1]}: give only one of them")
        return self

    @property
    def modes(self) -> list[Mode]:
        return self.mode or ["plain"]

    @property
    def rates(self) -> list[float]:
        """The learning rates of which each batch size gets the best; empty if it is not chosen so."""
        return [rate for rate in self.sweep_learning_rate if isinstance(rate, float)]

    def with_absolute_paths(self, names: Collection[str]) -> "CompareConfig":
        """These options with the paths in the fields `names` made absolute: a comparison is resumed from anywhere."""
        python = [(item, *item.partition("=")) for item in self.python]
        absolute = {
            "data_dir": self.data_dir.absolute(),
            "python": [f"{name}={Path(path).absolute()}" if os.sep in path else item for item, name, _, path in python],
        }
        return self.model_copy(update={name: absolute[name] for name in absolute if name in names})

    def with_mode(self, *modes: Mode) -> "CompareConfig":
        """These options with the modes given, as if by hand."""
        return CompareConfig(**{**self.model_dump(exclude_unset=True), "mode": modes})

    def train_config(self) -> TrainConfig:
        """The options for an implementation, with the first of the modes and of the seeds."""
        shared = {name: getattr(self, name) for name in TrainingOptions.model_fields}
        return TrainConfig(**shared, mode=self.modes[0], seed=self.seeds[0])

    def check_implementations(self) -> None:
        """Raises UserError for a name without an implementation, a folder NAME_impl."""
        folders = (path.parent.name for path in REPOSITORY.glob("*_impl/__main__.py"))
        known = sorted({*IMPLEMENTATIONS, *(name.removesuffix("_impl") for name in folders)})
        for name in self.implementations:
            if name not in known:
                raise UserError(f"--implementations {name}: not one of {', '.join(known)}")
            if self.mode and not set(modes_of(name)) & set(self.mode):
                raise UserError(f"--implementations {name}: has --mode {' or '.join(modes_of(name))} alone")

    def interpreters(self) -> dict[str, str]:
        """Implementation -> path of its Python interpreter. Raises UserError if there is no program at a path."""
        paths = {name: interpreter_of(name) for name in self.implementations}
        names = [item.partition("=")[0] for item in self.python]
        for item in self.python:
            name, _, path = item.partition("=")
            if names.count(name) > 1:
                raise UserError(f"--python {item}: {name} is named twice")
            if name not in paths or not path:
                raise UserError(f"--python {item}: should be NAME=PATH with NAME one of {', '.join(paths)}")
            interpreter = shutil.which(path)
            if interpreter is None:
                raise UserError(f"--python {item}: no program at {path}")
            paths[name] = interpreter
        return paths

    def applied_to(self, stored: "CompareConfig", folder: Path, kinds: Sequence[OptionKind]) -> "CompareConfig":
        """The `stored` options of the comparison in `folder`, with the changes that are given here.

        Raises:
          UserError: a given option differs from the stored one, and must not.
        """
        named = self.model_fields_set - {*options_of_kind(CompareConfig, "folder")}
        given = {name: getattr(self, name) for name in named if getattr(self, name) != getattr(stored, name)}
        stored_values = stored.model_dump(exclude_unset=True)
        for name in LIST_OPTIONS:
            if name in given and not set(given[name]) >= set(had := getattr(stored, name)):
                raise UserError(
                    f"{option_name(name)} {as_typed(given[name])}: the comparison in {folder} has {as_typed(had)}; list"
                    " these too, together with the new ones"
                )
        if given.get("repeats", stored.repeats) < stored.repeats:
            raise UserError(
                f"--repeats {given['repeats']}: the comparison in {folder} has {stored.repeats} already; give"
                " that number or a larger one"
            )
        allowed = {*options_of_kind(CompareConfig, *kinds)}
        if stored.rates and "repeating" in kinds:  # the chosen rates depend on these
            allowed -= {"seeds", "target_accuracy", "implementations", "mode"}
        for name in sorted(given.keys() - allowed):
            raise UserError(
                f"{option_name(name)} {as_typed(given[name])}: the comparison in {folder} has"
                f" {as_typed(getattr(stored, name))}; leave the option out, or start a new comparison"
            )
        try:
            return CompareConfig(**{**stored_values, **given})
        except ValidationError as error:
            raise UserError(complaint(error.errors()[0])) from None
