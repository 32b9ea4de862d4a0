"""The ten warnings that change what a reader of the tables would do; docs/comparison.md lists them."""

import statistics
from collections.abc import Iterator, Sequence

import pandas as pd

from common.record.results import TurnLine
from common.spec.own_network import drops_by_itself
from comparison.measure.rounds import other_load
from comparison.measure.row import Row
from comparison.measure.table import MOST_OFF_THE_CLOCK, Table
from comparison.numbers import SHARE
from comparison.plan.jobs import variant_in_brackets
from comparison.plan.options import CompareConfig
from comparison.ratios import MIN_CYCLES
from comparison.run.load_meter import QUIET_ADVICE, quiet
from comparison.run.store import Run

MOST_THROTTLED = 0.01  # share of the scheduler's periods; a warning above it


def find_cautions(
    tables: Sequence[Table], runs: pd.DataFrame, turns: pd.DataFrame, options: CompareConfig
) -> list[str]:
    """All warnings, in the order in which a reader should see them. `runs`: all, the earliest first."""
    succeeded = runs[runs["failure"].isna()]
    shown = succeeded[succeeded["table"] > 0]
    warnings = [
        *_unproved(tables, options.verify != "never"),
        *_code_and_machine(succeeded),
        *_groups(runs),
        *_sessions(shown),
        *_disturbed(shown, turns[turns["table"] > 0]),
    ]
    for row in (row for table in tables for row in table.rows):
        who = f"{row.title}{variant_in_brackets(row.variant)}"
        warnings += [*_in_no_speed(row, who), *_short_of_cores(row, who)]
    num_rounds = len(runs.loc[runs["table"] > 0, ["seed", "round"]].drop_duplicates())
    if num_rounds == 1 and any(row.images_per_second for table in tables for row in table.rows):
        warnings.append(
            "one round only: speeds and ratios hold for these processes, others may differ by a few per cent;"
            " --repeats 5 adds rounds"
        )
    return warnings


def _unproved(tables: Sequence[Table], asked: bool) -> Iterator[str]:
    if not asked and any(len(table.rows) > 1 for table in tables):
        yield (
            "no proof that the rows train identically (--verify never): ratios may compare rows that train differently"
        )
    for row in (row for table in tables for row in table.rows if row.num_runs) if asked else ():
        drops = drops_by_itself(row.in_table.folder)  # conclusions say that it is not audited
        if not drops and not row.audited_steps and not row.audit_failure:
            notes = (audit.note for _, audits in row.audits for audit in audits.steps if audit.note)
            why = next(notes, "there was no audit, or it failed")
            yield f"{row.title}: no step of its timed runs was audited: {why}"
        if jump := row.unexplained_jump:
            yield (
                f"{row.title}: its losses suddenly part from the first row's at step {jump.step}, and the steps around"
                " were not audited, so it may train differently from there; --resume audits them"
            )


def _code_and_machine(runs: pd.DataFrame) -> Iterator[str]:
    """Warns of runs from different machines, package versions or code. `runs`: those that have succeeded."""
    results = [run.result for run in runs["run"]]
    if differences := next((found for of in results if (found := results[0].machine.differences(of.machine))), None):
        yield f"not all runs are from the same machine, so each machine has its own table: {'; '.join(differences)}"
    versions = pd.DataFrame(
        [(title, *item) for title, of in zip(runs["title"], results, strict=True) for item in of.versions.items()]
    ).drop_duplicates()
    for (title, package), found in versions.groupby([0, 1], sort=False) if len(versions) else ():
        if len(found) > 1:
            first, other, *_ = found[2]
            yield f"{title}: not all runs used the same {package} version: {first} and {other}"
    codes = list(dict.fromkeys(result.code for result in results))
    if len(codes) > 1:
        yield f"the code changed between runs: commits {' and '.join(codes)}"
    elif len({result.code_sha256 for result in results}) > 1:
        yield f"the code changed between runs: uncommitted changes at commit {codes[0]}"


