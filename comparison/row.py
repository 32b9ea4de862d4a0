"""A row of a table: what is said of one implementation in one mode."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from common.spec.options import Mode
from comparison.intervals import Verdict
from comparison.jobs import Values, row_name

Share = float
Status = Literal["ok", "failed", "some failed", "different training", "not proved"]


class Row(BaseModel):
    """One implementation, over all its runs in a table. None where there is nothing to say.

    Attributes:
      table: what stands in one table was asked for the same and counted the same, on one machine; from 1; 0
        where no run has succeeded.
      variant: of a sweep.
      num_runs, num_failed, num_rounds: finished, failed, and such rounds as its ratio is from.
      num_seeds: over which the accuracy is averaged.
      test_accuracy, test_accuracy_low, test_accuracy_high: mean over seeds and its 95 % interval, shares.
      test_loss: mean over seeds.
      images_per_second and its quartiles: the median over runs.
      ratio, ratio_low, ratio_high, verdict: of images per second to the table's first row, in pairs of the
        same round; see `comparison.intervals`.
      startup_seconds, train_seconds, eval_seconds: medians over runs.
      wall_seconds: of the run in the middle, from before its process was started until it had ended.
      imports_seconds to rest_seconds: the phases of that same run, so that they add up, see `common.record.timeline`;
        its last moments, after the result was written, are a part of the rest.
      peak_memory_bytes, device_peak_memory_bytes: the largest of all runs.
      cpu_utilisation, gpu_utilisation, joules_per_image: medians, see `common.record.results`.
      settings: precision, and whether compiled, as `--mode` or the options said.
      target_reached: runs that reached the target accuracy, of `num_runs`.
      target_epochs, target_steps, target_seconds: until then; means over the runs if all of them reached it,
        with quartiles; seconds of training and evaluation, start-up apart.
      same_training: whether it is the first row's, as the runs in 64 bits have proved; None for the first row, and
        with `--verify never`.
      proof_difference: the largest one in a step's loss in 64 bits.
      loss_difference_first_steps, loss_difference_all_steps: of the runs themselves, the largest over all of them, from
        the first row's run with the same seed: rounding in the runs' own precision, which grows from step to step. As
        `comparison.lockstep.loss_differences` gives them.
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
    num_rounds: int = Field(0, ge=0)
    num_seeds: int = Field(0, ge=0)
    test_accuracy: Share | None = None
    test_accuracy_low: Share | None = None
    test_accuracy_high: Share | None = None
    test_loss: float | None = None
    images_per_second: float | None = None
    images_per_second_q1: float | None = None
    images_per_second_q3: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    verdict: Verdict | None = None
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
    peak_memory_bytes: int | None = None
    device_peak_memory_bytes: int | None = None
    cpu_utilisation: Share | None = None
    gpu_utilisation: Share | None = None
    joules_per_image: float | None = None
    devices: int | None = None
    settings: str | None = None
    learning_rate: float | None = None
    target_reached: int | None = None
    target_epochs: float | None = None
    target_steps: float | None = None
    target_seconds: float | None = None
    target_seconds_q1: float | None = None
    target_seconds_q3: float | None = None
    same_training: bool | None = None
    proof_difference: float | None = None
    loss_difference_first_steps: float | None = None
    loss_difference_all_steps: float | None = None
    note: str | None = None
    run_dirs: list[str] = []

    @property
    def name(self) -> str:
        return row_name(self.implementation, self.mode)
