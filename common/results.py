"""The files of a run folder: one schema, checked when written and when read."""

import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from common.config import TrainConfig
from common.errors import UserError

SCHEMA_VERSION = 1
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
WEIGHTS_FILE = "model.safetensors"
FIRST_BATCH_FILE = "first_batch.safetensors"
RESULT_FILE = "result.json"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class RunResult(BaseModel):
    """`result.json`. Units stand in the names; accuracies are shares from 0 to 1.

    Attributes:
      config: as resolved: "auto" replaced by what it came to.
      config_sha256: over what decides the training, see `TrainConfig.sha256`.
      data_sha256: over the training and test arrays.
      initial_weights_sha256: over the weights before the first step, as float64.
      startup_seconds: from the start of the first process to the end of the first step; null without a step.
      epoch_train_seconds: of each epoch, the first step left out.
      eval_seconds: of each evaluation, one after every epoch.
      warmup_steps: steps left out of `images_per_second`, the first one among them.
      images_per_second: training examples over training seconds, all devices together; null where no
        step is left after warm-up.
      wall_seconds: from the start of the first process until this file was written.
      peak_memory_bytes: resident memory of all the run's processes, see `common.machine`.
      device_peak_memory_bytes: of the GPUs, summed; null on the CPU.
      num_steps: training steps taken.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1]
    implementation: str
    config: TrainConfig
    config_sha256: Sha256
    data_sha256: Sha256
    initial_weights_sha256: Sha256
    num_parameters: int = Field(gt=0)
    flops_per_image: int = Field(gt=0)
    num_steps: int = Field(ge=0)
    train_count: int = Field(gt=0)
    test_count: int = Field(gt=0)
    test_correct: int = Field(ge=0)
    test_accuracy: float = Field(ge=0, le=1)
    test_loss: float = Field(ge=0, allow_inf_nan=False)
    startup_seconds: Seconds | None
    epoch_train_seconds: list[Seconds]
    eval_seconds: list[Seconds]
    wall_seconds: Seconds
    warmup_steps: int = Field(ge=0)
    images_per_second: float | None = Field(gt=0, allow_inf_nan=False)
    peak_memory_bytes: int = Field(gt=0)
    device_peak_memory_bytes: int | None
    accelerator: Literal["cpu", "gpu"]
    devices: int = Field(gt=0)
    threads_per_device: int = Field(gt=0)
    device_name: str
    versions: dict[str, str]
    git: dict[str, str | bool] | None

    @model_validator(mode="after")
    def _adds_up(self) -> "RunResult":
        if not math.isclose(self.test_accuracy, self.test_correct / self.test_count, rel_tol=1e-12):
            raise ValueError("test_accuracy is not test_correct / test_count")
        if self.config_sha256 != self.config.sha256():
            raise ValueError("config_sha256 does not belong to config")
        return self


def describe_config(config: TrainConfig) -> str:
    """The text of `config.json`."""
    return config.model_dump_json(indent=2) + "\n"


def write_text(path: Path, text: str) -> None:
    """Writes all of `text` or nothing: to a temporary name first, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def write_result(run_dir: Path, result: RunResult) -> None:
    write_text(run_dir / RESULT_FILE, result.model_dump_json(indent=2) + "\n")


def read_result(run_dir: Path) -> RunResult:
    """Raises UserError where the file is missing or breaks the schema."""
    path = run_dir / RESULT_FILE
    try:
        return RunResult.model_validate_json(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "result"
        raise UserError(f"{path}: not valid: {where}: {first['msg']}") from None


def read_metrics(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in `metrics.jsonl`, in the order written; an unfinished last line is left out."""
    path = run_dir / METRICS_FILE
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # what follows the last line break is still being written
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def read_step_losses(run_dir: Path) -> list[float]:
    """The loss of every step, the first at index 0.

    Raises:
      UserError: steps that are missing, twice there or out of order.
    """
    steps = read_metrics(run_dir, "step")
    if [line["step"] for line in steps] != list(range(1, len(steps) + 1)):
        raise UserError(f"{run_dir / METRICS_FILE}: steps are not numbered 1, 2, 3, ...")
    return [line["loss"] for line in steps]