def _sessions(runs: pd.DataFrame) -> Iterator[str]:
    sessions = runs.groupby(["table", "seed", "round"])["session"].nunique()
    if split := (sessions > 1).sum():
        yield (
            f"{split} of {len(sessions)} rounds were finished later (--resume): their runs took place at different"
            " times and form no pairs, so ratios use only the other rounds"
        )


def _groups(runs: pd.DataFrame) -> Iterator[str]:
    """Tells which rows trained in turns with each other, where not all of them fit into memory together."""
    rounds = runs.groupby(["variant", "seed", "round"], sort=False)
    groups = rounds["group"].nunique()
    if split := (groups > 1).sum():
        first = rounds.get_group(groups.idxmax())
        shown = "; then ".join(", ".join(titles) for _, titles in first.groupby("group")["title"])
        yield (
            f"in {split} of {len(groups)} rounds the rows did not fit into memory together, and trained in turns"
            f" in groups, each with the first row: {shown}; rows of different groups are not compared"
        )


def _disturbed(runs: pd.DataFrame, turns: pd.DataFrame) -> Iterator[str]:
    """One warning for all disturbed turns and rounds, also in a sweep."""
    rounds = runs.groupby(["table", "seed", "round"])["disturbed"].any()
    disturbed, disturbed_turns = rounds.sum(), (~turns["quiet"]).sum()
    if not disturbed and not disturbed_turns:
        return
    load = max(max(_loads(run, run.turns)) for run in runs["run"])
    what = f"{disturbed} of {len(rounds)} rounds" if disturbed else f"{disturbed_turns} of {len(turns)} turns"
    follows = "these are left out of speeds and ratios"
    if runs["busy"].any():
        follows = f"speeds marked with * are those of a busy machine; {QUIET_ADVICE}"
    yield f"other programs disturbed {what}, with up to {load:{SHARE}} of the cores; {follows}"


def _loads(run: Run, turns: Sequence[TurnLine]) -> list[float]:
    """The share of the cores that others used in each of these turns or, with too few in all, while the run trained."""
    if len(run.turns) >= MIN_CYCLES:
        return [turn.other_load or 0.0 for turn in turns]
    return [other_load(run) or 0.0]


def busy_machine(rows: Sequence[Row]) -> str | None:
    """`other programs used 97% of the cores`, if they have disturbed all rounds of these rows; else None."""
    runs = pd.concat([row.runs for row in rows]) if rows else pd.DataFrame()
    if not len(runs) or not runs["busy"].all():
        return None
    load = statistics.median(
        statistics.median(_loads(run, [turn for turn in run.turns if not quiet([turn])]))
        for run in runs.loc[runs["disturbed"], "run"]
    )
    return f"other programs used {load:{SHARE}} of the cores"


def _in_no_speed(row: Row, who: str) -> Iterator[str]:
    """Warns where much of an epoch is in no speed: a mistake, or work that should count."""
    if row.share_off_the_clock > MOST_OFF_THE_CLOCK:
        yield (
            f"{who}: {row.share_off_the_clock:{SHARE}} of the time of its epochs is in neither training nor"
            " evaluation, and not in any speed; if that is training work, this row's images/s are too high"
        )
    if (row.stalled or 0.0) > MOST_OFF_THE_CLOCK and not row.runs["busy"].any():
        yield (
            f"{who}: stalls take {row.stalled:{SHARE}} of its turns' time, and are not in any speed: some turns last"
            " much longer than usual, though no other program was seen; --turns never measures the speed with stalls"
        )


def _short_of_cores(row: Row, who: str) -> Iterator[str]:
    """Warns of more threads than cores, and of a container's CPU limit that paused the runs."""
    if (result := row.first) and result.accelerator == "cpu":
        cores, threads = result.config.nodes * result.machine.cores, result.threads_per_device
        if result.devices * threads > cores:
            number = f"{result.devices} x {threads} threads on {cores} cores"
            yield f"{who}: {number} wait for each other; use fewer devices or threads"
    share = row.measured["throttled"].mean()
    if share > MOST_THROTTLED:
        yield (
            f"{who}: this container's CPU limit paused it in {share:{SHARE}} of the scheduler's periods,"
            " so its speeds are too low; a smaller --threads-per-device or a higher limit avoids that"
        )
