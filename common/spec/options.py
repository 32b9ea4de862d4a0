"""The configuration of one training run: typed, bounded, frozen, the same for every implementation."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from common.data.catalogue import DatasetName
from common.data.formats import ImageShape
from common.platform.errors import option_name
from common.spec.batches import Plan
from common.spec.device_options import DeviceOptions
from common.spec.option_kinds import fields_of_kind, option
from common.spec.update_options import UpdateOptions

ModelName = Literal["cnn", "lenet", "mnist_dropout", "resnet8", "resnet18", "resnet50"]
MAX_COUNT = 2**31 - 1  # upper bound for numbers of examples, batch sizes and the like
Mode = Literal["plain", "tuned"]
LoggerName = Literal["tensorboard", "wandb", "mlflow"]

ABOUT_MODE = (
    "plain: each framework as its own documentation teaches it, 32-bit floats and no compiler; tuned: with all that was"
    " measured to make it faster and is still the same training, see docs/performance.md"
)


class DataOptions(BaseModel):
    """Options for the examples and how they are changed, for the network, and for how often it sees them."""

    dataset: DatasetName = option(
        "data",
        "digits",
        description="the data set; all but digits and synthetic are read from --data-dir; arrays: a folder of"
        " memory-mapped arrays, which make_dataset.py makes of any folder of images",
    )
    data_dir: Path = option(
        "place",
        Path("data"),
        description="folder of data sets in torchvision's layout; missing ones are downloaded there once; for arrays"
        " the folder that make_dataset.py has written",
    )
    image_shape: ImageShape | None = option(
        "data", None, description="height, width and channels of synthetic images; unset: 28 28 1"
    )
    num_classes: int | None = option(
        "data", None, ge=2, le=256, description="number of classes of synthetic images; unset: 10"
    )
    train_size: int | None = option(
        "data",
        None,
        gt=0,
        le=MAX_COUNT,
        description="use the first N training examples (synthetic: make N); unset: all (synthetic: 8192)",
    )
    test_size: int | None = option(
        "data",
        None,
        gt=0,
        le=MAX_COUNT,
        description="use the first N test examples (synthetic: make N); unset: all (synthetic: 1024)",
    )

    model: ModelName = option("network", "cnn", description="the network")
    sync_batchnorm: bool = option(
        "network", False, description="batch normalisation over the batch of all replicas, not over each one's shard"
    )
    initial_weights: Path | None = option(
        "place", None, description="a model.safetensors to start from; unset: made from --seed"
    )

    epochs: int = option("training", 20, gt=0, le=10**6, description="passes over the training set")
    max_steps: int = option("training", -1, ge=-1, le=MAX_COUNT, description="stop after N steps; -1: no limit")
    batch_size: int = option("training", 64, gt=0, le=MAX_COUNT, description="global batch size, all devices together")
    label_smoothing: float = option(
        "training", 0.0, ge=0, lt=1, description="share of each training label that is spread evenly over all classes"
    )
    random_crop: int = option(
        "training",
        0,
        ge=0,
        le=4096,
        description="pad training images with N black pixels on each side, and crop them at random to their size",
    )
    horizontal_flip: bool = option("training", False, description="mirror half of the training images, at random")
    cutout: int = option(
        "training",
        0,
        ge=0,
        le=4096,
        description="in training, set a random square of N x N pixels to the mean colour",
    )
    seed: int = option(
        "training",
        0,
        ge=0,
        lt=2**63,
        description="seed of initial weights, example order, dropout, augmentation and synthetic data",
    )


class TrainingOptions(DeviceOptions, UpdateOptions, DataOptions):
    """The options of a training. `python -m <implementation> --help` prints all of them.

    Hyperparameters are stored as typed; `common.spec.update_rule` rounds them to float32 once, for all implementations.

    Raises:
      pydantic.ValidationError: a value has the wrong type, is out of bounds, or contradicts another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    eval_batch_size: int = option("training", 1000, gt=0, le=MAX_COUNT, description="global batch size of evaluation")
    log_every_n_steps: int = option(
        "output",
        50,
        gt=0,
        le=MAX_COUNT,
        description="fetch and write the step losses every N steps and at each epoch's end",
    )
    save_first_batch: bool = option(
        "output", False, description="also write first_batch.safetensors: activations and gradients on the first batch"
    )

    logger: tuple[LoggerName, ...] = option(
        "output",
        (),
        description="also keep losses, accuracy, rate, speed, hyperparameters and predictions in TensorBoard (files in"
        " --run-dir), Weights & Biases (offline without an account) or MLflow; needs requirements-loggers.txt",
    )
    profile: int | None = option(
        "output",
        None,
        gt=0,
        le=10**4,
        description="let the framework's own profiler look at N steps after warm-up: the costliest operations, and a"
        " trace for Perfetto or TensorBoard; compare.py makes runs of their own for it; unset: never",
    )
    checkpoint_every: Literal["epoch"] | Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = option(
        "output",
        None,
        description="write a checkpoint after every N steps, or each epoch, and when a signal ends the run; unset:"
        " never",
    )
    keep: int = option("output", 2, gt=0, le=10**6, description="keep only the last N checkpoints")

    @field_validator("*")
    @classmethod
    def _zero_has_no_sign(cls, value: Any) -> Any:
        return value + 0.0 if isinstance(value, float) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_steps == 0:
            raise ValueError("--max-steps 0: at least 1, or -1 for no limit")
        if self.batch_size % self.microbatches:
            raise ValueError(f"--microbatches {self.microbatches}: does not divide --batch-size {self.batch_size}")
        if self.dataset != "synthetic":
            for name in ("image_shape", "num_classes"):
                if (value := getattr(self, name)) is not None:
                    shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
                    raise ValueError(f"{option_name(name)} {shown}: only for --dataset synthetic, not {self.dataset}")
        return self


