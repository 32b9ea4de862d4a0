"""The ten warnings that change what a reader of the tables would do; docs/comparison.md lists them."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from comparison.measure.rounds import is_round_disturbed, other_load
from comparison.measure.table import MOST_OFF_THE_CLOCK, Row, Table
from comparison.numbers import SHARE
from comparison.plan.jobs import variant_in_brackets
from comparison.ratios import MIN_CYCLES
from comparison.run.load_meter import QUIETER
from comparison.run.store import Run

MOST_THROTTLED = 0.01  # share of the scheduler's periods; a warning above it


def find_cautions(tables: Sequence[Table], runs: Sequence[Run], verified: bool, repeats: int) -> list[str]:
    """All warnings, in the order in which a reader should see them.

    Args:
      verified: whether rows had to be proved to be the same training.
      repeats: number of rounds that were asked for; further rounds were made to replace disturbed ones.
    """
    warnings = [
        *_unproved(tables, verified),
        *_machines(runs),
        *_versions(runs),
        *_commits(runs),
        *_groups(runs),
        *_sessions(tables),
        *_disturbed(tables, repeats),
    ]
    for row in (row for table in tables for row in table.rows):
        who = f"{row.title}{variant_in_brackets(row.variant)}"
        warnings += [*_in_no_speed(row, who), *_short_of_cores(row, who)]
    return [*warnings, *_one_round(tables, runs)]


def _machines(runs: Sequence[Run]) -> Iterator[str]:
    results = [run.result for run in runs if run.result]
    for result in results[1:]:
        if differences := results[0].machine.differences(result.machine):
            yield f"not all runs are from the same machine, so each machine has its own table: {'; '.join(differences)}"
            return


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
            if asked and (step := row.unexplained_jump):
                yield (
                    f"{row.title}: its losses suddenly part from the first row's at step {step}, and the steps around"
                    " were not audited, so it may train differently from there; --resume audits them"
                )


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
        f" ({worst.record.title}, seed {worst.record.seed}, round {worst.record.round}); {follows}"
        f"{f'; extra rounds run instead: {again}' if again else ''}"
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


def _in_no_speed(row: Row, who: str) -> Iterator[str]:
    """Warns where much of an epoch is in no speed: a mistake, or work that should count."""
    if row.share_off_the_clock > MOST_OFF_THE_CLOCK:
        yield (
            f"{who}: {row.share_off_the_clock:{SHARE}} of the time of its epochs is in neither training nor"
            " evaluation, and not in any speed; if that is training work, this row's images/s are too high"
        )
    if (row.stalled or 0.0) > MOST_OFF_THE_CLOCK:
        yield (
            f"{who}: stalls take {row.stalled:{SHARE}} of its turns' time, and are not in any speed: some turns last"
            " much longer than usual, though no other program was seen; --turns never measures the speed with stalls"
        )


def _short_of_cores(row: Row, who: str) -> Iterator[str]:
    """Warns of more threads than cores, and of a container's CPU limit that paused the runs."""
    for result in row.results[:1]:
        cores = result.config.nodes * result.machine.cores
        crowding = too_many_threads(result.devices, result.threads_per_device, cores)
        if result.accelerator == "cpu" and crowding:
            yield f"{who}: {crowding}"
    shares = [run.record.throttled for run in row.measured_runs if run.record.throttled is not None]
    if shares and fmean(shares) > MOST_THROTTLED:
        yield (
            f"{who}: this container's CPU limit paused it in {fmean(shares):{SHARE}} of the scheduler's periods,"
            " so its speeds are too low; a smaller --threads-per-device or a higher limit avoids that"
        )


def too_many_threads(devices: int, threads: int, cores: int) -> str | None:
    """What to say of more threads than cores, before the runs and after them; None if there are enough cores."""
    if devices * threads <= cores:
        return None
    instead = "--threads-per-device auto divides the cores" if devices <= cores else f"use at most {cores} devices"
    return f"{devices} x {threads} threads on {cores} cores wait for each other; {instead}"


def _one_round(tables: Sequence[Table], runs: Sequence[Run]) -> Iterator[str]:
    rounds = {(run.record.seed, run.record.round) for run in runs if not run.record.rate_search}
    if len(rounds) == 1 and any(row.images_per_second for table in tables for row in table.rows):
        yield (
            "one round only: speeds and ratios hold for these processes, others may differ by a few per cent;"
            " --repeats 5 adds rounds"
        )
