"""`Row`: the columns of tables. Each is written once, as a method."""

import math
from functools import cached_property
from typing import Any

import pandas as pd

from common.record.timeline import SHOWN_PHASES, Phase
from common.resolve import describe_settings
from common.spec.options import Mode
from comparison.lockstep import FIRST_STEPS, loss_differences
from comparison.measure.columns import Column, column, shown, stored
from comparison.measure.status import DIFFERENT_STATUSES, ProvedRow, Status
from comparison.measure.table import speed_ratio
from comparison.numbers import (
    ACCURACY,
    COUNT,
    LOSS,
    RATIO,
    SHARE,
    difference,
    mebibytes,
    rate,
    seconds,
    short_rate,
    span,
)
from comparison.plan.jobs import VariantValues
from comparison.prove.learning import Learned
from comparison.ratios import MIN_FOR_QUARTILES, Interval, Ratio, Verdict, mean_interval, typical_speed
from comparison.run.store import TargetReached

# The tables of text that a column may be in. Those of a table's rows, in their order; DETAILED_TABLES are not on the
# terminal:
ROW_TABLES = MAIN, TARGET, LEARNING, DETAILS, TIMES, DEVICE = "main", "target", "learning", "details", "times", "device"
DETAILED_TABLES = (DETAILS, TIMES, DEVICE)
# Those of all rows of a sweep, in their order:
SWEEP_TABLES = SWEEP_SPEED, SWEEP_ACCURACY, SWEEP_LEARNING = "sweep speed", "sweep accuracy", "sweep learning"
ABOUT_PHASES: dict[Phase, str] = {
    "imports": "Python and the framework's libraries",
    "data": "reading the data set",
    "build": "network, processes, compiling, and the first step",
    "training": "all steps after the first",
    "evaluation": "evaluating on the test set",
    "between": "neither training nor evaluation: fetching an epoch's last losses, recreating loaders; not in any speed",
    "rest": "predictions, files, ending the processes",
}


def _known(value: Any) -> float | None:
    """None for NaN, which is what pandas says of no values."""
    return None if math.isnan(value) else float(value)


def _mean(values: pd.Series) -> float | None:
    """None if any value is not known: a mean of the others would be over other runs. So is the median."""
    return _known(values.mean(skipna=False))


def _median(values: pd.Series) -> float | None:
    return _known(values.median(skipna=False))


def _largest(values: pd.Series) -> int | None:
    return int(values.max()) if values.notna().any() else None


def _phase_column(phase: Phase) -> Column[float | None]:
    def of_row(row: "Row") -> float | None:
        return row.phases.get(phase)

    of_row.__doc__ = f"{ABOUT_PHASES[phase][0].upper()}{ABOUT_PHASES[phase][1:]}."
    return column(f"{phase}\ns", TIMES, form=seconds)(of_row)


