"""The sentences of the terminal, Markdown and the page: above a table, below it, the conclusions, and the answers."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import pandas as pd

from common.implementations import IMPLEMENTATIONS
from common.platform.cli import option_name
from common.resolve import describe_batch, describe_devices
from common.spec.optimizers import RULES
from common.spec.options import MODES, TrainConfig, neutral_option_values, options_of_kind
from common.spec.own_network import drops_by_itself
from common.spec.schedules import SCHEDULES
from comparison.measure.accuracies import accuracies_differ_clearly
from comparison.measure.cautions import busy_machine
from comparison.measure.columns import Column
from comparison.measure.comparison import Comparison
from comparison.measure.frames import ROUND_COLUMNS
from comparison.measure.row import Row
from comparison.measure.status import DIFFERENT_STATUSES
from comparison.measure.sweep import SweepRow, SweepStudy
from comparison.measure.table import Table, have_turns, num_pairs, paired_turns, speed_ratio
from comparison.numbers import ACCURACY, COUNT, RATIO, SHARE, difference, least_most, span
from comparison.plan.jobs import shown_variant, variant_in_brackets
from comparison.prove.learning import Learned
from comparison.ratios import MIN_CYCLES, MIN_ROUNDS, Ratio
from comparison.run.load_meter import QUIET_ADVICE

# --- Above a table, and below it ---


def what_was_compared(table: Table) -> list[str]:
    """The lines above a table."""
    result, variant = table.first_result, [f"sweep variant: {shown_variant(table.variant)}"] if table.variant else []
    if result is None:
        return ["no implementation has finished", *variant]
    config = result.config
    images = f"{result.train_count:,} training and {result.test_count:,} test images"
    epochs = f"{config.epochs} epoch{'s' if config.epochs != 1 else ''}"
    pairs = {(run.record.seed, run.record.round) for row in table.rows for run in row.runs["run"]}
    swept_settings = any(option_name(name)[2:] in table.variant for name in options_of_kind(TrainConfig, "setting"))
    seeds, rounds = sorted({seed for seed, _ in pairs}), len(pairs)
    shown = f"seed{'s' if seeds[1:] else ''} {' '.join(map(str, seeds))}{f', {rounds} rounds' if rounds > 1 else ''}"
    return [
        f"{config.network_name} on {config.dataset_name}: {images}, {result.num_parameters:,} parameters",
        f"{describe_batch(config)}, {epochs}, {result.num_steps:,} steps, {shown}",
        _update_rule(config),
        *_regularisation(config),
        # In a sweep over settings these lines are for all variants; the line of the variant has its settings.
        *([] if swept_settings else [_settings(table)]),
        describe_devices(config, result.device_name),
        *variant,
    ]


def what_was_swept(comparison: Comparison) -> list[str]:
    """The lines above a sweep: what varies, and what is the same in all variants."""
    tables = [table for table in comparison.tables if table.first_result]
    values: dict[str, dict[str, None]] = {}
    for table in tables:
        for option, value in table.variant.items():
            values.setdefault(option, {})[value] = None
    swept = " x ".join(f"{option} ({', '.join(texts)})" for option, texts in values.items())
    first, *others = (what_was_compared(table) for table in tables)
    return [f"sweep of {swept}", *(line for line in first if all(line in other for other in others))]


def _update_rule(config: TrainConfig) -> str:
    """`sgd: learning rate 0.05, cosine after 20 steps of warm-up, momentum 0.9`; zero and false values are left out."""
    rate = f"learning rate {config.learning_rate:g}, {config.schedule}"
    if config.warmup_steps:
        rate += f" after {config.warmup_steps} steps of warm-up"
    parts = [rate]
    for hyperparameter in (*fields(SCHEDULES[config.schedule]), *fields(RULES[config.optimizer])):
        if value := getattr(config, hyperparameter.name):
            parts.append(_shown(hyperparameter.name, value))
    if config.gradient_clip_val:
        parts.append(f"gradients clipped at {config.gradient_clip_val:g}")
    return f"{config.optimizer}: {', '.join(parts)}"


def _regularisation(config: TrainConfig) -> list[str]:
    """`regularisation: random crop 4, horizontal flip`, without weight decay, which belongs to the update rule."""
    parts = [
        _shown(name, value)
        for name, neutral in neutral_option_values(TrainConfig, "regularisation").items()
        if (value := getattr(config, name)) != neutral and not hasattr(RULES[config.optimizer], name)
    ]
    return [f"regularisation: {', '.join(parts)}"] if parts else []


def _shown(name: str, value: object) -> str:
    """`momentum 0.9`; `nesterov` if it is true."""
    words = name.replace("_", " ")
    return words if value is True else f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def _settings(table: Table) -> str:
    """`modes plain and tuned: 32-bit; pt tuned bf16-mixed`: the first row's settings, and the rows that differ."""
    rows = [row for row in table.rows if row.settings]
    modes = list(dict.fromkeys(row.mode for row in rows))
    first = rows[0].settings
    others = [f"{row.title} {row.settings}" for row in rows if row.settings != first]
    return f"mode{'s' if modes[1:] else ''} {' and '.join(modes)}: {'; '.join([str(first), *others])}"


