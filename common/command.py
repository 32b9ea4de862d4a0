"""The command line of an implementation: train, evaluate or predict, and the options of each."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from common.data.formats import Fit
from common.platform.cli import complaint, option_name, parse_options
from common.platform.errors import UserError
from common.platform.files import read_json_model
from common.record.results import CONFIG_FILE
from common.spec.options import DatasetName, ImageShape, ModelName, Precision, TrainConfig


class UseConfig(BaseModel):
    """The options that evaluate and predict have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: Path = Field(
        description="a model.safetensors; data set and network are those of the config.json beside it, unless given"
    )
    dataset: DatasetName | None = Field(None, description="the data set that the network was trained on")
    data_dir: Path | None = Field(None, description="folder of data sets")
    image_shape: ImageShape | None = Field(None, description="height, width and channels of synthetic images")
    model: ModelName | None = Field(None, description="the network")
    accelerator: Literal["auto", "cpu", "gpu"] = Field("auto", description="auto: the GPU where there is one")
    threads_per_device: Literal["auto"] | Annotated[int, Field(gt=0)] = Field(
        "auto", description="CPU threads; auto: as many as cores"
    )
    precision: Annotated[Precision, BeforeValidator(lambda value: str(value))] = Field(
        "32", description="bits of every float, or mixed"
    )
    format: Literal["text", "json"] = Field("text", description="what is printed")

    def train_config(self) -> TrainConfig:
        """The configuration of the training that made the network, for one device.

        Raises:
          UserError: the weights file is missing; config.json can't be read; config.json is missing, and data set or
            network are not given; or options contradict each other.
        """
        if not self.weights.is_file():
            raise UserError(f"--weights {self.weights}: no such file")
        path, trained = self.weights.parent / CONFIG_FILE, TrainConfig()
        given: dict[str, Any] = {"initial_weights": self.weights}
        if path.exists():
            trained = read_json_model(TrainConfig, path)
            if self.dataset or self.data_dir:  # its sizes may differ from those of the data set trained on
                given |= dict.fromkeys(("test_size", "image_shape"))
        elif missing := [option_name(name) for name in ("dataset", "model") if getattr(self, name) is None]:
            raise UserError(f"--weights {self.weights}: no {CONFIG_FILE} beside it; give {' and '.join(missing)}")
        named = {name: getattr(self, name) for name in type(self).model_fields if name in TrainConfig.model_fields}
        given |= {name: value for name, value in named.items() if value is not None}
        try:
            return trained.made_for("use", **given)
        except ValidationError as error:
            raise UserError("; ".join(map(complaint, error.errors()))) from None


class EvaluateConfig(UseConfig):
    """The options of evaluate; `python -m <implementation> evaluate --help` prints them all."""

    test_size: int | None = Field(None, gt=0, description="use the first N test examples; unset: as in training")


class PredictConfig(UseConfig):
    """The options of predict; `python -m <implementation> predict --help` prints them all."""

    images: list[Path] = Field(min_length=1, description="pictures, of any usual file format")
    fit: Fit = Field(
        "crop", description="where a picture has another shape: cut what is too much, pad with black, or stretch"
    )


@dataclass(frozen=True)
class Command:
    """A parsed command line.

    Attributes:
      config: configuration of the training; for evaluate and predict, of the training that made the weights.
      use: options of evaluate or predict; None for a training.
    """

    config: TrainConfig
    use: UseConfig | None


def parse_command(implementation: str, about: str, arguments: Sequence[str] | None = None) -> Command:
    """Reads the command line of `python -m <implementation>`, or `arguments`; the first word "train" may be left out.

    Raises:
      UserError: the message is one line that names the option and the value.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    more = " The words evaluate and predict in front put a trained network to use; each has its own --help."
    kinds: dict[str, tuple[type[BaseModel], str]] = {
        "train": (TrainConfig, about + more),
        "evaluate": (EvaluateConfig, "Evaluates a trained network on its test set, on one device."),
        "predict": (PredictConfig, "Says what a trained network sees in pictures, on one device."),
    }
    word = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if word and word not in kinds:
        raise UserError(f"{word}: the first word should be train, which may be left out, evaluate or predict")
    schema, about = kinds[word or "train"]
    program = f"python -m {implementation} {word}".strip()
    config: Any = parse_options(schema, program, about, arguments[1:] if word else arguments)
    return Command(config, None) if isinstance(config, TrainConfig) else Command(config.train_config(), config)
