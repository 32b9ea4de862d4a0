"""From a folder of runs to what a user reads: columns, statuses, notes, warnings, and sentences."""

import numpy as np
import pandas as pd
import pytest
from made_up import MACHINE, MadeUp, comparison, made_up_turns, shown

from common.resolve import AutoSettings
from comparison.ratios import paired_ratio

SPEEDS = {"tf": 1000.0, "pt": 3000.0, "ptl": 2900.0}


def fast(job, **more):
    """Each implementation has its own speed, which differs a little in every round."""
    return MadeUp(speed=SPEEDS[job.implementation] * (1 + 0.01 * ((job.round * 7 + job.seed) % 5)), **more)


def rows_of(*arguments, **options):
    return comparison(*arguments, **options).rows.set_index("implementation")


# --- Speeds and ratios ---


def test_speed_is_a_median_and_ratios_are_from_pairs_of_the_same_round(tmp_path):
    drift = {1: 1.0, 2: 0.5, 3: 0.9, 4: 1.1}  # round -> speed of the machine, a factor
    rows = rows_of(tmp_path, lambda job: MadeUp(speed=SPEEDS[job.implementation] * drift[job.round]), repeats=4)
    tf, pt = rows.loc["tf"], rows.loc["pt"]
    assert list(rows.index) == ["tf", "pt", "ptl"]
    assert pt["images_per_second"] == pytest.approx(3000 * 0.95)
    assert (pt["images_per_second_low"], pt["images_per_second_high"]) == pytest.approx((2400, 3075))
    assert pt["ratio"] == pytest.approx(3) and pt["verdict"] == "faster" and pt["num_rounds"] == 4
    assert tf["ratio"] == 1 and pd.isna(tf["verdict"]) and pd.isna(tf["ratio_low"])


def test_rounds_in_which_one_is_missing_or_was_made_later_make_no_pair(tmp_path):
    facts = {("pt", 2): {"failure": "exit status 1"}, ("ptl", 3): {"session": 2}}
    rows = rows_of(tmp_path, lambda job: fast(job, **facts.get((job.implementation, job.round), {})), repeats=4)
    assert rows["num_rounds"].to_dict() == {"tf": 4, "pt": 3, "ptl": 3}
    assert rows["status"].to_dict() == {"tf": "ok", "pt": "some failed", "ptl": "ok"}
    assert "1 of 4 runs failed, the first one: exit status 1" in rows.loc["pt", "note"]
    speeds = [3000 * (1 + 0.01 * (round * 7 % 5)) for round in (1, 3, 4)]
    assert rows.loc["pt", "ratio"] == pytest.approx(paired_ratio(speeds, np.array(speeds) / 3).estimate)


def test_other_data_settings_or_machines_never_share_a_table(tmp_path):
    other = {"pt": {"changes": {"data_sha256": "1" * 64}}}
    rows = rows_of(tmp_path / "data", lambda job: fast(job, **other.get(job.implementation, {})))
    assert rows["table"].to_dict() == {"tf": 1, "ptl": 1, "pt": 2} and rows.loc["pt", "ratio"] == 1
    assert "data_sha256" in rows.loc["pt", "note"]
    # The machine or the device changes halfway: runs are compared only within each half.
    machine = MACHINE.model_copy(update={"processor": "another", "hostname": "node2"})
    for changes, words in (
        ({"machine": machine}, f"processor: {MACHINE.processor} and another"),
        ({"device_name": "another GPU"}, "device: made up and another GPU"),
    ):
        late = {3: changes, 4: changes}
        folder = tmp_path / words[:6]
        found = comparison(folder, lambda job, late=late: fast(job, changes=late.get(job.round)), repeats=4)
        assert list(found.rows["table"]) == [1, 1, 1, 2, 2, 2] and set(found.rows["num_rounds"]) == {2}
        assert words in found.rows["note"][3]


def with_loads(speeds, loads=None):
    return lambda job: MadeUp(turns=made_up_turns(list(speeds[job.implementation]), loads=loads))


