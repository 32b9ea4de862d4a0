"""Warnings about effects of the machine on the speeds of a table, one line each, with advice."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from comparison.intervals import outliers, outlying
from comparison.measure.rounds import is_disturbed, other_load
from comparison.measure.row import Speed
from comparison.measure.table import Entry, Table
from comparison.plan.jobs import in_brackets
from comparison.run.load_meter import BUSY, QUIETER
from comparison.run.store import Run

OFF = 0.10  # no warning for a run that differs from the median by less: it misleads nobody
WORTH_A_WORD = 0.05  # no warning for a ratio that differs from 1 by less, or for stalls that take less
CROWDED = 1.0  # threads that want to run minus cores, on average; a warning above this number
THROTTLED = 0.01  # share of the scheduler's periods; a warning above it


def noise_warnings(tables: Sequence[Table], repeats: int) -> Iterator[str]:
    """The warnings, in the order in which a reader should see them.

    Args:
      repeats: number of rounds that were asked for; further rounds were made to replace disturbed ones.
    """
    yield from _disturbed(tables, repeats)
    for table in tables:
        where = in_brackets(table.variant)
        for entry in table.entries:
            who = f"{entry.title}{where}"
            yield from _stalled(entry, who)
            yield from _stopped(entry, who)
            yield from _throttled(entry, who)
            yield from _crowded(entry, who)
            yield from _first_run(entry, who)
            yield from _outliers(entry, who)
        yield from _too_wide(table, where)
        yield from _contradictions(table, where)


def _disturbed(tables: Sequence[Table], repeats: int) -> Iterator[str]:
    """One warning for all disturbed turns and rounds, also in a sweep."""
    tables = [table for table in tables if table.entries]
    runs = [run for table in tables for entry in table.entries for run in entry.runs]
    turns = sum(len(run.turns) for run in runs)
    disturbed_turns = turns - sum(len(run.quiet_turns) for run in runs)
    disturbed = sum(len(table.entries[0].disturbed) for table in tables)
    if not disturbed and not disturbed_turns:
        return
    rounds = {(table.number, *run.round_key[:2]) for table in tables for entry in table.entries for run in entry.runs}
    again = sum(number > repeats for _, _, number in rounds)
    load, worst = max(((_most_load(run), run) for run in runs), key=lambda found: found[0])
    if tables[0].entries[0].keep_disturbed:
        follows = "they still count, because of --disturbed keep"
    elif not disturbed:
        follows = "they are left out"
    elif left := len(rounds) - disturbed:
        follows = f"they are left out: speeds and ratios are from the other {left}"
    else:
        follows = f"no speed was measured: {QUIETER}"
    what = _of_rounds(disturbed, len(rounds)) if disturbed else f"{disturbed_turns} of {turns} turns were"
    yield (
        f"{what} disturbed: other programs used up to {load:.0%} of the cores"
        f" ({worst.record.title}, {_place(worst)}); {follows}{f'; extra rounds made instead: {again}' if again else ''}"
    )


def _most_load(run: Run) -> float:
    """The largest share of the cores that others used, in a turn or, without turns, while the run trained."""
    return max([turn.other_load or 0.0 for turn in run.turns] or [other_load(run) or 0.0])


def why_not_measured(entries: Sequence[Entry]) -> str | None:
    """`other programs used 97% of the cores`, if others have disturbed all rounds of these entries; else None."""
    runs = [run for entry in entries for run in entry.runs]
    disturbed = [other_load(run) or 0.0 for run in runs if is_disturbed(run)]
    if not disturbed or not all(entry.leaves_out(run) for entry in entries for run in entry.runs):
        return None
    return f"other programs used {median(disturbed):.0%} of the cores; {QUIETER}"


def _of_rounds(part: int, whole: int) -> str:
    """`2 of 7 rounds were`."""
    if whole == 1:
        return "the only round was"
    return f"{'all' if part == whole else f'{part} of'} {whole} rounds {'was' if part == 1 else 'were'}"


def _place(run: Run) -> str:
    return f"seed {run.record.seed}, round {run.record.round}"


def _stalled(entry: Entry, who: str) -> Iterator[str]:
    if (entry.stalled or 0.0) > WORTH_A_WORD:
        yield (
            f"{who}: stalls take {entry.stalled:.0%} of the time of its turns, which now and then last much longer than"
            " usual, though no other program was seen; images/s and ratios are of usual turns; waiting for turns may"
            " lengthen stalls: --turns never shows what they cost in a training alone"
        )


def _stopped(entry: Entry, who: str) -> Iterator[str]:
    stopped = [run for run in entry.runs if run.result and run.result.stopped_seconds]
    if stopped:
        seconds = sum(run.result.stopped_seconds for run in stopped if run.result)
        yield f"{who}: {len(stopped)} of {len(entry.runs)} runs were stopped, for {seconds:.1f} s; that does not count"


def _throttled(entry: Entry, who: str) -> Iterator[str]:
    shares = [run.record.throttled for run in entry.measured_runs if run.record.throttled is not None]
    if shares and fmean(shares) > THROTTLED:
        yield (
            f"{who}: this container's CPU limit paused it in {fmean(shares):.0%} of the scheduler's periods,"
            " so its speeds are too low; a smaller --threads-per-device or a higher limit avoids that"
        )


def _crowded(entry: Entry, who: str) -> Iterator[str]:
    """Warns of more threads than cores without other programs: the run's own threads wait for each other, or spin."""
    runs = [run for run in entry.measured_runs if run.result and (other_load(run) or 0.0) <= BUSY]
    runnable = [run.record.runnable_threads for run in runs if run.record.runnable_threads is not None]
    if not runs or not runs[0].result:
        return
    result = runs[0].result
    if result.accelerator == "cpu" and result.threads_per_device * result.devices > (
        result.config.nodes * result.machine.cores
    ):
        yield (
            f"{who}: {result.devices} x {result.threads_per_device} threads on {result.machine.cores} cores"
            " wait for each other; --threads-per-device auto gives each its share"
        )
    elif runnable and fmean(runnable) > result.machine.cores + CROWDED:
        yield (
            f"{who}: {fmean(runnable):.1f} threads at a time wanted to run on {result.machine.cores} cores;"
            " a smaller --threads-per-device may be faster; docs/noise.md says what helps"
        )


