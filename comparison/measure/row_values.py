"""Makes the rows of a table from its runs: statistics, lockstep, proof."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from common.record.results import RunResult
from common.record.timeline import SHOWN_PHASES, Phase
from common.resolve import describe_settings
from common.spec.update_rule import peak_rate
from comparison.intervals import MIN_FOR_QUARTILES, mean_interval, quartiles
from comparison.lockstep import FIRST_STEPS, loss_differences
from comparison.measure.row import Accuracy, Learning, Lockstep, Resources, Row, Speed, Status, Target, Times
from comparison.measure.table import Entry, Table, speed_ratio
from comparison.prove.judging import Proof, first_loss, is_of_others, judge
from comparison.run.store import Run, reach_target


def make_row(folder: Path, table: Table, entry: Entry, target_accuracy: float | None, verify: bool) -> Row:
    """The row of an entry.

    Args:
      folder: the comparison's folder.
      verify: whether the row must be proved to be the same training.
    """
    common: dict[str, Any] = {
        "variant": table.variant,
        "implementation": entry.implementation,
        "mode": entry.mode,
        "num_runs": len(entry.runs),
        "num_failed": len(entry.failed),
        "run_dirs": [run.shown_dir(folder) for run in entry.runs + entry.failed],
    }
    if not entry.runs:
        return Row(table=0, status="failed", note=_failures(entry), **common)
    reference = table.reference
    assert reference is not None
    proof = Proof(None)
    if verify and entry is not reference:
        proof = judge(folder, table.variant, reference.name, entry.name, reference.runs + entry.runs)
    inexact = {one.name: _inexact(folder, one) if verify else None for one in (reference, entry)}
    status, notes = _status(folder, table, entry, proof, inexact[entry.name], verify)
    # There is no ratio for a row that may train differently, and none if the reference computed with too few bits.
    parted = status in ("different training", "not proved") or inexact[reference.name] is not None
    first_steps, all_steps = _rounding(reference, entry)
    results = entry.results
    return Row(
        table=table.number,
        status=status,
        devices=results[0].devices,
        settings=describe_settings(results[0].config),
        learning_rate=peak_rate(results[0].config),
        accuracy=_accuracy(results),
        speed=_speed(reference, entry, parted),
        times=_times(entry),
        resources=Resources(
            peak_memory_bytes=max(one.peak_memory_bytes for one in results),
            device_peak_memory_bytes=_largest(one.device_peak_memory_bytes for one in results),
            cpu_utilisation=_median(one.cpu_utilisation for one in results),
            gpu_utilisation=_median(one.gpu_utilisation for one in results),
            joules_per_image=_median(one.joules_per_image for one in entry.measured),
        ),
        target=_target(entry.runs, target_accuracy),
        lockstep=Lockstep(
            same_training=proof.same,
            proof_difference=proof.difference,
            loss_difference_first_steps=first_steps,
            loss_difference_all_steps=all_steps,
        ),
        learning=_learning(entry),
        note="; ".join(notes) or None,
        **common,
    )


def _failures(entry: Entry) -> str:
    """Why runs failed, for people."""
    first, number = entry.failed[0].record.failure, len(entry.failed)
    if entry.runs:
        return f"{number} of {number + len(entry.runs)} runs failed, the first one: {first}"
    return f"all {number} runs failed, the first one: {first}" if number > 1 else str(first)


def _status(
    folder: Path, table: Table, entry: Entry, proof: Proof, inexact: str | None, verify: bool
) -> tuple[Status, list[str]]:
    """The status of an entry with runs, and notes for people, which explain it."""
    reference = table.reference
    assert reference is not None
    notes: list[str] = []
    status: Status = "ok"
    if table.apart and entry is reference:
        notes.append(f"not in the same table as the runs above: {table.apart}")
    if entry.failed:
        status = "some failed"
        notes.append(_failures(entry))
    if note := _does_not_learn(table, entry):
        status = "does not learn"
        notes.append(note)
    if proof.same is False:
        status = "different training"
        notes.append(f"it trains differently from {reference.title}, so no ratio is given: {proof.note}")
    elif proof.note:
        status = "not proved"
        notes.append(f"no ratio is given, since it may train differently from {reference.title}: {proof.note}")
    elif verify and entry is reference and (note := is_of_others(folder, table.variant, entry.runs)):
        status = "not proved"
        notes.append(note)
    if inexact:
        status = "different training"
        notes.append(inexact)
    if skipped := _largest(one.skipped_steps for one in entry.results):
        notes.append(f"loss scaling skipped {skipped} of {entry.results[0].num_steps} steps")
    if gone_on := sum(one.resumed_from is not None for one in entry.results):
        notes.append(f"{gone_on} of {len(entry.results)} runs continued from a checkpoint; their times are left out")
    notes += dict.fromkeys(one.processor_note for one in entry.results if one.processor_note)
    return status, notes


def _accuracy(results: Sequence[RunResult]) -> Accuracy:
    by_seed: dict[int, list[RunResult]] = {}
    for result in results:
        by_seed.setdefault(result.config.seed, []).append(result)
    mean = mean_interval([statistics.fmean(one.test_accuracy for one in seed) for seed in by_seed.values()])
    return Accuracy(
        num_seeds=len(by_seed),
        test_accuracy=mean.estimate,
        test_accuracy_low=mean.low,
        test_accuracy_high=mean.high,
        test_loss=statistics.fmean(statistics.fmean(one.test_loss for one in seed) for seed in by_seed.values()),
    )


def _speed(reference: Entry, entry: Entry, parted: bool) -> Speed:
    """`parted`: whether there is no ratio."""
    speeds = [run.images_per_second for run in entry.measured_runs if run.images_per_second]
    quarters = quartiles(speeds) if len(speeds) >= MIN_FOR_QUARTILES else None
    ratio, num_rounds = (None, 0) if parted else speed_ratio(reference, entry)
    if is_reference := entry is reference:
        ratio, num_rounds = None, 0 if parted else len(speeds)
    return Speed(
        images_per_second=statistics.median(speeds) if speeds else None,
        images_per_second_min=min(speeds, default=None),
        images_per_second_q1=quarters and quarters[0],
        images_per_second_q3=quarters and quarters[2],
        images_per_second_max=max(speeds, default=None),
        num_rounds=num_rounds,
        num_disturbed=len(entry.disturbed),
        num_turns=sum(len(entry.turns(run)) for run in entry.measured_runs),
        stalled=entry.stalled,
        ratio_min=ratio and ratio.least,
        ratio_max=ratio and ratio.most,
        ratio=1.0 if is_reference and speeds and not parted else ratio and ratio.estimate,
        ratio_low=ratio and ratio.low,
        ratio_high=ratio and ratio.high,
        verdict=ratio and ratio.verdict,
    )


def _times(entry: Entry) -> Times:
    phases = phase_seconds(entry.typical_run)
    return Times(
        startup_seconds=_median(one.startup_seconds for one in entry.measured),
        train_seconds=_median(sum(one.epoch_train_seconds) for one in entry.measured),
        eval_seconds=_median(sum(one.eval_seconds) for one in entry.measured),
        wall_seconds=sum(phases.values()),
        **{f"{phase}_seconds": seconds for phase, seconds in phases.items()},
    )


def phase_seconds(run: Run) -> dict[Phase, float]:
    """The seconds of a successful run by phase, without waiting for its turns.

    The time after the result was written is a part of the rest.
    """
    assert run.result is not None
    seconds = dict(run.result.phase_seconds)
    seconds["rest"] += max(0.0, run.record.process_seconds - run.result.wall_seconds - run.result.stopped_seconds)
    return {phase: seconds[phase] for phase in SHOWN_PHASES}


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
    """Why a run in 32 bits seems to have computed with fewer bits; None if rounding explains its first loss."""
    for run in entry.runs:
        if run.result is None or run.result.first_loss_tolerance is None or not run.losses:
            continue
        exact = first_loss(folder, entry.variant, entry.name, run.record.seed)
        difference = None if exact is None else abs(run.losses[0] - exact)
        if difference is not None and not difference <= run.result.first_loss_tolerance:
            return (
                f"the first step's loss in 32 bits differs by {difference:.1e} from the one in 64 bits, but rounding"
                f" explains only {run.result.first_loss_tolerance:.1e}: check for TF32, or a layer in 16 bits"
            )
    return None


def _target(runs: Sequence[Run], accuracy: float | None) -> Target:
    if accuracy is None:
        return Target()
    reached = [reach for run in runs if (reach := reach_target(run, accuracy))]
    if len(reached) < len(runs):  # a mean over only those that reached it would look too good
        return Target(target_reached=len(reached))
    low, _, high = quartiles([reach.seconds for reach in reached])
    return Target(
        target_reached=len(reached),
        target_epochs=statistics.fmean(reach.epochs for reach in reached),
        target_steps=statistics.fmean(reach.steps for reach in reached),
        target_seconds=statistics.fmean(reach.seconds for reach in reached),
        target_seconds_q1=low,
        target_seconds_q3=high,
    )


def _median(values: Iterable[float | None]) -> float | None:
    """The median; None if any value is not known: a median of the others would be over other runs."""
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


Number = TypeVar("Number", int, float)


def _largest(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _does_not_learn(table: Table, entry: Entry) -> str | None:
    """Why a row has the status "does not learn", for people; None if it does not have it."""
    own = entry.small_set
    if own is None or own.steps is not None:
        return None
    able = [one.title for one in table.entries if one.small_set and one.small_set.steps is not None]
    look = f"{' and '.join(able)} did: look for a mistake in {entry.title}"
    return f"it {own.found}; {look if able else 'no row did: look at the options first, such as the learning rate'}"


def _learning(entry: Entry) -> Learning:
    """The results of both steps."""
    small, fit = entry.small_set, entry.fit
    return Learning(
        small_set_count=small and small.count,
        small_set_steps=small and small.steps,
        train_loss=fit and fit.train[-1].test_loss,
        train_accuracy=fit and fit.train[-1].test_accuracy,
        learning=fit and fit.verdict,
        learning_note=fit and fit.words,
    )
