"""The files of a run folder: one schema, checked when written and when read."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from common.platform.errors import UserError
from common.platform.files import Count, Natural, Seconds, invalid_file_error, read_json_model, writing
from common.platform.machine import Machine
from common.record.timeline import PHASES, Phase
from common.spec.batches import Plan
from common.spec.options import ClassNames, TrainConfig

SCHEMA_VERSION = 19
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
WEIGHTS_FILE = "model.safetensors"
TRAINED_ON = "trained_on"  # in the metadata of WEIGHTS_FILE: a `DataSpec`, as JSON
FIRST_BATCH_FILE = "first_batch.safetensors"
RESULT_FILE = "result.json"

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class RunResult(BaseModel, frozen=True, extra="forbid"):
    """The content of `result.json`. The names contain the units; accuracies are shares from 0 to 1."""

    # --- What was trained ---

    schema_version: Literal[19]
    implementation: str
    config: TrainConfig  # resolved: every "auto" is replaced
    data_sha256: Sha256  # hex digest over the training and test arrays
    initial_weights_sha256: Sha256  # hex digest over the weights before the first step, as float64
    num_parameters: Count
    flops_per_image: Count
    class_names: ClassNames  # in the order of the labels
    num_steps: Count  # taken, including those before a checkpoint
    # Steps in which loss scaling left the weights unchanged; null if the precision needs no loss scaling.
    skipped_steps: Natural | None
    # After which step replicas had different weights, and where; null if they had the same after the first call and
    # after the last step, or if there is one replica.
    replicas_differ: str | None
    train_count: Count
    test_count: Count
    test_correct: Natural
    test_accuracy: float | None = Field(ge=0, le=1)  # null where the outputs are not scores of classes
    test_loss: FiniteFloat

    # --- Times and speeds ---

    # The step after which this process continued from a checkpoint, see `common.record.checkpoints`. It has measured
    # nothing of the steps before. Null: it took all steps.
    resumed_from: Count | None
    started: AwareDatetime  # start time of the first process, UTC
    # From the start of the first process to the end of the first step, or of the first call if a call takes several.
    # Null in a fork, as is its memory: see `common.platform.fork_server`.
    startup_seconds: Seconds | None
    epoch_train_seconds: list[Seconds]  # of each epoch, without the first call
    eval_seconds: list[Seconds]  # of each evaluation; there is one after every epoch
    wall_seconds: Seconds  # from the start of the first process until this file was written
    warmup_steps: Natural  # left out of `images_per_second`, including the first step
    # Training examples divided by training seconds, all devices together; null if no step is left after warm-up.
    images_per_second: float | None = Field(gt=0, allow_inf_nan=False)
    phase_seconds: dict[Phase, Seconds]  # the parts of `wall_seconds`, see `common.record.timeline`; they add up to it

    # --- Memory, load and energy ---

    # Resident memory of all the run's processes, see `common.platform.machine`; null in a fork.
    peak_memory_bytes: Count | None
    device_peak_memory_bytes: Natural | None  # memory of the GPUs, summed; null on the CPU
    # CPU seconds of the run's processes divided by those of the cores it may use, from the end of the first step to the
    # end of the last evaluation; null if this time is too short.
    cpu_utilisation: float | None = Field(ge=0, allow_inf_nan=False)
    # Share of the same time in which the GPUs were busy, from NVML; null if unknown, and on the CPU.
    gpu_utilisation: float | None = Field(ge=0, le=1)
    # Share of all the machine's cores that other programs used in the same time, or other tenants of the hardware
    # (stolen time).
    training_other_load: float | None = Field(ge=0, allow_inf_nan=False)
    # Energy of the GPUs in all training steps but the first, divided by the number of images in them; null if unknown,
    # and on the CPU.
    joules_per_image: float | None = Field(ge=0, allow_inf_nan=False)

    # --- Machine and code ---

    accelerator: Literal["cpu", "gpu"]
    devices: Count
    threads_per_device: Count
    device_name: str
    # The limit of oneDNN's instructions (`ONEDNN_MAX_CPU_ISA`), and why there is one, see `common.platform.processor`;
    # null if there is none, and on GPUs.
    processor_note: str | None
    machine: Machine
    versions: dict[str, str]
    code_sha256: Sha256  # hex digest over the code of the run, see `common.platform.machine.code_sha256`
    git: dict[str, str | bool] | None

    @property
    def plan(self) -> Plan:
        """The plan of the run's steps."""
        return self.config.plan(self.train_count)

    @property
    def code(self) -> str:
        """The commit of the run's code, to display: `0123456789ab`, `0123456789ab with uncommitted changes`."""
        git = self.git or {}
        changed = " with uncommitted changes" if git.get("dirty") else ""
        return f"{str(git.get('commit', 'unknown'))[:12]}{changed}"

    @model_validator(mode="after")
    def _adds_up(self) -> "RunResult":
        accuracy = self.test_correct / self.test_count
        if self.test_accuracy is not None and not math.isclose(self.test_accuracy, accuracy, rel_tol=1e-12):
            raise ValueError("test_accuracy is not test_correct / test_count")
        if set(self.phase_seconds) != set(PHASES):
            raise ValueError(f"phase_seconds should have {', '.join(PHASES)}")
        if not math.isclose(sum(self.phase_seconds.values()), self.wall_seconds, rel_tol=1e-6):
            raise ValueError("phase_seconds do not add up to wall_seconds")
        return self