def remarks(comparison: Comparison) -> list[str]:
    """The lines below the tables: warnings; a line for each row that has a note; for a failed run, its log's end."""
    lines = [f"warning: {line}" for line in comparison.warnings]
    for row in comparison.all_rows:
        if row.note:
            status = "" if row.status == "ok" else f" {row.status}:"
            lines.append(f"{row.title}{variant_in_brackets(row.variant)}:{status} {row.note}")
        for run in row.failed["run"][:1]:
            lines += [f"  the end of {run.log}:", *(f"  | {line}" for line in run.last_log_lines())]
    return lines


# --- Conclusions ---

LEARNED_SENTENCES: dict[Learned, str] = {
    "fits": "neither under- nor overfitting",
    "underfits": "underfitting",
    "overfits": "overfitting",
    "learns nothing": "nothing learned",
}


def conclusions(table: Table) -> list[str]:
    """The conclusions of a table, a sentence each: what `--check-learning` has found, speeds, proof, accuracies."""
    return [
        *learning_conclusions(table),
        *speed_conclusions(table),
        *proof_conclusions(table),
        *accuracy_conclusions(table),
    ]


def learning_conclusions(table: Table) -> list[str]:
    """What `--check-learning` has found; none where it was not asked for."""
    found = [(row.small_set.found, row.title) for row in table.rows if row.small_set_steps is not None]
    found += [(f"{LEARNED_SENTENCES[row.learning]}: {row.fit.words}", row.title) for row in table.rows if row.learning]
    titles_of: dict[str, list[str]] = {}
    for words, title in found:
        titles_of.setdefault(words, []).append(title)
    return [f"{', '.join(titles)}: {words}" for words, titles in titles_of.items()]


def speed_conclusions(table: Table) -> list[str]:
    """Which row is the fastest, in all modes and in each; what the next mode gains; on a busy machine, that it is."""
    good = [row for row in table.rows if row.is_comparable and row.images_per_second]
    by_speed = sorted(good, key=lambda row: -(row.images_per_second or 0.0))
    lines = [*_fastest_of_all(by_speed)]
    for mode in MODES:
        of_mode = [row for row in by_speed if row.mode == mode]
        lines += [sentence for other in of_mode[1:] if (sentence := _times(of_mode[0], other))]
    lines += [sentence for row in good for other in good if (sentence := _gain(row, other))]
    if lines and (busy := busy_machine(good)):
        lines.append(f"on a busy machine: {busy} in every round")
    return lines


def proof_conclusions(table: Table) -> list[str]:
    """Whether the rows are the same training; none for a single row."""
    if len(table.finished) < 2:
        return []
    rows = [row for row in table.rows if row.is_comparable]
    if len(rows) < 2:
        wrong = [row.title for row in table.rows if row.status in DIFFERENT_STATUSES]
        return [f"same training: no: {', '.join(wrong)}" if wrong else "same training: not proved"]
    if {row.same_training for row in rows if not row.is_reference} != {True}:
        return ["same training: not proved"]
    largest = max(row.proof_difference or 0.0 for row in rows)
    lines = [
        f"same training: yes, proved in 64-bit runs: losses of the same step differ by at most {difference(largest)}"
    ]
    audited = {row.title: row.audited_steps for row in rows}
    if any(audited.values()):
        each = ", ".join(f"{title} {count}" for title, count in audited.items())
        each = f"{rows[0].audited_steps} of each row" if len({*audited.values()}) == 1 else each
        own = rows[0].results[0].config.has_own_network
        right = "the same step, recomputed in 64 bits," if own else "the formulas"
        lines.append(f"timed runs: steps audited: {each}; each matches {right} up to rounding")
    elif drops_by_itself(table.folder):
        lines.append("timed runs: not audited, since each framework's dropout draws random numbers of its own")
    return lines


