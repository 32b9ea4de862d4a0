"""A row of a table: the results of one implementation in one mode."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from common.spec.options import Mode
from comparison.intervals import Verdict
from comparison.plan.jobs import Values, row_name, row_title
from comparison.prove.learning import Learned

Share = float
Status = Literal["ok", "failed", "some failed", "different training", "not proved", "does not learn"]


class Part(BaseModel):
    """A part of a row. None means not known. The columns of `results.csv` have the names of the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Accuracy(Part):
    """Accuracy and loss on the test set.

    Attributes:
      num_seeds: number of seeds that they are averaged over.
      test_accuracy, test_accuracy_low, test_accuracy_high: mean over seeds and its 95 % interval, as shares.
      test_loss: mean over seeds.
    """

    num_seeds: int = Field(0, ge=0)
    test_accuracy: Share | None = None
    test_accuracy_low: Share | None = None
    test_accuracy_high: Share | None = None
    test_loss: float | None = None


class Speed(Part):
    """Speed of training.

    Attributes:
      images_per_second: median over the runs of undisturbed rounds, see `rounds.py`; None if there are none.
        That of a run in turns is a trimmed mean over its undisturbed turns.
      images_per_second_min, images_per_second_max: the lowest and the highest value of the same runs.
      images_per_second_q1, images_per_second_q3: quartiles of the same runs; None with fewer than four of them.
      num_rounds: number of rounds that the ratio is from.
      num_disturbed: number of disturbed rounds.
      num_turns: number of turns that count.
      stalled: share of the time of these turns which slow ones take longer than usual ones.
      ratio, ratio_low, ratio_high, verdict: of images per second to those of the table's first row, from turns of the
        same cycle or, without turns, from runs of the same round; then None with fewer than three rounds; see
        `comparison.intervals`.
      ratio_min, ratio_max: the lowest and the highest ratio of a single round.
    """

    images_per_second: float | None = None
    images_per_second_min: float | None = None
    images_per_second_q1: float | None = None
    images_per_second_q3: float | None = None
    images_per_second_max: float | None = None
    num_rounds: int = Field(0, ge=0)
    num_disturbed: int = Field(0, ge=0)
    num_turns: int = Field(0, ge=0)
    stalled: Share | None = None
    ratio_min: float | None = None
    ratio_max: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: Verdict | None = None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The range of images per second: the quartiles or, with fewer than four runs, the lowest and the highest."""
        if self.images_per_second_q1 is not None and self.images_per_second_q3 is not None:
            return self.images_per_second_q1, self.images_per_second_q3
        if self.images_per_second_min is not None and self.images_per_second_max is not None:
            return self.images_per_second_min, self.images_per_second_max
        return None


class Times(Part):
    """Seconds of a run.

    Attributes:
      startup_seconds, train_seconds, eval_seconds: medians over runs.
      wall_seconds: of the run with the median duration, from before its process was started until it had ended.
      imports_seconds to rest_seconds: the phases of that same run, so that they add up, see `common.record.timeline`.
        The time after the result was written is a part of the rest.
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
    """The resources of the machine that a run uses.

    Attributes:
      peak_memory_bytes, device_peak_memory_bytes: the largest of all runs.
      cpu_utilisation, gpu_utilisation, joules_per_image: medians over runs, see `common.record.results`.
    """

    peak_memory_bytes: int | None = None
    device_peak_memory_bytes: int | None = None
    cpu_utilisation: Share | None = None
    gpu_utilisation: Share | None = None
    joules_per_image: float | None = None


class Target(Part):
    """How the runs reached the target accuracy, if there is one.

    Attributes:
      target_reached: number of runs that reached it, of the row's `num_runs`.
      target_epochs, target_steps, target_seconds: until then; means over the runs if all of them reached it. The
        seconds are those of training and evaluation, without start-up.
      target_seconds_q1, target_seconds_q3: quartiles of the seconds.
    """

    target_reached: int | None = None
    target_epochs: float | None = None
    target_steps: float | None = None
    target_seconds: float | None = None
    target_seconds_q1: float | None = None
    target_seconds_q3: float | None = None


class Lockstep(Part):
    """Whether a row is the same training as the table's first row.

    Attributes:
      same_training: as proved by the runs in 64 bits; None if not proved, for the first row, and with `--verify never`.
      proof_difference: the largest difference in a step's loss in 64 bits.
      loss_difference_first_steps, loss_difference_all_steps: the largest difference in a step's loss between a run of
        this row and the first row's run with the same seed, see `comparison.lockstep.loss_differences`. It comes from
        rounding in the runs' own precision, and grows from step to step.
    """

    same_training: bool | None = None
    proof_difference: float | None = None
    loss_difference_first_steps: float | None = None
    loss_difference_all_steps: float | None = None


class Learning(Part):
    """The results of `--check-learning`, see `comparison.prove.learning`; None without this option.

    Attributes:
      small_set_count: number of training images that the row had to learn by heart.
      small_set_steps: number of steps until it had learned them; None if it did not.
      train_loss, train_accuracy: of the trained network with the first seed, evaluated on as many training images as
        there are test images.
      learning: the verdict from training and test images.
      learning_note: one line for people: the numbers behind the verdict, and what to try next.
    """

    small_set_count: int | None = None
    small_set_steps: int | None = None
    train_loss: float | None = None
    train_accuracy: Share | None = None
    learning: Learned | None = None
    learning_note: str | None = None


class Row(BaseModel):
    """One implementation in one mode, over all its runs in a table.

    Attributes:
      table: number of the table, from 1; 0 if no run has succeeded. Runs of one table have the same settings and the
        same counts, and are from one machine.
      variant: the values of a sweep's options.
      num_runs, num_failed: number of runs that have succeeded, and that have failed.
      settings: precision, and whether compiled, as set by `--mode` or the options.
      note: one line for people that explains the status.
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
    learning: Learning = Learning()
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
        """Name -> type of all fields, including those of the parts."""
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
