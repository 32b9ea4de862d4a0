"""From raw runs to rows: what can be set side by side, statistics, lockstep."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from common.record.results import RunResult
from common.record.timeline import Phase
from common.spec.options import Mode
from common.spec.resolve import describe_settings
from comparison.intervals import Verdict, mean_interval, paired_ratio, quartiles
from comparison.jobs import Values, row_name
from comparison.lockstep import FIRST_STEPS, different_settings, loss_differences
from comparison.proof import Proof, first_loss, is_of_others, judge
from comparison.store import Run, epochs_to

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


@dataclass
class Entry:
    """The runs of an implementation in a mode in a table, and its row."""

    implementation: str
    mode: Mode
    variant: Values
    runs: list[Run] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    row: Row | None = None

    @property
    def name(self) -> str:
        return row_name(self.implementation, self.mode)


@dataclass
class Table:
    """Entries that can be set side by side; the first one with runs is the reference.

    Attributes:
      number: from 1 over the whole comparison.
      apart: why it is not in the variant's first table; None if it is that.
    """

    number: int
    variant: Values
    entries: list[Entry] = field(default_factory=list)
    apart: str | None = None

    @property
    def reference(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.runs), None)

    @property
    def first_result(self) -> RunResult | None:
        return self.reference.runs[0].result if self.reference else None

    @property
    def rows(self) -> list[Row]:
        return [entry.row for entry in self.entries if entry.row]

    @property
    def same_seed_runs(self) -> dict[str, Run]:
        """Name of a row -> its first run with the seed of the first row's first run; without those that have none."""
        return same_seed_runs([entry for entry in self.entries if entry.runs])

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def same_seed(self, run: Run) -> Run | None:
        """Any run of the table with the same seed."""
        runs = (one for entry in self.entries for one in entry.runs if one.record.seed == run.record.seed)
        return next(runs, None)


def same_seed_runs(entries: Sequence[Entry]) -> dict[str, Run]:
    """See `Table.same_seed_runs`; entries without runs are not among them."""
    found = {}
    for entry in entries:
        seed = entries[0].runs[0].record.seed
        run = next((run for run in entry.runs if run.record.seed == seed), None)
        if run:
            found[entry.name] = run
    return found


def make_tables(
    folder: Path, runs: Sequence[Run], names: Sequence[str], target_accuracy: float | None, verify: bool = True
) -> list[Table]:
    """From the runs in a comparison's folder; the tables of one variant follow each other.

    Args:
      names: of the rows, in the order in which they stand in a table.
      verify: whether rows must be proved to be the same training.
    """
    tables: list[Table] = []
    variants: list[Values] = []
    for run in runs:
        if run.record.variant not in variants and not run.record.tuning:
            variants.append(run.record.variant)
    for variant in variants:
        chosen = [run for run in runs if run.record.variant == variant and not run.record.tuning]
        # By their rows: the first one asked for is the reference, whichever ran first.
        chosen.sort(key=lambda run: names.index(run.record.name))
        found = _group(chosen, variant, len(tables) + 1)
        for table in found:
            for entry in table.entries:
                entry.row = _make_row(folder, table, entry, target_accuracy, verify)
        tables += found
    return tables


def _group(runs: Sequence[Run], variant: Values, number: int) -> list[Table]:
    """The tables of one variant. Failed runs stand with their implementation's others, or in the first table."""
    tables: list[Table] = []
    for run in runs:
        if run.result is None:
            continue
        table = next((one for one in tables if not _apart(one, run)), None)
        if table is None:
            apart = _apart(tables[0], run) if tables else []
            table = Table(number + len(tables), variant, apart="; ".join(apart) or None)
            tables.append(table)
        entry = table.entry(run.record.name)
        if entry is None:
            entry = Entry(run.record.implementation, run.record.mode, variant)
            table.entries.append(entry)
        entry.runs.append(run)
    if not tables:
        tables.append(Table(number, variant))
    order = list(dict.fromkeys(run.record.name for run in runs))
    for run in runs:
        if run.result is not None:
            continue
        entry = next((one for table in tables if (one := table.entry(run.record.name))), None)
        if entry is None:
            entry = Entry(run.record.implementation, run.record.mode, variant)
            tables[0].entries.append(entry)
        entry.failed.append(run)
    tables[0].entries.sort(key=lambda entry: order.index(entry.name))
    return tables