def test_a_disturbed_turn_is_left_out_and_its_round_counts(tmp_path):
    speeds = {"tf": np.full(20, 1000.0), "pt": np.where(np.arange(20) < 8, 500.0, 2000.0)}
    loads = np.where(np.arange(20) < 8, 0.6, 0.0).tolist()
    options = {"implementations": ["tf", "pt"], "repeats": 2}
    pt = rows_of(tmp_path / "retake", with_loads(speeds, loads), **options).loc["pt"]
    assert pt["ratio"] == pytest.approx(2) and pt["num_rounds"] == 2 and pt["num_turns"] == 24
    # Fewer quiet turns than a ratio needs: the rounds are disturbed, and count all the same, for speeds as for ratios.
    few = [0.6] * 16 + [0.0] * 4
    found = comparison(tmp_path / "few", with_loads(speeds, few), **options)
    busy = found.rows.set_index("implementation").loc["pt"]
    assert found.missing > 0 and busy["num_turns"] == 40
    assert busy["images_per_second"] < 1900
    assert busy["ratio"] < 1.9 and busy["ratio_high"] > 1.05 * busy["ratio_low"]
    text = shown(tmp_path / "few")
    assert "PyTorch *" in text and "on a busy machine: other programs used 60% of the cores in every round" in text


def test_stalls_are_reported_beside_the_ratio_of_usual_turns(tmp_path):
    """Every tenth turn of TensorFlow takes ten times as long; in the second comparison, because of other programs."""
    slow = np.arange(40) % 10 == 5
    speeds = {"tf": np.where(slow, 100.0, 1000.0), "pt": np.full(40, 1500.0)}
    options = {"implementations": ["tf", "pt"], "repeats": 3}
    found = comparison(tmp_path / "own", with_loads(speeds), **options)
    assert "PyTorch trained 1.50 times as fast as TensorFlow (1.50 to 1.50)\n" in shown(tmp_path / "own")
    stalled = found.rows.set_index("implementation")["stalled"]
    assert stalled["tf"] == pytest.approx(36 / 76) and stalled["pt"] == pytest.approx(0)
    (warning,) = [line for line in found.warnings if "stalls" in line]
    assert warning.startswith("TensorFlow: stalls take 47% of its turns' time, and are not in any speed")
    found = comparison(tmp_path / "others", with_loads(speeds, (0.6 * slow).tolist()), **options)
    assert "PyTorch trained 1.50 times as fast as TensorFlow (1.50 to 1.50)\n" in shown(tmp_path / "others")
    assert not [line for line in found.warnings if "stalls" in line]


# --- Accuracy, times, memory ---


def test_accuracy_is_the_mean_over_seeds_with_students_interval(tmp_path):
    right = {0: 340, 1: 345, 2: 350}
    rows = rows_of(tmp_path, lambda job: MadeUp(accuracies=(0.5, right[job.seed] / 355)), seeds=[0, 1, 2], repeats=2)
    half = 4.302652729911275 * (5 / 355) / 3**0.5  # of three seeds, not of six runs
    for _, row in rows.iterrows():
        assert (row["num_seeds"], row["num_runs"]) == (3, 6)
        found = row["test_accuracy_low"], row["test_accuracy"], row["test_accuracy_high"]
        assert found == pytest.approx((345 / 355 - half, 345 / 355, 345 / 355 + half))
    assert rows_of(tmp_path / "one")["test_accuracy_low"].isna().all()


def test_accuracies_that_differ_by_more_than_chance_are_in_the_conclusions(tmp_path):
    def wrong(job):
        return fast(job, accuracies=(0.5, 0.9 - 0.05 * (job.implementation == "pt")))

    def noisy(job):
        return fast(job, accuracies=(0.5, 0.9 + 0.01 * ((job.seed * 7 + len(job.implementation)) % 5 - 2)))

    for number, seeds in enumerate(([0], [0, 1, 2, 3])):
        comparison(tmp_path / f"{number}", wrong, seeds=seeds)
        words = "accuracies differ by more than chance explains: PyTorch 85.07%, TensorFlow 90.14%"
        assert words in shown(tmp_path / f"{number}")
        comparison(tmp_path / f"noisy-{number}", noisy, seeds=seeds)
        assert "accuracies differ" not in shown(tmp_path / f"noisy-{number}")


