"""What might mislead a reader of the tables, each in one line."""

import math
from collections.abc import Iterator, Sequence

from comparison.intervals import outlying
from comparison.jobs import shown_variant
from comparison.row import Speed
from comparison.store import Run
from comparison.table import Entry, Table

FIRST_RUN_OFF = 0.10  # a first run that is off by less misleads nobody
BUSY = 0.10  # share of all cores
WORTH_A_WORD = 0.05  # a ratio nearer to 1 than this is no news, shown or not


def find_warnings(tables: Sequence[Table], runs: Sequence[Run], verified: bool) -> list[str]:
    """In the order in which a reader should know."""
    found = [*_unproved(tables, verified), *_machines(runs), *_versions(runs), *_commits(runs), *_load(runs)]
    found += [*_threads(tables), *_tuning(runs), *_sessions(tables)]
    for table in tables:
        where = _where(table)
        for entry in table.entries:
            found += _first_run(entry, where)
        found += _too_wide(table, where)
    measured = any(row.speed.images_per_second for table in tables for row in table.rows)
    if measured and len({(run.record.seed, run.record.round) for run in runs if not run.record.tuning}) == 1:
        found.append("one round only: a difference in speed may be the machine's mood; --repeats 5 shows the spread")
    return found


def _where(table: Table) -> str:
    shown = shown_variant(table.variant)
    return f" ({shown})" if shown else ""


def _machines(runs: Sequence[Run]) -> Iterator[str]:
    results = [run.result for run in runs if run.result]
    for result in results[1:]:
        if differences := results[0].machine.differences(result.machine):
            yield f"not all runs are from the same machine; they stand in tables of their own: {'; '.join(differences)}"
            return
    names = list(dict.fromkeys(result.machine.hostname for result in results))
    if len(names) > 1:
        yield f"runs are from hosts of different names, otherwise alike: {', '.join(names)}"


def _versions(runs: Sequence[Run]) -> Iterator[str]:
    seen: dict[str, dict[str, str]] = {}
    told = set()
    for run in runs:
        if run.result is None:
            continue
        name = run.record.name
        for package, version in run.result.versions.items():
            first = seen.setdefault(name, {}).setdefault(package, version)
            if version != first and (name, package) not in told:
                told.add((name, package))
                yield f"{name}: not all runs have the same {package}: {first} and {version}"


def _commits(runs: Sequence[Run]) -> Iterator[str]:
    results = [run.result for run in runs if run.result]
    codes = list(dict.fromkeys(result.code for result in results))
    if len(codes) > 1:
        yield f"the code changed between runs: commits {' and '.join(codes)}"
    elif len({result.code_sha256 for result in results}) > 1:
        yield f"the code changed between runs: different states of commit {codes[0]}"


def _unproved(tables: Sequence[Table], asked: bool) -> Iterator[str]:
    if not asked and any(len(table.rows) > 1 for table in tables):
        yield "not proved that the rows are the same training (--verify never): ratios may compare different trainings"


def _sessions(tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        made: dict[tuple[int, int], set[int]] = {}
        for run in (run for entry in table.entries for run in entry.runs):
            made.setdefault((run.record.seed, run.record.round), set()).add(run.record.session)
        split = sum(len(sessions) > 1 for sessions in made.values())
        if split:
            yield (
                f"{split} of {len(made)} rounds{_where(table)} were finished later (--resume): runs of different times"
                " are no pairs, and a ratio is from the other rounds"
            )


def _tuning(runs: Sequence[Run]) -> Iterator[str]:
    tuning = [run for run in runs if run.record.tuning]
    failed = [run for run in tuning if run.result is None]
    if failed:
        yield f"{len(failed)} of {len(tuning)} runs for tuning failed, the first one in {failed[0].run_dir}"


def _load(runs: Sequence[Run]) -> Iterator[str]:
    busy = [run for run in runs if (run.record.other_load or 0.0) > BUSY]
    if busy:
        most = max(busy, key=lambda run: run.record.other_load or 0.0).record
        yield (
            f"something else kept the machine busy during {len(busy)} of {len(runs)} runs, at most"
            f" {most.other_load:.0%} of its cores ({most.name}, seed {most.seed}, round {most.round})"
        )


def _threads(tables: Sequence[Table]) -> Iterator[str]:
    threads = {
        (row.name, result.threads_per_device): (row.variant, result)
        for table in tables
        for entry in table.entries
        for run in entry.runs
        if (row := entry.row) and (result := run.result)
    }
    counts = {count for _, count in threads}
    if len(counts) > 1 and not any(
        "devices" in variant or "threads-per-device" in variant for variant, _ in threads.values()
    ):
        shown = ", ".join(f"{name} {count}" for name, count in sorted(threads))
        yield f"thread counts differ: {shown} threads for each device"
    for (name, count), (_, result) in sorted(threads.items()):
        if result.accelerator == "cpu" and count * result.devices > result.config.nodes * result.machine.cores:
            yield (
                f"{name}: {result.devices} x {count} threads on {result.machine.cores} cores wait for each other;"
                " --threads-per-device auto gives each its share"
            )


def _first_run(entry: Entry, where: str) -> Iterator[str]:
    """The first run warms caches: where that shows, it is said, and the medians are hardly moved by it."""
    runs = sorted((run for run in entry.runs if run.is_measured), key=lambda run: run.record.started)
    if len(runs) < 4:
        return
    for what, samples in (
        ("training", [run.result.images_per_second for run in runs if run.result]),
        ("start-up", [run.result.startup_seconds for run in runs if run.result]),
    ):
        known = [sample for sample in samples if sample is not None]
        if len(known) < len(runs) or not outlying(known[0], known[1:], FIRST_RUN_OFF):
            continue
        slower = (known[0] > sorted(known[1:])[len(known[1:]) // 2]) == (what == "start-up")
        yield (
            f"{entry.name}{where}: the first run is an outlier: its {what} is"
            f" {'slower' if slower else 'faster'} than the others'; leave it out of conclusions"
        )


def _too_wide(table: Table, where: str) -> Iterator[str]:
    for row in table.rows:
        speed = row.speed
        if speed.verdict != "no difference shown" or not (speed.ratio and speed.ratio_low and speed.ratio_high):
            continue
        if abs(math.log(speed.ratio)) > math.log1p(WORTH_A_WORD):
            yield (
                f"{row.name}{where}: the spread is too wide to tell whether it is faster or slower: ratio"
                f" {speed.ratio:.2f}, 95 % interval {speed.ratio_low:.2f} to {speed.ratio_high:.2f};"
                f" {rounds_needed(speed)}"
            )


def rounds_needed(speed: Speed) -> str:
    """About how many rounds would show a difference of this size: intervals shrink with the root of their number."""
    assert speed.ratio and speed.ratio_low and speed.ratio_high
    half = math.log(speed.ratio_high / speed.ratio_low) / 2
    needed = max(math.ceil(speed.num_rounds * (half / abs(math.log(speed.ratio))) ** 2), speed.num_rounds + 1)
    return f"about {needed} rounds might" if needed <= 100 else "more rounds than is sensible"