def accuracy_conclusions(table: Table) -> list[str]:
    """Which accuracies differ from the first row's by more than chance explains."""
    first, *others = [row for row in table.finished if row.test_accuracy is not None] or [None]
    return [
        "accuracies differ by more than chance explains: "
        + ", ".join(f"{of.title} {of.test_accuracy:{ACCURACY}}" for of in (row, first))
        for row in others
        if accuracies_differ_clearly(row.runs, first.runs)
    ]


def _fastest_of_all(rows: Sequence[Row]) -> Iterator[str]:
    """Compares the fastest row of several modes with the fastest one of another framework; the fastest come first."""
    if len({row.mode for row in rows}) < 2:
        return
    first, *others = rows
    other = next((row for row in others if row.implementation != first.implementation), None)
    if other and (sentence := _times(first, other)):
        yield f"{sentence}, the fastest of the other frameworks"


def _gain(row: Row, other: Row) -> str | None:
    """What the next mode gains, of runs of the same implementation in the same rounds; None if not known."""
    if row.implementation != other.implementation or MODES.index(other.mode) != MODES.index(row.mode) + 1:
        return None
    gain, ratio = _times(other, row), speed_ratio(row, other)
    if not gain or not ratio:
        return None
    extra = IMPLEMENTATIONS[row.implementation].tutorial if row.implementation in IMPLEMENTATIONS else ""
    if row.mode == "tutorial" and extra and ratio.verdict == "faster":
        gain += f": {1 - 1 / ratio.estimate:.0%} of the tutorial's time goes into {extra}"
    return gain


def _times(row: Row, reference: Row) -> str | None:
    """`PyTorch trained 1.13 times as fast as TensorFlow (1.06 to 1.18)`; None if the ratio is not known."""
    ratio = speed_ratio(reference, row)
    if ratio is None:
        return None
    name, other = row.title, reference.title
    times = f"trained {ratio.estimate:{RATIO}} times as fast as"
    if ratio.low is None:
        rounds = f"{ratio.rounds} round{'s' if ratio.rounds > 1 else ''}"
        return f"{name} {times} {other} in {rounds}, too few to be sure"
    # A tuned row may be slower; so may the row with the highest median, if the other row lacks some of its rounds.
    if ratio.verdict == "slower":
        return _times(reference, row)
    of_these = "; for these processes only, others may differ" if ratio.of_these_processes else ""
    interval = f"({_ends(ratio)}{of_these})"
    if ratio.verdict == "no difference shown":
        return f"{name} and {other}: no significant difference in speed: ratio {ratio.estimate:{RATIO}} {interval}"
    return f"{name} {times} {other} {interval}"


def _ends(ratio: Ratio) -> str:
    return span(ratio.low, ratio.high, to=" to ")


# --- Of a sweep ---


def study_conclusions(study: SweepStudy) -> list[str]:
    """A sentence for each line of the charts, then whether all train the same."""
    lines = []
    for series in dict.fromkeys(row.series for row in study.rows):
        members = [row for row in study.rows if row.series == series and row.row.images_per_second]
        if study.is_scaled:
            largest = members[-1] if members else None
            if largest and largest.ratio and (largest.ideal or 0.0) > 1:
                lines.append(_scaled(study, largest, largest.ratio))
        elif len(members) > 1:
            lines.append(f"{series}: {_extremes(study.option, members)}")
    answers = [row.row.same_training for row in study.rows]
    if True in answers and False not in answers and all(row.row.is_comparable for row in study.rows):
        most = difference(max(row.row.proof_difference or 0.0 for row in study.rows))
        lines.append(f"same training: yes, proved for each in 64-bit runs: losses differ by at most {most}")
    return lines


def _scaled(study: SweepStudy, member: SweepRow, ratio: Ratio) -> str:
    """`PyTorch, strong: 1.74 times as fast with 2 devices (1.70 to 1.78), 87% of the ideal`; or `on 2 nodes`."""
    interval = (
        f" ({span(ratio.low, ratio.high, to=' to ')})" if ratio.low is not None else ", in too few rounds to be sure"
    )
    where = f"on {member.x} nodes" if study.option == "num-nodes" else f"with {member.x} devices"
    times, efficiency = f"{ratio.estimate:{RATIO}}", f"{member.efficiency:{SHARE}}"
    return f"{member.series}: {times} times as fast {where}{interval}, {efficiency} of the ideal"