def test_phases_add_up_to_what_was_seen_from_outside(tmp_path):
    rows = rows_of(tmp_path, lambda job: MadeUp(process_seconds=12.0 + job.round), repeats=3)
    phases = ("imports", "data", "build", "training", "evaluation", "between", "rest")
    assert set(rows["wall_seconds"]) == {14}  # of the run with the median duration
    assert rows[[f"{phase}_seconds" for phase in phases]].sum(axis=1).to_numpy() == pytest.approx(14)


def test_the_target_is_reached_after_an_epoch_and_its_steps_and_seconds(tmp_path):
    accuracies = {"tf": (0.2, 0.96, 0.97), "pt": (0.96, 0.2, 0.97), "ptl": (0.1, 0.2, 0.3)}

    def make(job):  # with the second seed, Lightning reaches it at once
        of_ptl = (0.97, 0.97, 0.97) if job.seed else accuracies["ptl"]
        return MadeUp(accuracies={**accuracies, "ptl": of_ptl}[job.implementation])

    rows = rows_of(tmp_path, make, target_accuracy=0.95, seeds=[0, 1])
    columns = ["target_reached", "target_epochs", "target_steps", "target_seconds"]
    seconds = 0.64 + 0.5  # an epoch and its evaluation, without start-up
    assert list(rows.loc["tf", columns]) == pytest.approx([2, 2, 20, 2 * seconds])
    assert list(rows.loc["pt", columns]) == pytest.approx([2, 1, 10, seconds])  # the first time
    # No mean over those alone that reached it.
    assert rows.loc["ptl", "target_reached"] == 1 and rows.loc["ptl", columns[1:]].isna().all()


# --- Which rows are the same training ---


def phases(between):
    """A run that spends so many seconds of its epochs in neither training nor evaluation."""
    known = {"imports": 2.0, "data": 0.0, "build": 1.0, "training": 4.0, "evaluation": 1.0, "waiting": 0.0}
    known |= {"between": between}
    return {"phase_seconds": known | {"rest": 11.5 - sum(known.values())}}


WRONG, UNPROVED = "different training", "not proved"
OTHER_CODE = {"changes": {"code_sha256": "1" * 64}}
# The note: what is true of all runs of a row, what of the second one alone, and the row's status.
DEPARTURES = {
    "step 1 of 20": ({"proof_factor": 1 + 1e-9}, {}, WRONG),
    "seed 0, round 1, after step 1, ...": ({"changes": {"replicas_differ": "after step 1, ..."}}, {}, WRONG),
    "seed 0, round 2, step 7: unchanged": ({"proof_factor": 1 + 1e-9}, {"wrong_step": "unchanged"}, WRONG),
    "the 64-bit run of pt failed: exit status 1; see ": ({"proof_failure": "exit status 1"}, {}, UNPROVED),
    "was made with other code than its runs": ({}, OTHER_CODE, UNPROVED),
    "38% of the time of its epochs is in neither training nor evaluation, 0% of TensorFlow's": (
        *({"changes": phases(3.0)}, {}, "ok"),
    ),
    "its clock starts after step 4, and TensorFlow's after 5": ({"changes": {"warmup_steps": 4}}, {}, "ok"),
}
# The statuses of all rows if it happens to the first one.
OF_THE_FIRST = {
    # Its proof differs, too: without the audit all others would be called different trainings.
    "seed 0, round 2, step 7: unchanged": [WRONG, UNPROVED, UNPROVED],
    "was made with other code than its runs": [UNPROVED] * 3,
}


@pytest.mark.parametrize("note", DEPARTURES)
def test_a_row_that_is_not_the_same_training_gets_no_ratio_and_a_note(tmp_path, note):
    always, later, status = DEPARTURES[note]

    def happens_to(name):
        def make(job):
            return fast(job, **(always | (later if job.round == 2 else {}) if job.implementation == name else {}))

        return make

    rows = rows_of(tmp_path / "pt", happens_to("pt"), repeats=3)
    assert list(rows["status"]) == ["ok", status, "ok"] and note in rows.loc["pt", "note"]
    assert rows["ratio"].isna().to_dict() == {"tf": False, "pt": True, "ptl": False}
    if of_the_first := OF_THE_FIRST.get(note):
        rows = rows_of(tmp_path / "tf", happens_to("tf"), repeats=3)
        assert list(rows["status"]) == of_the_first and note in rows.loc["tf", "note"]
        assert of_the_first[0] != WRONG or "this row may be right" in rows.loc["pt", "note"]
        said = {WRONG: "no", UNPROVED: UNPROVED}  # the label and the column say the same
        lines = shown(tmp_path / "tf", width=200).splitlines()
        for title, status in zip(("TensorFlow", "PyTorch", "Lightning"), of_the_first, strict=True):
            line = next(line for line in lines if line.startswith(f"{title}: {status}"))
            assert line.rstrip().endswith(said[status]), line
        assert f"same training: {'no: TensorFlow' if WRONG in of_the_first else UNPROVED}" in lines


