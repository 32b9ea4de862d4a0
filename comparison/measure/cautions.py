"""Warnings about everything that might mislead a reader of the tables, one line each."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from comparison.measure.rounds import is_round_disturbed, other_load
from comparison.measure.table import Row, Table
from comparison.numbers import COUNT, RATIO, SHARE, between
from comparison.plan.jobs import variant_in_brackets
from comparison.ratios import MIN_CYCLES, outliers, outlying
from comparison.run.load_meter import BUSY, QUIETER
from comparison.run.store import Run


def find_cautions(
    tables: Sequence[Table], runs: Sequence[Run], verified: bool, repeats: int, within: float | None = None
) -> list[str]:
    """All warnings, in the order in which a reader should see them.

    Args:
      verified: whether rows had to be proved to be the same training.
      repeats: number of rounds that were asked for; further rounds were made to replace disturbed ones.
      within: how close to the ratio the ends of its interval were to be (--ratio-within).
    """
    warnings = [*_unproved(tables, verified), *_machines(runs), *_versions(runs), *_commits(runs)]
    warnings += [
        *_groups(runs),
        *_threads(tables),
        *_rate_searches(runs),
        *_sessions(tables),
        *noise_cautions(tables, repeats),
        *_not_within(tables, within),
    ]
    measured = [row for table in tables for row in table.rows if row.images_per_second]
    if measured and len({(run.record.seed, run.record.round) for run in runs if not run.record.rate_search}) == 1:
        if any(row.ratio_low for row in measured):
            warnings.append(
                "one round only: intervals hold for these processes, others may differ; --repeats 2 adds a round"
            )
        else:
            warnings.append(
                "one round only: a difference in speed may be chance; --repeats 5 gives ratios with intervals"
            )
    return warnings


def _machines(runs: Sequence[Run]) -> Iterator[str]:
    results = [run.result for run in runs if run.result]
    for result in results[1:]:
        if differences := results[0].machine.differences(result.machine):
            yield f"not all runs are from the same machine, so each machine has its own table: {'; '.join(differences)}"
            return
    names = list(dict.fromkeys(result.machine.hostname for result in results))
    if len(names) > 1:
        yield f"runs are from hosts that differ only in name: {', '.join(names)}"


def _versions(runs: Sequence[Run]) -> Iterator[str]:
    seen: dict[str, dict[str, str]] = {}
    warned = set()
    for run in runs:
        if run.result is None:
            continue
        name = run.record.title
        for package, version in run.result.versions.items():
            first = seen.setdefault(name, {}).setdefault(package, version)
            if version != first and (name, package) not in warned:
                warned.add((name, package))
                yield f"{name}: not all runs used the same {package} version: {first} and {version}"


def _commits(runs: Sequence[Run]) -> Iterator[str]:
    results = [run.result for run in runs if run.result]
    codes = list(dict.fromkeys(result.code for result in results))
    if len(codes) > 1:
        yield f"the code changed between runs: commits {' and '.join(codes)}"
    elif len({result.code_sha256 for result in results}) > 1:
        yield f"the code changed between runs: uncommitted changes at commit {codes[0]}"


def _unproved(tables: Sequence[Table], asked: bool) -> Iterator[str]:
    if not asked and any(len(table.rows) > 1 for table in tables):
        yield (
            "no proof that the rows train identically (--verify never): ratios may compare rows that train differently"
        )
    for table in tables:
        for row in table.rows:
            if asked and row.runs and not row.audited_steps and not row.audit_failure:
                yield f"{row.title}: no step of its timed runs was audited: {row.why_not_audited}"


def _sessions(tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        made: dict[tuple[int, int], set[int]] = {}
        for run in (run for row in table.rows for run in row.runs):
            made.setdefault((run.record.seed, run.record.round), set()).add(run.record.session)
        split = sum(len(sessions) > 1 for sessions in made.values())
        if split:
            yield (
                f"{split} of {len(made)} rounds{variant_in_brackets(table.variant)} were finished later (--resume):"
                " their runs took place at different times and form no pairs, so ratios use only the other rounds"
            )


def _rate_searches(runs: Sequence[Run]) -> Iterator[str]:
    searches = [run for run in runs if run.record.rate_search]
    failed = [run for run in searches if run.result is None]
    if failed:
        yield (
            f"{len(failed)} of {len(searches)} runs of the search for a learning rate failed, the first one in"
            f" {failed[0].run_dir}"
        )


def _groups(runs: Sequence[Run]) -> Iterator[str]:
    """Tells which rows trained in turns with each other, where not all of them fit into memory together."""
    rounds: dict[tuple[str, int, int], dict[int, list[str]]] = {}
    for run in runs:
        key = str(run.record.variant), run.record.seed, run.record.round
        rounds.setdefault(key, {}).setdefault(run.record.group, []).append(run.record.title)
    split = [groups for groups in rounds.values() if len(groups) > 1]
    if split:
        shown = "; then ".join(", ".join(titles) for _, titles in sorted(split[0].items()))
        yield (
            f"in {len(split)} of {len(rounds)} rounds the rows did not fit into memory together, and trained in turns"
            f" in groups, each with the first row: {shown}; rows of different groups are not compared"
        )


def _threads(tables: Sequence[Table]) -> Iterator[str]:
    threads = {
        (row.title, result.threads_per_device): row.variant
        for table in tables
        for row in table.rows
        for run in row.runs
        if (result := run.result)
    }
    counts = {count for _, count in threads}
    if len(counts) > 1 and not any(
        "devices" in variant or "threads-per-device" in variant for variant in threads.values()
    ):
        shown = ", ".join(f"{name} {count}" for name, count in sorted(threads))
        yield f"threads per device differ: {shown}"


# --- What the machine does to speeds ---

OFF = 0.10  # no warning for a run that differs from the median by less: it misleads nobody
WORTH_A_WORD = 0.05  # no warning for a ratio that differs from 1 by less, or for stalls that take less
CROWDED = 1.0  # threads that want to run minus cores, on average; a warning above this number
MOST_BETWEEN = 0.25  # seconds between training and evaluation, per second of both; a warning above it
THROTTLED = 0.01  # share of the scheduler's periods; a warning above it


def noise_cautions(tables: Sequence[Table], repeats: int) -> Iterator[str]:
    """The warnings, in the order in which a reader should see them.

    Args:
      repeats: number of rounds that were asked for; further rounds were made to replace disturbed ones.
    """
    yield from _disturbed(tables, repeats)
    for table in tables:
        where = variant_in_brackets(table.variant)
        for row in table.rows:
            who = f"{row.title}{where}"
            yield from _stalled(row, who)
            yield from _between(row, who)
            yield from _throttled(row, who)
            yield from _crowded(row, who)
            yield from _first_run(row, who)
            yield from _outliers(row, who)
        yield from _too_wide(table, where)
        yield from _contradictions(table, where)


def _disturbed(tables: Sequence[Table], repeats: int) -> Iterator[str]:
    """One warning for all disturbed turns and rounds, also in a sweep."""
    tables = [table for table in tables if table.rows]
    runs = [run for table in tables for row in table.rows for run in row.runs]
    turns = sum(len(run.turns) for run in runs)
    disturbed_turns = turns - sum(len(run.quiet_turns) for run in runs)
    disturbed = sum(len(table.disturbed) for table in tables)
    if not disturbed and not disturbed_turns:
        return
    rounds = {(table.number, *run.round_key[:2]) for table in tables for row in table.rows for run in row.runs}
    again = sum(number > repeats for _, _, number in rounds)
    load, worst = max(((_most_load(run), run) for run in runs), key=lambda found: found[0])
    if tables[0].keep_disturbed:
        follows = "they still count, because of --disturbed keep"
    elif not disturbed:
        follows = "they are left out"
    elif left := len(rounds) - disturbed:
        follows = f"they are left out: speeds and ratios are from the other {left}"
    else:
        follows = f"no speed was measured: {QUIETER}"
    what = _of_rounds(disturbed, len(rounds)) if disturbed else f"{disturbed_turns} of {turns} turns were"
    yield (
        f"{what} disturbed: other programs used up to {load:{SHARE}} of the cores"
        f" ({worst.record.title}, {_place(worst)}); {follows}{f'; extra rounds run instead: {again}' if again else ''}"
    )


def _most_load(run: Run) -> float:
    """The largest share of the cores that others used, in a turn or, with too few turns, while the run trained."""
    if len(run.turns) >= MIN_CYCLES:
        return max(turn.other_load or 0.0 for turn in run.turns)
    return other_load(run) or 0.0


def why_not_measured(rows: Sequence[Row]) -> str | None:
    """`other programs used 97% of the cores`, if others have disturbed all rounds of these rows; else None."""
    runs = [run for row in rows for run in row.runs]
    disturbed = [other_load(run) or 0.0 for run in runs if is_round_disturbed(run)]
    if not disturbed or not all(row.leaves_out(run) for row in rows for run in row.runs):
        return None
    return f"other programs used {median(disturbed):{SHARE}} of the cores; {QUIETER}"


def _of_rounds(part: int, whole: int) -> str:
    """`2 of 7 rounds were`."""
    if whole == 1:
        return "the only round was"
    return f"{'all' if part == whole else f'{part} of'} {whole} rounds {'was' if part == 1 else 'were'}"


def _place(run: Run) -> str:
    return f"seed {run.record.seed}, round {run.record.round}"


def _stalled(row: Row, who: str) -> Iterator[str]:
    if (row.stalled or 0.0) > WORTH_A_WORD:
        yield (
            f"{who}: stalls take {row.stalled:{SHARE}} of its turns' time: now and then a turn lasts much longer than"
            " usual, though no other program was seen; images/s and ratios are for usual turns; waiting for turns"
            " may lengthen stalls: --turns never shows what they cost without waiting"
        )


def _throttled(row: Row, who: str) -> Iterator[str]:
    shares = [run.record.throttled for run in row.measured_runs if run.record.throttled is not None]
    if shares and fmean(shares) > THROTTLED:
        yield (
            f"{who}: this container's CPU limit paused it in {fmean(shares):{SHARE}} of the scheduler's periods,"
            " so its speeds are too low; a smaller --threads-per-device or a higher limit avoids that"
        )


def _between(row: Row, who: str) -> Iterator[str]:
    """Warns where much of an epoch is in no speed: a mistake, or work that should count."""
    between, epochs = row.between_seconds, (row.training_seconds or 0.0) + (row.evaluation_seconds or 0.0)
    if between and between > MOST_BETWEEN * epochs:
        yield (
            f"{who}: {between / (between + epochs):{SHARE}} of the time of its epochs is in neither training nor"
            " evaluation, and not in any speed; if that is training work, this row's images/s are too high"
        )


def _crowded(row: Row, who: str) -> Iterator[str]:
    """Warns of more threads than cores without other programs: the run's own threads wait for each other, or spin."""
    runs = [run for run in row.measured_runs if run.result and (other_load(run) or 0.0) <= BUSY]
    runnable = [run.record.runnable_threads for run in runs if run.record.runnable_threads is not None]
    if not runs or not runs[0].result:
        return
    result = runs[0].result
    cores = result.config.nodes * result.machine.cores
    if result.accelerator == "cpu" and (crowding := too_many_threads(result.devices, result.threads_per_device, cores)):
        yield f"{who}: {crowding}"
    elif runnable and fmean(runnable) > result.machine.cores + CROWDED:
        yield (
            f"{who}: {fmean(runnable):.1f} threads at a time wanted to run on {result.machine.cores} cores;"
            " a smaller --threads-per-device may be faster; docs/noise.md says what helps"
        )


