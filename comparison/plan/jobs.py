"""The runs to be made: every implementation, for every variant of a sweep, seed and round, in a fair order."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from common.implementations import implementation_title, modes_of
from common.platform.cli import as_typed, complaint
from common.platform.errors import UserError
from common.platform.machine import num_cores
from common.spec.options import TRAINED_KINDS, Mode, TrainConfig, TrainingOptions, options_of_kind
from common.spec.update_rule import spelled_out
from comparison.plan.options import FIRST_ROUNDS, CompareConfig

SCALED_OPTIONS = ("devices", "num-nodes")  # options whose sweep changes the number of devices, and so has a scaling

VariantValues = dict[str, str]  # option without the leading dashes -> value, as text: {"batch-size": "32"}


class Contender(NamedTuple):
    """An implementation in one mode, which is a row of a table."""

    implementation: str
    mode: Mode

    @property
    def name(self) -> str:
        """`pt`, `pt tuned`."""
        return self.implementation if self.mode == "plain" else f"{self.implementation} {self.mode}"

    @property
    def title(self) -> str:
        """For people: `PyTorch`, `PyTorch tuned`."""
        return self._replace(implementation=implementation_title(self.implementation)).name


def variant_name(values: VariantValues) -> str:
    """`batch-size=32,devices=2`; empty if nothing is swept."""
    return ",".join(f"{option}={value}" for option, value in values.items())


def row_path(kind: str, variant: VariantValues, name: str) -> Path:
    """The folder of a row, relative to the comparison's folder: `proofs/batch-size=32/pt-tuned` for the kind proofs."""
    return Path(*filter(None, [kind, variant_name(variant), name.replace(" ", "-")]))


def shown_variant(values: VariantValues) -> str:
    """`batch-size 32, devices 2`, for people; empty if nothing is swept."""
    return ", ".join(f"{option} {value}" for option, value in values.items())


def variant_in_brackets(values: VariantValues) -> str:
    """` (batch-size 32, devices 2)`, to follow a name; empty if nothing is swept."""
    return f" ({shown_variant(values)})" if values else ""