def test_same_training_is_a_column_with_its_evidence(tmp_path):
    """In 32 bits, losses of the same training may be far apart after a few steps. This is reported as rounding."""
    factors = {"tf": 1.0, "pt": 1 + 4e-7, "ptl": 1 - 4e-7}

    def make(job):
        return fast(job, loss_factor=factors[job.implementation], proof_factor=1 + 1e-9 * (job.name == "ptl"))

    rows = rows_of(tmp_path, make, repeats=3)
    assert pd.isna(rows.loc["tf", "same_training"]) and list(rows["same_training"])[1:] == [True, False]
    assert list(rows["proof_difference"])[1:] == [0, pytest.approx(1e-9, rel=1e-6)]
    assert rows.loc["pt", "loss_difference_first_steps"] == pytest.approx(4e-7, rel=1e-3)
    assert list(rows["audited_steps"]) == [3, 3, 3] and rows.loc["pt", "status"] == "ok"


# --- Sentences ---


def test_the_conclusions_are_sentences(tmp_path):
    def make(job):
        if job.config.mode == "plain":
            return fast(job)
        changes = {"skipped_steps": 3} if job.implementation == "ptl" else None
        return MadeUp(
            speed=fast(job).speed * 1.5, tuned=AutoSettings("bf16-mixed"), loss_factor=1.0003, changes=changes
        )

    both = {"mode": ["plain", "tuned"], "repeats": 4}
    rows = comparison(tmp_path / "both", make, **both).rows
    assert list(rows["settings"]) == ["32-bit", "bf16-mixed"] * 3 and set(rows["status"]) == {"ok"}
    assert rows["note"][5] == "loss scaling skipped 3 of 20 steps"
    assert "modes plain and tuned: 32-bit; TensorFlow tuned bf16-mixed; " in " ".join(shown(tmp_path / "both").split())
    sentences = shown(tmp_path / "both").splitlines()[-10:]
    assert sentences[:3] == [
        "PyTorch tuned trained 1.03 times as fast as Lightning tuned (1.03 to 1.03), the fastest of the other"
        " frameworks",
        "PyTorch plain trained 1.03 times as fast as Lightning plain (1.03 to 1.03)",
        "PyTorch plain trained 3.00 times as fast as TensorFlow plain (3.00 to 3.00)",
    ]
    assert sentences[-3:] == [
        "Lightning tuned trained 1.50 times as fast as Lightning plain (1.50 to 1.50)",
        "same training: yes, proved in 64-bit runs: losses of the same step differ by at most 0",
        "timed runs: steps audited: 4 of each row; each matches the formulas up to rounding",
    ]
    written = (tmp_path / "both" / "results.md").read_text()
    assert "PyTorch plain trained 3.00 times as fast as TensorFlow plain" in written
    # The speed of a different training is not compared with others.
    comparison(tmp_path / "parted", lambda job: fast(job, proof_factor=1 + 0.1 * (job.name == "pt tuned")), **both)
    assert "PyTorch tuned trained" not in shown(tmp_path / "parted")