def read_result(run_dir: Path) -> RunResult:
    """Raises UserError if the file is missing or breaks the schema."""
    return read_json_model(RunResult, run_dir / RESULT_FILE)


class PlanLine(BaseModel):
    """The first line of `metrics.jsonl`: the steps that the run will take, and the implementation that takes them."""

    kind: Literal["plan"]
    implementation: str
    total_steps: Count
    steps_per_epoch: Count
    num_epochs: Count


class StepLine(BaseModel):
    """One step, counted from 1 across epochs, and the mean loss over its global batch."""

    kind: Literal["step"]
    step: Count
    loss: FiniteFloat


class EpochLine(BaseModel):
    """An epoch of training, and the evaluation after it."""

    kind: Literal["epoch"]
    epoch: Count
    train_loss: float
    # Each example counts as predicted before the step that trains on it. Null, as the next one, where the outputs are
    # not scores of classes; `test_correct` counts the largest outputs all the same.
    train_accuracy: float | None = Field(ge=0, le=1)
    test_loss: FiniteFloat
    test_accuracy: float | None = Field(ge=0, le=1)
    test_correct: Natural
    test_count: Count
    train_seconds: Seconds
    eval_seconds: Seconds


class TurnLine(BaseModel):
    """A turn of training in a round whose programs train in turns, see `common.record.turns`."""

    kind: Literal["turn"]
    cycle: Count  # number of the turn, from 1; the turns of a cycle follow each other, one of each program of the round
    first_step: Count  # the first step that is timed; the first steps of a turn are not
    last_step: Count
    images: Count  # number of training examples in the timed steps
    seconds: float = Field(gt=0, allow_inf_nan=False)  # training time of these steps, without evaluation
    ended: FiniteFloat  # on the machine's monotonic clock (`time.perf_counter`), which all its processes share
    # Shares of all the machine's cores that the run itself and that other programs used, or other tenants of the
    # hardware, over the whole turn or, if that is too short to be measured, over several turns; null before the first
    # measurement.
    own_load: float | None = Field(ge=0, allow_inf_nan=False)
    other_load: float | None = Field(ge=0, allow_inf_nan=False)

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    def epochs_begun(self, steps_per_epoch: int) -> int:
        """Number of epochs whose first step is one of the timed steps."""
        return (self.last_step - 1) // steps_per_epoch - (self.first_step - 2) // steps_per_epoch


MetricsLine = PlanLine | StepLine | EpochLine | TurnLine
_METRICS_LINE: TypeAdapter[MetricsLine] = TypeAdapter(Annotated[MetricsLine, Field(discriminator="kind")])
Line = TypeVar("Line", PlanLine, StepLine, EpochLine, TurnLine)


class MetricsFile:
    """Writes `metrics.jsonl` while a run trains, each line at once."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / METRICS_FILE
        with writing(self._path):
            self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115 - until `close`

    def write(self, line: MetricsLine) -> None:
        self._append(json.dumps(line.model_dump()) + "\n")

    def write_steps(self, first: int, losses: Sequence[float]) -> None:
        """A `StepLine` for each loss, the first of which is that of step `first`."""
        lines = ({"kind": "step", "step": step, "loss": loss} for step, loss in enumerate(losses, first))
        self._append("".join(json.dumps(line) + "\n" for line in lines))

    def _append(self, text: str) -> None:
        """Raises FileError if the disk is full or the folder is gone."""
        left = text.encode()
        with writing(self._path):
            self._path.stat()
            while left:  # a disk that is nearly full may accept only a part
                left = left[self._file.write(left) :]

    def close(self) -> None:
        self._file.close()


def parse_metrics(text: str | bytes, source: Path) -> list[MetricsLine]:
    """Parses complete lines of `metrics.jsonl`. Raises UserError for a line that breaks the schema."""
    try:
        return [_METRICS_LINE.validate_json(line) for line in text.splitlines()]
    except ValidationError as error:
        raise invalid_file_error(source, error) from None


def read_metrics(run_dir: Path, kind: type[Line]) -> list[Line]:
    """The lines of one kind in `metrics.jsonl`, in the order written; an unfinished last line is left out."""
    path = run_dir / METRICS_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = content.rpartition(b"\n")[0]  # what follows the last line break is still being written
    return [line for line in parse_metrics(whole, path) if isinstance(line, kind)]


def read_step_losses(run_dir: Path) -> list[float]:
    """The loss of every step, the first at index 0.

    Raises UserError if steps are missing, repeated or out of order, or a line breaks the schema.
    """
    steps = read_metrics(run_dir, StepLine)
    if [line.step for line in steps] != list(range(1, len(steps) + 1)):
        raise UserError(f"{run_dir / METRICS_FILE}: steps are not numbered 1, 2, 3, ...")
    return [line.loss for line in steps]
