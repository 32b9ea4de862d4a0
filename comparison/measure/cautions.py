"""Warnings about everything that might mislead a reader of the tables, one line each."""

from collections.abc import Iterator, Sequence

from comparison.measure.noise import noise_warnings
from comparison.measure.table import Table
from comparison.plan.jobs import in_brackets
from comparison.run.store import Run


def find_warnings(tables: Sequence[Table], runs: Sequence[Run], verified: bool, repeats: int) -> list[str]:
    """All warnings, in the order in which a reader should see them.

    Args:
      verified: whether rows had to be proved to be the same training.
      repeats: number of rounds that were asked for; further rounds were made to replace disturbed ones.
    """
    found = [*_unproved(tables, verified), *_machines(runs), *_versions(runs), *_commits(runs)]
    found += [*_groups(runs), *_threads(tables), *_tuning(runs), *_sessions(tables), *noise_warnings(tables, repeats)]
    measured = [row.speed for table in tables for row in table.rows if row.speed.images_per_second]
    if measured and len({(run.record.seed, run.record.round) for run in runs if not run.record.tuning}) == 1:
        if any(speed.ratio_low for speed in measured):
            found.append("one round only: intervals are of these processes, others may differ; --repeats 2 makes more")
        else:
            found.append("one round only: a difference in speed may be chance; --repeats 5 gives ratios with intervals")
    return found


def _machines(runs: Sequence[Run]) -> Iterator[str]:
    results = [run.result for run in runs if run.result]
    for result in results[1:]:
        if differences := results[0].machine.differences(result.machine):
            yield f"not all runs are from the same machine, so each machine has its own table: {'; '.join(differences)}"
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
        name = run.record.title
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
        yield f"the code changed between runs: uncommitted changes at commit {codes[0]}"


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
                f"{split} of {len(made)} rounds{in_brackets(table.variant)} were finished later (--resume):"
                " their runs were made at different times and form no pairs, so ratios use only the other rounds"
            )


def _tuning(runs: Sequence[Run]) -> Iterator[str]:
    tuning = [run for run in runs if run.record.tuning]
    failed = [run for run in tuning if run.result is None]
    if failed:
        yield f"{len(failed)} of {len(tuning)} runs for tuning failed, the first one in {failed[0].run_dir}"


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
        for entry in table.entries
        for run in entry.runs
        if (row := entry.row) and (result := run.result)
    }
    counts = {count for _, count in threads}
    if len(counts) > 1 and not any(
        "devices" in variant or "threads-per-device" in variant for variant in threads.values()
    ):
        shown = ", ".join(f"{name} {count}" for name, count in sorted(threads))
        yield f"thread counts differ: {shown} threads for each device"