@pytest.mark.parametrize(
    ("repeats", "sentence"),
    [
        (8, "TensorFlow and PyTorch: no significant difference in speed: ratio 0.99 (0.95 to 1.04)"),
        (2, "TensorFlow trained 1.00 times as fast as PyTorch in 2 rounds, too few to be sure"),
        (1, "TensorFlow trained 1.05 times as fast as PyTorch in 1 round, too few to be sure"),
    ],
)
def test_no_sentence_claims_more_than_the_interval(tmp_path, repeats, sentence):
    def make(job):
        return MadeUp(speed=1000 * (1 + 0.05 * (-1) ** job.round * (job.implementation == "pt")))

    comparison(tmp_path, make, implementations=["tf", "pt"], verify="never", repeats=repeats)
    assert shown(tmp_path).splitlines()[-2:] == [sentence, "same training: not proved"]


def test_the_conclusion_says_what_of_a_tutorials_time_plain_mode_saves(tmp_path):
    speeds = {"tutorial": 100.0, "plain": 250.0}
    options = {"implementations": ["pt"], "mode": ["tutorial", "plain"], "repeats": 4}
    comparison(tmp_path, lambda job: MadeUp(speed=speeds[job.config.mode]), **options)
    assert (
        "PyTorch plain trained 2.50 times as fast as PyTorch tutorial (2.50 to 2.50): 60% of the tutorial's time goes"
        " into images that are transformed one by one\n"
    ) in shown(tmp_path)


# --- Warnings ---


def steady(job, **more):
    return MadeUp(speed=1000 * (1 + 0.002 * ((job.round * 3) % 5)), **more)


def late(**changes):
    """The last two of five rounds have another value."""
    return lambda job: steady(job, changes=changes if job.round > 3 else None)


def on_ptl(number, **facts):
    return lambda job: steady(job, **(facts if (job.implementation, job.round) == ("ptl", number) else {}))


TF, NEVER = {"implementations": ["tf"]}, {"verify": "never"}
NEW_COMMIT, NEW_PACKAGE = {"commit": "b" * 40, "dirty": False}, {"python": "3.11.0", "made-up": "1.1"}
A_FEW_TURNS = made_up_turns([1000.0], loads=[0.03])  # they say nothing of a load that a whole training had
DISTURBED = "other programs disturbed 1 of 5 rounds, with up to 40% of the cores; these are left out of speeds and"
# The facts of the runs, the options, and how the only warning begins.
WARNINGS = [
    (steady, {}, None),
    (lambda job: MadeUp(speed=1000 * (1 + 0.03 * (-1) ** job.round)), {}, None),  # no difference is no reason to warn
    (steady, {"repeats": 1}, "one round only"),
    (steady, NEVER, "no proof that the rows train identically (--verify never)"),
    (lambda job: steady(job, changes=phases(1.0)), TF, None),
    (lambda job: steady(job, changes=phases(3.0)), TF, "TensorFlow: 38% of the time of its epochs is in neither"),
    (on_ptl(3, other_load=0.4), {}, DISTURBED),
    (on_ptl(3, other_load=0.4, turns=A_FEW_TURNS), {}, DISTURBED),
    (on_ptl(5, session=2), {}, "1 of 5 rounds were finished later (--resume): their runs took place at different"),
    (steady, {"threads_per_device": MACHINE.cores + 1, **TF}, f"TensorFlow: 1 x {MACHINE.cores + 1} threads on"),
    (late(versions=NEW_PACKAGE), NEVER | TF, "TensorFlow: not all runs used the same made-up version: 1.0 and 1.1"),
    (late(git=NEW_COMMIT), {}, "the code changed between runs: commits aaaaaaaaaaaa and bbbbbb"),
    (late(code_sha256="1" * 64), NEVER | TF, "the code changed between runs: uncommitted changes at commit aaaaaaaaa"),
    (lambda job: steady(job, audited=False), TF, "TensorFlow: no step of its timed runs was audited: "),
    (lambda job: steady(job, throttled=0.12), TF, "TensorFlow: this container's CPU limit paused it in 12% of the sch"),
    (lambda job: steady(job, group=1 + (job.name == "ptl")), {}, "in 5 of 5 rounds the rows did not fit into memory"),
]


@pytest.mark.parametrize(("make", "options", "begins"), WARNINGS)
def test_each_warning_is_given_where_it_should_be_and_nowhere_else(tmp_path, make, options, begins):
    found = comparison(tmp_path, make, **{"repeats": 5, **options}).warnings
    assert len(found) == (begins is not None), found
    assert all(line.startswith(begins) for line in found), found