def _extremes(option: str, members: Sequence[SweepRow]) -> str:
    """The values at which one line of a chart has its highest and lowest speed, and its highest and lowest accuracy."""
    slowest, *_, fastest = sorted(members, key=attrgetter("row.images_per_second"))
    speed, slow = (Row.images_per_second.text(member.row) for member in (fastest, slowest))
    text = f"fastest with {option} {fastest.x} ({speed} images/s), slowest with {slowest.x} ({slow})"
    if any(member.row.test_accuracy is None for member in members):
        return text
    worst, *_, best = sorted(members, key=attrgetter("row.test_accuracy"))
    least, most = (Row.test_accuracy.text(member.row) for member in (worst, best))
    if least == most:
        return f"{text}; test accuracy {most} with every value"
    return f"{text}; test accuracy from {least} ({worst.x}) to {most} ({best.x})"


# --- What a reader asks ---


def findings(comparison: Comparison, table: Table) -> dict[str, list[str]]:
    """A reader's questions about a table -> the answers, a sentence each; empty if no run has succeeded."""
    rows = table.finished
    if not rows:
        return {}
    why = _why_no_ratio(rows)
    nothing = f"Not measured: {why}." if why else "Nothing to compare: only one row has a speed."
    proved = proof_conclusions(table)
    if accuracies := [row.test_accuracy for row in rows if row.test_accuracy is not None]:
        proved.append(f"Test accuracy: {least_most(accuracies, ACCURACY)}.")
    answers = {
        "Which is fastest?": speed_conclusions(table) or [nothing],
        "Which starts fastest?": _least(rows, Row.startup_seconds, "s"),
        "Which needs the least memory?": _least(rows, Row.peak_memory_bytes, "MiB"),
        "Was it the same training?": [*proved, *accuracy_conclusions(table)],
        "Does it learn?": learning_conclusions(table),
        "How reliable is this?": [_trust(comparison, rows, why)],
    }
    return {question: sentences for question, sentences in answers.items() if sentences}


def _least(rows: Sequence[Row], column: Column[Any], unit: str) -> list[str]:
    """`PyTorch, 2.0 s (TensorFlow 3.3, Lightning 5.1)`."""
    known = [(value, row.title, column.text(row)) for row in rows if (value := getattr(row, column.name)) is not None]
    if len(known) < 2:
        return []
    (_, first, least), *others = sorted(known)
    return [f"{first}, {least} {unit} ({', '.join(f'{name} {shown}' for _, name, shown in others)})."]


def _why_no_ratio(rows: Sequence[Row]) -> str | None:
    """Why no ratio was measured, and what to do; None if one was, or for a single row."""
    reference, *others = rows
    if not others or any(row.ratio is not None for row in others):
        return None
    if all(row.status in (*DIFFERENT_STATUSES, "not proved") for row in others):
        return "no other row is proved to be the same training as the first one"
    if any(have_turns(paired_turns(reference, row)) for row in others):
        return f"no two rows had {MIN_CYCLES} cycles in which both were undisturbed; {QUIET_ADVICE}"
    if not any(row.runs["speed"].notna().any() for row in rows):
        return "training is too short to measure a speed; make it longer (--epochs)"
    return "no round has undisturbed speeds of the first row and another"


def _trust(comparison: Comparison, rows: Sequence[Row], why: str | None) -> str:
    """How many rounds, pairs of turns and seeds count; `why`: why no ratio was measured."""
    reference, *others = rows
    runs = pd.concat([row.runs for row in rows])
    made, seeds = len(runs[ROUND_COLUMNS].drop_duplicates()), runs["seed"].nunique()
    counting = max(row.num_rounds for row in others or rows)
    of_seeds = f"{seeds} seeds" if seeds > 1 else "one seed, so accuracy and loss have no spread"
    if why:
        return f"Speed is not measured: {why}. Accuracy: {of_seeds}."
    rounds = f"{counting} round{'s' if counting != 1 else ''}" if counting == made else f"{counting} of {made} rounds"
    if busy := busy_machine(rows):
        return f"Not very: {busy} in every round ({rounds}); {of_seeds}."
    pairs = [*filter(None, (num_pairs(reference, row) for row in others if row.ratio is not None))]
    if not pairs and counting < MIN_ROUNDS:
        return f"Not very: {rounds} of paired runs; {of_seeds}. Intervals need {MIN_ROUNDS} undisturbed rounds."
    rounds += f", with {least_most(pairs, COUNT)} pairs of turns" if pairs else " of paired runs"
    count = len(comparison.warnings)
    read = f" Read the {count} warning{'s' if count > 1 else ''} below first." if count else ""
    return f"{rounds}, on one machine; {of_seeds}. The ranges in brackets are 95 % intervals.{read}"