class Row(ProvedRow):
    """The columns of a row: the methods with `@column` and, for text that is only shown, `@shown`.

    Their values are computed at the first use: by then all rows must be in the table. Times and energy come from
    `measured`, without disturbed runs, all else from `runs`. A share is from 0 to 1; None is what is not known.
    """

    @property
    def label(self) -> str:
        """`PyTorch`; `PyTorch: failed`; `PyTorch *` if its speed is that of a busy machine."""
        if not self.is_comparable:
            return f"{self.title}: {self.status}"
        return f"{self.title} *" if self.runs["busy"].any() else self.title

    @property
    def is_comparable(self) -> bool:
        return self.status in ("ok", "some failed")

    # --- What several columns are computed from ---

    @cached_property
    def _of_seeds(self) -> pd.DataFrame:
        """Test accuracy and loss of each seed: the means of its runs."""
        return self.runs.groupby("seed")[["test_accuracy", "test_loss"]].mean()

    @cached_property
    def _accuracy(self) -> Interval | None:
        accuracies = self._of_seeds["test_accuracy"].dropna()
        return mean_interval(accuracies.tolist()) if len(accuracies) else None

    @cached_property
    def speeds(self) -> pd.Series:
        """Images per second of the measured runs."""
        return self.measured["speed"].dropna()

    def _speed_at(self, share: float) -> float | None:
        """A quartile of the speeds; with too few runs, the lowest or the highest."""
        return _known(self.speeds.quantile(share if len(self.speeds) >= MIN_FOR_QUARTILES else round(share)))

    @cached_property
    def _ratio(self) -> Ratio | None:
        """The ratio to the first row; None for the first row itself."""
        if self.is_reference or not len(self.runs) or self.has_no_ratio:
            return None
        return speed_ratio(self.in_table.reference, self)

    @cached_property
    def _reached(self) -> pd.DataFrame:
        """When each of its runs first reached the target accuracy; missing for one that did not."""
        accuracy = self.in_table.options.target_accuracy
        reached = [run.reach(accuracy) for run in self.runs["run"]]
        return pd.DataFrame(reached, columns=TargetReached._fields, dtype=float)

    @cached_property
    def _rounding(self) -> tuple[float | None, float | None]:
        """The largest difference in loss from the first row's runs of the same seed: in the first steps, and in all."""
        pairs = [] if self.is_reference else self.same_seed
        differences = [found for run, first in pairs if len(found := loss_differences(first.losses, run.losses))]
        if not differences:
            return None, None
        return max(float(of[:FIRST_STEPS].max()) for of in differences), max(float(of.max()) for of in differences)

    # --- Columns: which row it is ---

    @column()
    def table(self) -> int:
        """Number of the table, from 1; 0 if no run has succeeded."""
        return self.in_table.number if len(self.runs) else 0

    variant = stored(
        "Of a sweep: `batch-size=32,devices=2`; empty if nothing is swept.",
        lambda row: row.in_table.variant,
        VariantValues,
    )

    @column()
    def implementation(self) -> str:
        """`tf`, `keras`, `pt`, `ptl`, `jax`, `keras_torch` or `keras_jax`."""
        return self.contender.implementation

    @column()
    def mode(self) -> Mode:
        """`tutorial`, `plain` or `tuned`."""
        return self.contender.mode

    @column()
    def status(self) -> Status:
        """`ok`, `failed`, `some failed`, `different training`, `different evaluation`, `not proved` or `does not
        learn`."""
        return self.judgement[0]

    num_runs = stored("Number of runs that have succeeded.", lambda row: len(row.runs), int)
    devices = stored("Number of replicas.", lambda row: row.first and row.first.devices, int | None)
    settings = stored(
        "Precision, and whether compiled, as set by `--mode` or the options.",
        lambda row: row.first and describe_settings(row.first.config),
        str | None,
    )

    @column("learning\nrate", SWEEP_ACCURACY, form="g")
    def learning_rate(self) -> float | None:
        """The highest learning rate."""
        return self.first.config.learning_rate if self.first else None

    # --- Columns: accuracy ---

    num_seeds = stored(
        "Number of seeds that accuracy and loss are averaged over.", lambda row: row.runs["seed"].nunique(), int
    )

    @column("test\naccuracy", MAIN, SWEEP_ACCURACY, form=ACCURACY)
    def test_accuracy(self) -> float | None:
        """Share of test images classified correctly: mean over seeds; missing if the outputs aren't classes' scores."""
        return self._accuracy and self._accuracy.estimate

    test_accuracy_low = stored("Lower end of its 95 % interval.", lambda row: row._accuracy and row._accuracy.low)
    test_accuracy_high = stored("Upper end of its 95 % interval.", lambda row: row._accuracy and row._accuracy.high)

    @shown("95 %\npoints", MAIN, SWEEP_ACCURACY, form="±{:.2f}".format)
    def plus_minus(self) -> float | None:
        """Half the width of the accuracy's 95 % interval, in percentage points."""
        low, high = self.test_accuracy_low, self.test_accuracy_high
        return None if low is None or high is None else 50 * (high - low)

    @column("test\nloss", DETAILS, SWEEP_ACCURACY, form=LOSS)
    def test_loss(self) -> float | None:
        """Mean over seeds."""
        return _mean(self._of_seeds["test_loss"])

    @shown("test\nloss", MAIN, form=LOSS)
    def loss_without_accuracy(self) -> float | None:
        """The test loss, where there is no accuracy."""
        return self.test_loss if self.test_accuracy is None else None

    # --- Columns: speed ---

    @column("\nimages/s", MAIN, SWEEP_SPEED, form=rate)
    def images_per_second(self) -> float | None:
        """Training images per second in usual turns: the median over the runs of undisturbed rounds, if there are."""
        return _median(self.speeds)

    images_per_second_low = stored(
        "Lower quartile of the same runs; with fewer than four, the lowest value.", lambda row: row._speed_at(0.25)
    )
    images_per_second_high = stored("Upper quartile, or the highest value.", lambda row: row._speed_at(0.75))

    @shown("images/s\nspread", MAIN, SWEEP_SPEED)
    def shown_spread(self) -> str:
        low, high = self.images_per_second_low, self.images_per_second_high
        return span(low, high, short_rate) if low != high else ""

    @column()
    def num_rounds(self) -> int:
        """Number of rounds that the ratio is from."""
        if self._ratio:
            return self._ratio.rounds
        return len(self.speeds) if self.is_reference and not self.has_no_ratio else 0

    num_disturbed = stored(
        "Number of disturbed rounds.", lambda row: row.in_table.num_disturbed if len(row.runs) else 0, int
    )
    num_turns = stored(
        "Number of turns that count: those in which no other program kept the machine busy.",
        lambda row: len(row.counting_turns),
        int,
    )

    @column()
    def stalled(self) -> float | None:
        """Share of these turns' time lost because slow turns last longer than usual ones, see
        [comparison.md](comparison.md#stalls)."""
        runs = self.counting_turns.groupby("run_dir")
        if not len(runs):
            return None
        usual = sum(turns["images"].sum() / typical_speed(turns["images_per_second"].tolist()) for _, turns in runs)
        return max(0.0, 1 - float(usual / self.counting_turns["seconds"].sum()))

    @column("\nratio", MAIN, SWEEP_SPEED, form=RATIO)
    def ratio(self) -> float | None:
        """Images per second divided by the first row's; without turns, three rounds are needed for an interval."""
        if self.is_reference:
            return 1.0 if len(self.speeds) and not self.has_no_ratio else None
        return self._ratio and self._ratio.estimate

    ratio_low = stored("Lower end of its 95 % interval.", lambda row: row._ratio and row._ratio.low)
    ratio_high = stored("Upper end of its 95 % interval.", lambda row: row._ratio and row._ratio.high)

    @shown("95 %\ninterval", MAIN, SWEEP_SPEED)
    def ratio_interval(self) -> str:
        return span(self.ratio_low, self.ratio_high)

    @column("\nverdict", DETAILS)
    def verdict(self) -> Verdict | None:
        """`faster`, `slower` or `no difference shown`."""
        return self._ratio and self._ratio.verdict

    # --- Columns: seconds ---

    @column("start-up\ns", TIMES, form=seconds)
    def startup_seconds(self) -> float | None:
        """From the command to the end of the first step: median over the runs that did not start side by side, as with
        `--turns never`."""
        return _median(self.started_alone["startup_seconds"])

    @column("wall\ns", TIMES, form=seconds)
    def wall_seconds(self) -> float | None:
        """Of the run with the median duration, from before its process was started until it had ended; the next columns
        are phases of this run, which add up to it: [comparison.md](comparison.md#where-the-time-goes)."""
        return sum(self.phases.values()) if len(self.runs) else None

    (
        imports_seconds,
        data_seconds,
        build_seconds,
        training_seconds,
        evaluation_seconds,
        between_seconds,
        rest_seconds,
    ) = map(_phase_column, SHOWN_PHASES)

    # --- Columns: resources ---

    @column("memory\nMiB", TIMES, form=mebibytes)
    def peak_memory_bytes(self) -> int | None:
        """The peak of all processes of a run together: the largest of all runs whose programs started anew, as on GPUs
        and with `--turns never`."""
        return _largest(self.runs["peak_memory_bytes"])

    @column("GPU memory\nMiB", DEVICE, form=mebibytes)
    def device_peak_memory_bytes(self) -> int | None:
        """The peak on all GPUs of a run together: the largest of all runs."""
        return _largest(self.runs["device_peak_memory_bytes"])

    @column("CPU\nuse", TIMES, form=SHARE)
    def cpu_utilisation(self) -> float | None:
        """Share of the cores' time: median over runs."""
        return _median(self.runs["cpu_utilisation"])

    @column("GPU\nuse", DEVICE, form=SHARE)
    def gpu_utilisation(self) -> float | None:
        """Share of the GPUs' time: median over runs."""
        return _median(self.runs["gpu_utilisation"])

    @column("joules\nper image", DEVICE, form=".2g")
    def joules_per_image(self) -> float | None:
        """Energy of the GPUs for each training image: median over runs."""
        return _median(self.measured["joules_per_image"])

    # --- Columns: the target ---

    @column()
    def target_reached(self) -> int | None:
        """Number of runs that reached `--target-accuracy`."""
        if self.in_table.options.target_accuracy is None or not len(self.runs):
            return None
        return int(self._reached["epochs"].notna().sum())

    @shown("target\nreached", TARGET, SWEEP_ACCURACY)
    def reached(self) -> str:
        if self.target_reached is None:
            return ""
        if self.num_runs == 1:
            return "yes" if self.target_reached else "no"
        return f"{self.target_reached} of {self.num_runs}"

    @column("target\nepochs", TARGET, SWEEP_ACCURACY, form=".1f")
    def target_epochs(self) -> float | None:
        """Until the target was reached: mean, if all runs reached it."""
        return _mean(self._reached["epochs"])

    @column("target\nsteps", TARGET, SWEEP_ACCURACY, form=COUNT)
    def target_steps(self) -> float | None:
        """Until the target was reached: mean, if all runs reached it."""
        return _mean(self._reached["steps"])

    @column("target\ns", TARGET, SWEEP_ACCURACY, form=seconds)
    def target_seconds(self) -> float | None:
        """Of training and evaluation until the target, without start-up: mean, if all runs reached it."""
        return _mean(self._reached["seconds"])

    # --- Columns: lockstep ---

    @column()
    def same_training(self) -> bool | None:
        """Whether the 64-bit runs prove that it trains as the first row does, and no audit says otherwise; missing
        for the first row."""
        return False if self.audit_failure and not self.is_reference else self.proof.same

    @shown("same\ntraining", MAIN, SWEEP_ACCURACY)
    def same_as_first(self) -> str:
        if self.status in DIFFERENT_STATUSES:
            return "no"
        return "not proved" if self.status == "not proved" else "yes" if self.same_training else ""

    @column("largest difference\nin 64 bits", DETAILS, form=difference)
    def proof_difference(self) -> float | None:
        """Largest difference in the loss of a step in the 64-bit runs."""
        return self.proof.difference

    @column()
    def audited_steps(self) -> int:
        """Number of steps of its timed runs that were proved to match the formulas (docs/lockstep.md)."""
        return sum(audit.same is True for _, audits in self.audits for audit in audits.steps)

    @column(f"rounding\n1-{FIRST_STEPS}", DETAILS, form=difference)
    def loss_difference_first_steps(self) -> float | None:
        """Largest difference in the loss of one of the first ten steps, between runs of this row and the first row with
        the same seed: caused by rounding in the runs' own precision."""
        return self._rounding[0]

    @column("rounding\nall", DETAILS, form=difference)
    def loss_difference_all_steps(self) -> float | None:
        """The same, over all steps."""
        return self._rounding[1]

    # --- Columns: learning ---

    @column("steps to\nmemorise", LEARNING, SWEEP_LEARNING)
    def small_set_steps(self) -> int | None:
        """With `--check-learning`: number of steps until a few images were memorised; missing if they never were, see
        [tracking.md](tracking.md#does-it-learn-and-does-it-under--or-overfit)."""
        return self.small_set and self.small_set.steps

    @column("training\nloss", LEARNING, SWEEP_LEARNING, form=LOSS)
    def train_loss(self) -> float | None:
        """With `--check-learning`: of the trained network with the first seed, evaluated on training images."""
        return self.fit and self.fit.train[-1].test_loss

    @column("training\naccuracy", LEARNING, SWEEP_LEARNING, form=ACCURACY)
    def train_accuracy(self) -> float | None:
        """Of the same network on the same images."""
        return self.fit and self.fit.train[-1].test_accuracy

    @column("\nlearning", LEARNING, SWEEP_LEARNING)
    def learning(self) -> Learned | None:
        """With `--check-learning`: `fits`, `underfits`, `overfits` or `learns nothing`."""
        return self.fit and self.fit.verdict

    # --- Columns: the rest ---

    note = stored("A line that explains the status.", lambda row: "; ".join(row.judgement[1]) or None, str | None)
    run_dirs = stored(
        "Folders of its runs, separated by spaces.",
        lambda row: [*row.runs["run_dir"], *row.failed["run_dir"]],
        list[str],
    )