def too_many_threads(devices: int, threads: int, cores: int) -> str | None:
    """What to say of more threads than cores, before the runs and after them; None if there are enough cores."""
    if devices * threads <= cores:
        return None
    instead = "--threads-per-device auto divides the cores" if devices <= cores else f"use at most {cores} devices"
    return f"{devices} x {threads} threads on {cores} cores wait for each other; {instead}"


def _first_run(row: Row, who: str) -> Iterator[str]:
    """Warns if the first run, which warms up caches, is an outlier; the medians hardly change by it."""
    runs = sorted(row.measured_runs, key=lambda run: run.record.started)
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


def _outliers(row: Row, who: str) -> Iterator[str]:
    """Warns of each run with an unusual speed although no disturbance was seen; these runs still count."""
    runs = sorted((run for run in row.measured_runs if run.images_per_second), key=lambda run: run.record.started)
    speeds = [run.images_per_second or 0.0 for run in runs]
    for index in outliers(speeds, OFF):
        load = other_load(runs[index])
        seen = "it is not known whether other programs ran"
        if load is not None:
            seen = f"other programs used {load:{SHARE}} of the cores"
        if index > 0:  # `_first_run` warns of the first run
            yield (
                f"{who}: {speeds[index]:{COUNT}} images/s is an outlier ({_place(runs[index])}; the median"
                f" is {median(speeds):{COUNT}}); {seen}; it still counts, but hardly changes medians and ratios"
            )


