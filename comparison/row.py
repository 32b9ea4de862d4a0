"""A row of a table: what is said of one implementation in one mode."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from common.spec.options import Mode
from comparison.intervals import Verdict
from comparison.jobs import Values, row_name, row_title

Share = float
Status = Literal["ok", "failed", "some failed", "different training", "not proved"]


class Part(BaseModel):
    """A part of a row. None where there is nothing to say; the columns of `results.csv` have its fields' names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Accuracy(Part):
    """On the test set.

    Attributes:
      num_seeds: over which it is averaged.
      test_accuracy, test_accuracy_low, test_accuracy_high: mean over seeds and its 95 % interval, shares.
      test_loss: mean over seeds.
    """

    num_seeds: int = Field(0, ge=0)
    test_accuracy: Share | None = None
    test_accuracy_low: Share | None = None
    test_accuracy_high: Share | None = None
    test_loss: float | None = None


class Speed(Part):
    """Of training.

    Attributes:
      images_per_second: the median over runs, those of disturbed rounds left out (`comparison.rounds`).
      images_per_second_min, images_per_second_max: of the same runs.
      images_per_second_q1, images_per_second_q3: their quartiles; None with fewer than four of them.
      num_rounds: that the ratio is from.
      num_disturbed: rounds that were left out.
      ratio, ratio_low, ratio_high, verdict: of images per second to the table's first row, in pairs of the same round;
        None with fewer than three rounds; see `comparison.intervals`.
      ratio_min, ratio_max: of single rounds.
    """

    images_per_second: float | None = None
    images_per_second_min: float | None = None
    images_per_second_q1: float | None = None
    images_per_second_q3: float | None = None
    images_per_second_max: float | None = None
    num_rounds: int = Field(0, ge=0)
    num_disturbed: int = Field(0, ge=0)
    ratio_min: float | None = None
    ratio_max: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: Verdict | None = None

    @property
    def spread(self) -> tuple[float, float] | None:
        """Of images per second: the quartiles or, with fewer than four runs, the least and the most."""
        if self.images_per_second_q1 is not None and self.images_per_second_q3 is not None:
            return self.images_per_second_q1, self.images_per_second_q3
        if self.images_per_second_min is not None and self.images_per_second_max is not None:
            return self.images_per_second_min, self.images_per_second_max
        return None


class Times(Part):
    """Seconds of a run.

    Attributes:
      startup_seconds, train_seconds, eval_seconds: medians over runs.
      wall_seconds: of the run in the middle, from before its process was started until it had ended.
      imports_seconds to rest_seconds: the phases of that same run, so that they add up, see `common.record.timeline`;
        its last moments, after the result was written, are a part of the rest.
    """

    startup_seconds: float | None = None
    train_seconds: float | None = None
    eval_seconds: float | None = None
    wall_seconds: float | None = None
    imports_seconds: float | None = None
    data_seconds: float | None = None
    build_seconds: float | None = None
    training_seconds: float | None = None
    evaluation_seconds: float | None = None
    rest_seconds: float | None = None


class Resources(Part):
    """What a run takes of the machine.

    Attributes:
      peak_memory_bytes, device_peak_memory_bytes: the largest of all runs.
      cpu_utilisation, gpu_utilisation, joules_per_image: medians, see `common.record.results`.
    """

    peak_memory_bytes: int | None = None
    device_peak_memory_bytes: int | None = None
    cpu_utilisation: Share | None = None
    gpu_utilisation: Share | None = None
    joules_per_image: float | None = None


class Target(Part):
    """The way to the target accuracy, where there is one.

    Attributes:
      target_reached: runs that reached it, of the row's `num_runs`.
      target_epochs, target_steps, target_seconds: until then; means over the runs if all of them reached it, with
        quartiles; seconds of training and evaluation, start-up apart.
    """

    target_reached: int | None = None
    target_epochs: float | None = None
    target_steps: float | None = None
    target_seconds: float | None = None
    target_seconds_q1: float | None = None
    target_seconds_q3: float | None = None


class Lockstep(Part):
    """Whether it is the training of the table's first row.

    Attributes:
      same_training: as the runs in 64 bits have proved; None for the first row, and with `--verify never`.
      proof_difference: the largest one in a step's loss in 64 bits.
      loss_difference_first_steps, loss_difference_all_steps: of the runs themselves, the largest over all of them, from
        the first row's run with the same seed: rounding in the runs' own precision, which grows from step to step. As
        `comparison.lockstep.loss_differences` gives them.
    """

    same_training: bool | None = None
    proof_difference: float | None = None
    loss_difference_first_steps: float | None = None
    loss_difference_all_steps: float | None = None


class Row(BaseModel):
    """One implementation in one mode, over all its runs in a table.

    Attributes:
      table: what stands in one table was asked for the same and counted the same, on one machine; from 1; 0
        where no run has succeeded.
      variant: of a sweep.
      num_runs, num_failed: finished, and failed.
      settings: precision, and whether compiled, as `--mode` or the options said.
      note: one line for a person, on what the status says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: int = Field(ge=0)
    variant: Values
    implementation: str
    mode: Mode
    status: Status
    num_runs: int = Field(ge=0)
    num_failed: int = Field(ge=0)
    devices: int | None = None
    settings: str | None = None
    learning_rate: float | None = None
    accuracy: Accuracy = Accuracy()
    speed: Speed = Speed()
    times: Times = Times()
    resources: Resources = Resources()
    target: Target = Target()
    lockstep: Lockstep = Lockstep()
    note: str | None = None
    run_dirs: list[str] = []

    @property
    def name(self) -> str:
        return row_name(self.implementation, self.mode)

    @property
    def title(self) -> str:
        return row_title(self.implementation, self.mode)

    @classmethod
    def columns(cls) -> dict[str, Any]:
        """Name -> type of all fields, those of the parts among them."""
        columns: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            part = type(field.default).model_fields if isinstance(field.default, Part) else {name: field}
            columns |= {one: inner.annotation for one, inner in part.items()}
        return columns

    def flat(self) -> dict[str, Any]:
        """Column -> value."""
        values: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            values |= dict(value) if isinstance(value, Part) else {name: value}
        return values