class TrainConfig(TrainingOptions):
    """The options of one run of one implementation."""

    mode: Mode = option("setting", "plain", description=ABOUT_MODE)
    run_dir: Path | None = option(
        "place", None, description="folder for this run's files; unset: a new one under runs/"
    )
    resume: Literal["auto"] | Path | None = option(
        "place",
        None,
        description="continue from this checkpoint, or from the latest one in this run folder, made by any"
        " implementation; auto: from the latest in --run-dir, or from the start if there is none",
    )
    verify_steps: int | None = option(
        "training",
        None,
        ge=4,
        le=MAX_COUNT,
        description="train only N steps, as the proof does: the first batches and the last one of each epoch, with the"
        " learning rates of the whole training",
    )
    evaluate_on: Literal["test", "train"] = option(
        "training",
        "test",
        description="the examples to evaluate on after each epoch; train: the first --test-size training examples,"
        " unset: all; results name the numbers test_... in both cases",
    )
    dry_run: bool = option("output", False, description="only write config.json, with every auto resolved")

    @property
    def examples_per_step(self) -> int:
        """Number of examples in all batches of a step, all devices together."""
        return self.batch_size * self.accumulate_grad_batches

    def plan(self, train_size: int) -> Plan:
        """The steps of a training on `train_size` examples."""
        size, accumulated = self.examples_per_step, self.accumulate_grad_batches
        return Plan.make(train_size, size, self.epochs, self.max_steps, self.verify_steps, accumulated)

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        check_mode(self.data_on, self.mode)
        return self

    def replace(self, **changes: Any) -> "TrainConfig":
        """A validated copy with some fields changed."""
        return TrainConfig(**{**self.model_dump(), **changes})

    def training_fields(self) -> dict[str, Any]:
        """The fields that determine what is trained and on how many devices, without paths, as JSON values."""
        return self.model_dump(mode="json", exclude={*fields_of_kind(TrainConfig, "place", "output")})

    def sha256(self) -> str:
        """Hex digest over `training_fields`: equal if and only if two runs have the same values of these fields."""
        text = json.dumps(self.training_fields(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def check_mode(data_on: str, *modes: Mode) -> None:
    """Raises ValueError for data on the device in plain mode."""
    if data_on == "device" and "plain" in modes:
        raise ValueError("--data-on device: needs --mode tuned; in plain mode the framework's own loader is used")