def _too_wide(table: Table, where: str) -> Iterator[str]:
    for row in table.rows:
        if row.verdict != "no difference shown" or not (row.ratio and row.ratio_low and row.ratio_high):
            continue
        if abs(math.log(row.ratio)) > math.log1p(WORTH_A_WORD):
            yield (
                f"{row.title}{where}: the spread is too wide to tell whether it is faster or slower: ratio"
                f" {row.ratio:{RATIO}}, 95 % interval {between(row.ratio_low, row.ratio_high)}; {rounds_needed(row)}"
            )


def _not_within(tables: Sequence[Table], within: float | None) -> Iterator[str]:
    for table in tables:
        for row in table.rows:
            if within is None or not (row.ratio_low and row.ratio_high):
                continue
            reached = math.sqrt(row.ratio_high / row.ratio_low) - 1
            if reached > within:
                yield (
                    f"{row.title}{variant_in_brackets(table.variant)}: not within {100 * within:.3g}% (--ratio-within):"
                    f" after {row.num_rounds} rounds the ends of the interval are {100 * reached:.3g}% from its middle;"
                    " more rounds (--resume DIR --repeats N) make it narrower"
                )


def rounds_needed(row: Row) -> str:
    """Says how many rounds may show a difference of this size: widths of intervals go with 1 / sqrt(rounds)."""
    assert row.ratio and row.ratio_low and row.ratio_high
    half = math.log(row.ratio_high / row.ratio_low) / 2
    needed = max(math.ceil(row.num_rounds * (half / abs(math.log(row.ratio))) ** 2), row.num_rounds + 1)
    return (
        f"about {needed} rounds might be enough (--resume DIR --repeats {needed})"
        if needed <= 100
        else "more than 100 rounds would be needed; a quieter machine helps more"
    )


def _contradictions(table: Table, where: str) -> Iterator[str]:
    """Warns if the medians, which are over all runs, and the ratio, which is from pairs, say the opposite."""
    first = table.reference
    for row in table.rows:
        base = first.images_per_second if first else None
        if first is None or not (row.ratio and row.images_per_second and base):
            continue
        medians = row.images_per_second / base
        if (row.ratio - 1) * (medians - 1) < 0 and abs(math.log(medians / row.ratio)) > WORTH_A_WORD:
            yield (
                f"{row.title}{where}: the medians say {medians:{RATIO}} times the speed of {first.title}, the pairs of"
                f" the same round say {row.ratio:{RATIO}}: speeds changed from round to round, so trust neither; run"
                " more rounds on a quiet machine"
            )