@dataclass(frozen=True)
class Variant:
    """One configuration of a sweep. If nothing is swept, there is one variant, without values."""

    values: tuple[tuple[str, str], ...]
    config: TrainConfig

    @property
    def name(self) -> str:
        return variant_name(dict(self.values))


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
      round: from 1; runs that are compared in pairs have the same seed and round.
      rate_search: whether the run only helps to choose a learning rate; such a run is in no table.
      config: all options except the run folder.
    """

    variant: Variant
    implementation: str
    seed: int
    round: int
    rate_search: bool
    config: TrainConfig

    @property
    def contender(self) -> Contender:
        return Contender(self.implementation, self.config.mode)

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def title(self) -> str:
        return self.contender.title

    @property
    def path(self) -> Path:
        """The run's folder, relative to the comparison's folder."""
        parts = ["rate-search" if self.rate_search else "runs", self.variant.name]
        if self.rate_search:
            parts.append(f"learning-rate={self.config.learning_rate:g}")
        parts += [f"seed-{self.seed}", f"round-{self.round}", self.name.replace(" ", "-")]
        return Path(*filter(None, parts))


def make_variants(options: CompareConfig, base: TrainConfig) -> list[Variant]:
    """The variants: the cross product of all sweeps. Learning rates are kept or scaled here, and tuned later.

    Raises:
      UserError: a sweep is not valid, or an option does not accept a value.
    """
    swept: dict[str, list[str]] = {}  # option without the leading dashes -> values
    for item in options.sweep:
        name, values = _parse(item)
        if name in swept:
            raise UserError(f"--sweep {item}: {name} is swept twice")
        swept[name] = values
    is_scaled = bool(swept.keys() & {*SCALED_OPTIONS})
    if "scaling" in options.model_fields_set and not is_scaled:
        raise UserError(
            f"--scaling {options.scaling}: needs --sweep {' or '.join(f'{name}=N,N' for name in SCALED_OPTIONS)}"
        )
    if options.rates and "learning-rate" in swept:
        raise UserError("--sweep-learning-rate: no rates to choose from where a sweep sets the learning rate itself")
    variants = []
    for combination in itertools.product(*swept.values()):
        texts = dict(zip(swept, combination, strict=True))
        try:
            config = spelled_out(base.replace(**{_field(name): _value(name, text) for name, text in texts.items()}))
        except ValidationError as error:
            shown = " ".join(f"{name}={text}" for name, text in texts.items())
            raise UserError(f"--sweep {shown}: {complaint(error.errors()[0])}") from None
        if "devices" in swept and config.accelerator == "cpu" and config.threads_per_device == "auto":
            # Every replica gets the same share of the machine: more replicas use more of it, as with GPUs.
            most = max(map(int, swept["devices"]))
            config = config.replace(threads_per_device=max(1, num_cores() // most))
        count = config.nodes * (1 if config.devices == "auto" else config.devices)
        scalings = {"both": ["strong", "weak"]}.get(options.scaling, [options.scaling]) if is_scaled else [""]
        for scaling in scalings:
            values_shown = texts | ({"scaling": scaling} if scaling else {})
            if scaling == "weak" and len(scalings) > 1 and count == 1:
                continue  # the same run as in strong scaling
            scaled = config.replace(batch_size=config.batch_size * count) if scaling == "weak" else config
            if options.sweep_learning_rate == ["linear"]:
                # Goyal et al. 2017, "Accurate, Large Minibatch SGD": the rate is proportional to the batch size.
                assert scaled.learning_rate is not None
                rate = scaled.learning_rate * (scaled.examples_per_step / base.examples_per_step)
                scaled = scaled.replace(learning_rate=rate)
            variants.append(Variant(tuple(values_shown.items()), scaled))
    if options.sweep_learning_rate != ["keep"] and len({variant.config.examples_per_step for variant in variants}) < 2:
        given = as_typed(options.sweep_learning_rate)
        raise UserError(f"--sweep-learning-rate {given}: no sweep changes the batch size")
    return variants


def rate_search_jobs(options: CompareConfig, variants: Sequence[Variant]) -> Iterator[Job]:
    """Runs that choose the learning rate of each variant: by the first implementation, with separate seeds.

    One implementation is enough, since all are the same training. The seeds are not those of the tables: a rate that
    was chosen by its results with the seeds of the tables would look better there than it is.
    """
    first = max(options.seeds) + 1
    for offset in range(len(options.seeds)):
        for variant in variants:
            for rate in options.rates:
                config = variant.config.made_for("rate search", learning_rate=rate, seed=first + offset)
                yield Job(variant, options.implementations[0], first + offset, 1, True, config)


def comparison_jobs(options: CompareConfig, variants: Sequence[Variant]) -> Iterator[Job]:
    """The runs of all rounds that are made in any case.

    Rounds are the outer loop, so that a drift of the machine affects all variants and implementations alike. Every
    round begins with another variant and another implementation than the round before.
    """
    for number, seed in itertools.product(range(1, planned_rounds(options) + 1), options.seeds):
        for variant in _rotated(variants, _turn(options, seed, number)):
            yield from jobs_of_round(options, variant, seed, number)


def planned_rounds(options: CompareConfig) -> int:
    """Number of rounds for each seed that are made in any case."""
    return options.repeats if options.ratio_within is None else FIRST_ROUNDS


def jobs_of_round(options: CompareConfig, variant: Variant, seed: int, number: int) -> list[Job]:
    """The runs of a variant in round `number`, which are compared in pairs."""
    return [
        Job(variant, name, seed, number, False, variant.config.made_for("row", seed=seed, mode=mode))
        for name, mode in _rotated(contenders(options), _turn(options, seed, number))
    ]


def _turn(options: CompareConfig, seed: int, number: int) -> int:
    return (number - 1) * len(options.seeds) + options.seeds.index(seed)


def contenders(options: CompareConfig) -> list[Contender]:
    """Implementations and modes in the order of their rows; the others are compared with the first one."""
    rows = itertools.starmap(Contender, itertools.product(options.implementations, options.modes))
    return [row for row in rows if row.mode in modes_of(row.implementation)]


def _rotated(items: Sequence[Any], turn: int) -> Sequence[Any]:
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def _parse(item: str) -> tuple[str, list[str]]:
    """`batch-size=32,64` -> ("batch-size", ["32", "64"])."""
    option, found, text = item.partition("=")
    name = option.removeprefix("--").replace("_", "-")
    values = [value.strip() for value in text.split(",")]
    if not name or not found or not all(values):
        raise UserError(f"--sweep {item}: should be OPTION=VALUE,VALUE,...")
    # A shape and stages are several values.
    if _field(name) not in {*options_of_kind(TrainingOptions, *TRAINED_KINDS)} - {"image_shape", "stages"}:
        others = {
            "seed": "; seeds have an option of their own, --seeds",
            "mode": "; --mode plain tuned makes a row of each",
        }
        raise UserError(f"--sweep {item}: --{name} cannot be swept{others.get(name, '')}")
    if name in SCALED_OPTIONS and not all(value.isdigit() and int(value) for value in values):
        raise UserError(f"--sweep {item}: should be numbers of {name.removeprefix('num-')}")
    if len({repr(_value(name, text)) for text in values}) < len(values):
        raise UserError(f"--sweep {item}: a value is named twice")
    return name, values


def _field(name: str) -> str:
    return name.replace("-", "_")


def _value(name: str, text: str) -> Any:
    """The value of `text` for this option. Raises UserError if the option does not accept it."""
    annotation = TrainingOptions.model_fields[_field(name)].rebuild_annotation()
    try:
        return TypeAdapter[Any](annotation).validate_python(text)
    except ValidationError as error:
        raise UserError(f"--sweep {name}={text}: {complaint(error.errors()[0])}") from None