def _apart(table: Table, run: Run) -> list[str]:
    """Why a run can't stand in a table; empty if it can."""
    first, result = table.first_result, run.result
    assert first is not None and result is not None
    partner = table.same_seed(run)
    if partner and partner.result:
        found = different_settings(partner.result, result)
    else:  # what depends on the seed differs
        found = different_settings(first, result, same_seed=False)
    entry = table.entry(run.record.name)
    # Of the same implementation only: frameworks may name the same device differently.
    names = [entry.runs[0].result.device_name, result.device_name] if entry and entry.runs[0].result else []
    if len(set(names)) > 1:
        found.append(f"device: {names[0]} and {names[1]}")
    return found + first.machine.differences(result.machine)


def _make_row(folder: Path, table: Table, entry: Entry, target_accuracy: float | None, verify: bool) -> Row:
    reference = table.reference
    count = {"num_runs": len(entry.runs), "num_failed": len(entry.failed)}
    failures = f"{entry.failed[0].record.failure}" if entry.failed else None
    if not entry.runs:
        if entry.failed[1:]:
            failures = f"all {len(entry.failed)} runs failed, the first one: {failures}"
        return Row(
            table=0,
            variant=table.variant,
            implementation=entry.implementation,
            mode=entry.mode,
            status="failed",
            note=failures,
            run_dirs=[run.shown_dir(folder) for run in entry.failed],
            **count,
        )
    assert reference is not None
    notes, status = [], "ok"
    if table.apart and entry is reference:
        notes.append(f"not in the same table as the runs above: {table.apart}")
    if entry.failed:
        status = "some failed"
        total = len(entry.failed) + len(entry.runs)
        notes.append(f"{len(entry.failed)} of {total} runs failed, the first one: {failures}")

    proof = Proof(None)
    if verify and entry is not reference:
        proof = judge(folder, table.variant, reference.name, entry.name, reference.runs + entry.runs)
    if proof.same is False:
        status = "different training"
        notes.append(f"not the training of {reference.name}, so no ratio is given: {proof.note}")
    elif proof.note:
        status = "not proved"
        notes.append(f"no ratio is given, since it may be another training than {reference.name}'s: {proof.note}")
    elif verify and entry is reference and (note := is_of_others(folder, table.variant, entry.runs)):
        status = "not proved"
        notes.append(note)
    inexact = {one.name: _inexact(folder, one) if verify else None for one in (reference, entry)}
    if note := inexact[entry.name]:
        status = "different training"
        notes.append(note)
    # Nobody has a ratio to a row that is not what it is called.
    parted = status in ("different training", "not proved") or inexact[reference.name] is not None
    first_steps, all_steps = _rounding(reference, entry)

    results = [run.result for run in entry.runs if run.result]
    skipped = _largest(one.skipped_steps for one in results)
    if skipped:
        notes.append(f"the scaling of the loss skipped {skipped} of {results[0].num_steps} steps")
    notes += dict.fromkeys(one.processor_note for one in results if one.processor_note)
    by_seed: dict[int, list[RunResult]] = {}
    for result in results:
        by_seed.setdefault(result.config.seed, []).append(result)
    accuracy = mean_interval([statistics.fmean(one.test_accuracy for one in seed) for seed in by_seed.values()])
    loss = statistics.fmean(statistics.fmean(one.test_loss for one in seed) for seed in by_seed.values())
    speeds = [one.images_per_second for one in results if one.images_per_second]
    speed = quartiles(speeds) if speeds else (None, None, None)
    matched = [] if parted else pairs(reference, entry)
    is_reference = entry is reference
    typical = sorted(entry.runs, key=lambda run: run.record.process_seconds)[(len(entry.runs) - 1) // 2]
    ratio = paired_ratio(*zip(*matched, strict=True)) if matched and not is_reference else None
    return Row(
        table=table.number,
        variant=table.variant,
        implementation=entry.implementation,
        mode=entry.mode,
        status=status,
        num_rounds=len(matched),
        num_seeds=len(by_seed),
        test_accuracy=accuracy.estimate,
        test_accuracy_low=accuracy.low,
        test_accuracy_high=accuracy.high,
        test_loss=loss,
        images_per_second=speed[1],
        images_per_second_q1=speed[0],
        images_per_second_q3=speed[2],
        ratio=1.0 if is_reference and speeds and not parted else ratio and ratio.estimate,
        ratio_low=ratio and ratio.low,
        ratio_high=ratio and ratio.high,
        verdict=ratio and ratio.verdict,
        startup_seconds=_median(one.startup_seconds for one in results),
        train_seconds=_median(sum(one.epoch_train_seconds) for one in results),
        eval_seconds=_median(sum(one.eval_seconds) for one in results),
        wall_seconds=typical.record.process_seconds,
        **{f"{phase}_seconds": seconds for phase, seconds in phase_seconds(typical).items()},
        peak_memory_bytes=max(one.peak_memory_bytes for one in results),
        device_peak_memory_bytes=_largest(one.device_peak_memory_bytes for one in results),
        cpu_utilisation=_median(one.cpu_utilisation for one in results),
        gpu_utilisation=_median(one.gpu_utilisation for one in results),
        joules_per_image=_median(one.joules_per_image for one in results),
        devices=results[0].devices,
        settings=describe_settings(results[0].config),
        learning_rate=results[0].config.learning_rate,
        **_target(entry.runs, target_accuracy),
        same_training=proof.same,
        proof_difference=proof.difference,
        loss_difference_first_steps=first_steps,
        loss_difference_all_steps=all_steps,
        note="; ".join(notes) or None,
        run_dirs=[run.shown_dir(folder) for run in entry.runs + entry.failed],
        **count,
    )


def phase_seconds(run: Run) -> dict[Phase, float]:
    """Of a run that succeeded; its last moments, after the result was written, are a part of the rest."""
    assert run.result is not None
    seconds = dict(run.result.phase_seconds)
    seconds["rest"] += max(0.0, run.record.process_seconds - run.result.wall_seconds)
    return seconds


def _rounding(reference: Entry, entry: Entry) -> tuple[float | None, float | None]:
    """The largest difference in loss from the reference's runs with the same seeds: in the first steps, and in all."""
    by_seed: dict[int, Run] = {}
    for run in reference.runs:
        by_seed.setdefault(run.record.seed, run)
    first, every = [], []
    for run in entry.runs if entry is not reference else ():
        if (other := by_seed.get(run.record.seed)) is None:
            continue
        differences = loss_differences(other.losses, run.losses)
        if len(differences):
            first.append(float(differences[:FIRST_STEPS].max()))
            every.append(float(differences.max()))
    return _largest(first), _largest(every)


def _inexact(folder: Path, entry: Entry) -> str | None:
    """Why a run in 32 bits seems to have computed with fewer; None where rounding explains its first loss."""
    for run in entry.runs:
        if run.result is None or run.result.first_loss_tolerance is None or not run.losses:
            continue
        exact = first_loss(folder, entry.variant, entry.name, run.record.seed)
        difference = None if exact is None else abs(run.losses[0] - exact)
        if difference is not None and not difference <= run.result.first_loss_tolerance:
            return (
                f"the first step's loss in 32 bits is {difference:.1e} from the one in 64 bits, and rounding explains"
                f" {run.result.first_loss_tolerance:.1e}: suspect TF32, or a layer in 16 bits"
            )
    return None


def pairs(reference: Entry, entry: Entry) -> list[tuple[float, float]]:
    """Images per second of the entry and of the reference, for each round in which both have them, in their order."""
    speeds = {run.round_key: run.result.images_per_second for run in reference.runs if run.result}
    return [
        (run.result.images_per_second, speed)
        for run in sorted(entry.runs, key=lambda run: (run.record.round, run.record.started))
        if run.result and run.result.images_per_second and (speed := speeds.get(run.round_key))
    ]


def _target(runs: Sequence[Run], accuracy: float | None) -> dict[str, float | int | None]:
    if accuracy is None:
        return {}
    reached = [reach for run in runs if (reach := reach_target(run, accuracy))]
    values: dict[str, float | int | None] = {"target_reached": len(reached)}
    if len(reached) == len(runs):  # a mean over those alone that reached it would flatter
        low, _, high = quartiles([reach.seconds for reach in reached])
        values |= {
            "target_epochs": statistics.fmean(reach.epochs for reach in reached),
            "target_steps": statistics.fmean(reach.steps for reach in reached),
            "target_seconds": statistics.fmean(reach.seconds for reach in reached),
            "target_seconds_q1": low,
            "target_seconds_q3": high,
        }
    return values


@dataclass(frozen=True)
class Reach:
    """When a run's test accuracy first reached the target: epochs, steps, seconds without start-up."""

    epochs: int
    steps: int
    seconds: float


def reach_target(run: Run, accuracy: float) -> Reach | None:
    """None where it never did. Looked at after every epoch; the clock runs on during evaluations, as MLPerf's does."""
    epochs = epochs_to(run, accuracy)
    if epochs is None:
        return None
    assert run.result is not None
    plan = run.result.plan
    lines = [line for line in run.epochs if line.epoch <= epochs]
    seconds = sum((line.train_seconds or 0.0) + line.eval_seconds for line in lines)
    return Reach(epochs, min(epochs * plan.steps_per_epoch, plan.total_steps), seconds)


def _median(values: Iterable[float | None]) -> float | None:
    """None where any is unknown: a median of the others would be of other runs."""
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


Number = TypeVar("Number", int, float)


def _largest(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)