def _first_run(entry: Entry, who: str) -> Iterator[str]:
    """Warns if the first run, which warms up caches, is an outlier; the medians hardly change by it."""
    runs = sorted(entry.measured_runs, key=lambda run: run.record.started)
    if len(runs) < 4:
        return
    for what, samples in (
        ("training", [run.result.images_per_second for run in runs if run.result]),
        ("start-up", [run.result.startup_seconds for run in runs if run.result]),
    ):
        known = [sample for sample in samples if sample is not None]
        if len(known) < len(runs) or not outlying(known[0], known[1:], OFF):
            continue
        slower = (known[0] > sorted(known[1:])[len(known[1:]) // 2]) == (what == "start-up")
        yield (
            f"{who}: the first run is an outlier: its {what} is"
            f" {'slower' if slower else 'faster'} than the others'; medians hardly change, but do not quote this run"
            " alone"
        )


def _outliers(entry: Entry, who: str) -> Iterator[str]:
    """Warns of each run with an unusual speed although no disturbance was seen; these runs still count."""
    runs = sorted((run for run in entry.measured_runs if run.images_per_second), key=lambda run: run.record.started)
    speeds = [run.images_per_second or 0.0 for run in runs]
    for index in outliers(speeds, OFF):
        load = other_load(runs[index])
        seen = "whether other programs ran is not known"
        if load is not None:
            seen = f"other programs used {load:.0%} of the cores"
        if index > 0:  # `_first_run` warns of the first run
            yield (
                f"{who}: {speeds[index]:,.0f} images/s is an outlier ({_place(runs[index])}; the median"
                f" is {median(speeds):,.0f}); {seen}; it still counts, but hardly changes medians and ratios"
            )


def _too_wide(table: Table, where: str) -> Iterator[str]:
    for row in table.rows:
        speed = row.speed
        if speed.verdict != "no difference shown" or not (speed.ratio and speed.ratio_low and speed.ratio_high):
            continue
        if abs(math.log(speed.ratio)) > math.log1p(WORTH_A_WORD):
            yield (
                f"{row.title}{where}: the spread is too wide to tell whether it is faster or slower: ratio"
                f" {speed.ratio:.2f}, 95 % interval {speed.ratio_low:.2f} to {speed.ratio_high:.2f};"
                f" {rounds_needed(speed)}"
            )


def rounds_needed(speed: Speed) -> str:
    """Says how many rounds may show a difference of this size: widths of intervals go with 1 / sqrt(rounds)."""
    assert speed.ratio and speed.ratio_low and speed.ratio_high
    half = math.log(speed.ratio_high / speed.ratio_low) / 2
    needed = max(math.ceil(speed.num_rounds * (half / abs(math.log(speed.ratio))) ** 2), speed.num_rounds + 1)
    return (
        f"about {needed} rounds might be enough (--resume DIR --repeats {needed})"
        if needed <= 100
        else "more than 100 rounds would be needed; a quieter machine helps more"
    )


def _contradictions(table: Table, where: str) -> Iterator[str]:
    """Warns if the medians, which are over all runs, and the ratio, which is from pairs, say the opposite."""
    first = table.reference.row if table.reference else None
    for row in table.rows:
        speed, base = row.speed, first.speed.images_per_second if first else None
        if first is None or not (speed.ratio and speed.images_per_second and base):
            continue
        medians = speed.images_per_second / base
        if (speed.ratio - 1) * (medians - 1) < 0 and abs(math.log(medians / speed.ratio)) > WORTH_A_WORD:
            yield (
                f"{row.title}{where}: the medians say {medians:.2f} times the speed of {first.title}, the pairs of the"
                f" same round say {speed.ratio:.2f}: speeds changed from round to round, so trust neither; make more"
                " rounds on a quiet machine"
            )
