import json

import jsonschema
import numpy as np
import pytest
from made_up import MACHINE, MadeUp, comparison, made_up_turns

from common.data.datasets import load_dataset
from common.implementations import implementation_title
from common.platform.files import write_json_model
from common.resolve import Settings
from common.spec.options import TrainConfig
from comparison.measure.summary import find_runs, summarise
from comparison.plan.request import Request
from comparison.prove.audits import AUDITS_FILE, Audit, Audits
from comparison.prove.proof import FIRST_BATCH_DIR, MOST_FLOPS, cut_evaluation
from comparison.ratios import paired_ratio
from comparison.show.export import write_tables
from comparison.show.report.page import write_report
from comparison.show.sentences import conclusions, remarks, what_was_compared

SPEEDS = {"tf": 1000.0, "pt": 3000.0, "ptl": 2900.0}


def fast(job, **more):
    """Each implementation has its own speed, which differs a little in every round."""
    return MadeUp(speed=SPEEDS[job.implementation] * (1 + 0.01 * ((job.round * 7 + job.seed) % 5)), **more)


def test_speed_is_a_median_and_ratios_are_from_pairs_of_the_same_round(tmp_path):
    drift = {1: 1.0, 2: 0.5, 3: 0.9, 4: 1.1}  # round -> speed of the machine, a factor

    def make(job):
        return MadeUp(speed=SPEEDS[job.implementation] * drift[job.round])

    (table,) = comparison(tmp_path, make, repeats=4).tables
    assert [row.implementation for row in table.rows] == ["tf", "pt", "ptl"]
    tf, pt, _ = table.rows
    assert pt.images_per_second == pytest.approx(3000 * 0.95)
    assert (pt.images_per_second_q1, pt.images_per_second_q3) == pytest.approx((2400, 3075))
    assert pt.ratio == pytest.approx(3) and pt.verdict == "faster" and pt.num_rounds == 4
    assert (tf.ratio, tf.verdict, tf.ratio_low) == (1, None, None)


def test_rounds_in_which_one_is_missing_make_no_pair(tmp_path):
    def make(job):
        return fast(job, failure="exit status 1" if (job.implementation, job.round) == ("pt", 2) else None)

    summary = comparison(tmp_path, make, repeats=4)
    _, pt, ptl = summary.rows
    assert (pt.num_rounds, pt.num_runs, pt.num_failed, pt.status) == (3, 3, 1, "some failed")
    assert "1 of 4 runs failed, the first one: exit status 1" in pt.note
    assert ptl.num_rounds == 4 and ptl.status == "ok" and not summary.succeeded
    speeds = [3000 * (1 + 0.01 * (round * 7 % 5)) for round in (1, 3, 4)]
    assert pt.ratio == pytest.approx(paired_ratio(speeds, [speed / 3 for speed in speeds]).estimate)


def test_runs_of_different_times_make_no_pair(tmp_path):
    def make(job):
        return fast(job, session=2 if job.implementation == "ptl" or job.round == 4 else 1)

    summary = comparison(tmp_path, make, repeats=4)
    assert [row.num_rounds for row in summary.rows] == [4, 4, 1]
    assert summary.rows[2].verdict is None and summary.rows[2].images_per_second
    assert any(line.startswith("3 of 4 rounds were finished later") for line in summary.warnings)


def test_runs_on_another_kind_of_gpu_have_a_table_of_their_own(tmp_path):
    late = {2: {"device_name": "another GPU"}}
    summary = comparison(tmp_path, lambda job: fast(job, changes=late.get(job.round)), repeats=2)
    assert [[row.num_rounds for row in table.rows] for table in summary.tables][1:] == [[1, 1, 1]]
    assert "device: made up and another GPU" in summary.tables[1].apart


def test_accuracy_is_the_mean_over_seeds_with_its_interval(tmp_path):
    accuracy = {0: 340, 1: 345, 2: 350}

    def make(job):
        return MadeUp(accuracies=(0.5, accuracy[job.seed] / 355))

    (table,) = comparison(tmp_path, make, seeds=[0, 1, 2], repeats=2).tables
    for row in table.rows:
        assert row.num_seeds == 3 and row.num_runs == 6
        assert row.test_accuracy == pytest.approx(345 / 355)
        half = 4.302652729911275 * (5 / 355) / 3**0.5  # of three seeds, not of six runs
        accuracy = row.test_accuracy_low, row.test_accuracy_high
        assert accuracy == pytest.approx((345 / 355 - half, 345 / 355 + half))
    assert comparison(tmp_path / "one").rows[0].test_accuracy_low is None


def test_one_that_parts_in_64_bits_is_a_different_training(tmp_path):
    def make(job):
        return fast(job, proof_factor=1 + 1e-9 * (job.implementation == "ptl"))

    summary = comparison(tmp_path, make, seeds=[0, 1])
    tf, pt, ptl = summary.rows
    assert (tf.status, pt.status, ptl.status) == ("ok", "ok", "different training")
    assert (tf.same_training, pt.same_training, ptl.same_training) == (None, True, False)
    assert (pt.proof_difference, ptl.proof_difference) == (0, pytest.approx(1e-9, rel=1e-6))
    assert ptl.ratio is None and "step 1 of 20" in ptl.note and pt.loss_difference_all_steps == 0
    assert not summary.succeeded


def test_rounding_in_the_runs_themselves_accuses_nobody(tmp_path):
    """In 32 bits, losses of the same training may be far apart after a few steps. This is reported as rounding."""
    factors = {"tf": 1.0, "pt": 1 + 4e-7, "ptl": 1 - 4e-7}
    summary = comparison(tmp_path, lambda job: fast(job, loss_factor=factors[job.implementation]))
    assert [row.status for row in summary.rows] == ["ok"] * 3 and summary.succeeded
    assert summary.rows[1].loss_difference_first_steps == pytest.approx(4e-7, rel=1e-3)


def test_a_row_whose_audit_fails_is_a_different_training_and_no_other_row_is_blamed(tmp_path):
    def wrong(name):
        def make(job):
            is_wrong = job.implementation == name and job.round == 2
            # The first row's proof differs, too: without the audit all others would be called different trainings.
            return fast(
                job,
                wrong_step="nothing has changed" if is_wrong else None,
                proof_factor=1 + 1e-9 * (job.implementation == name),
            )

        return make

    summary = comparison(tmp_path / "second", wrong("pt"), repeats=3)
    tf, pt, ptl = summary.rows
    assert [tf.status, pt.status, ptl.status] == ["ok", "different training", "ok"] and not summary.succeeded
    assert (tf.same_training, pt.same_training, ptl.same_training) == (None, False, True)
    assert "seed 0, round 2, step 7: nothing has changed" in pt.note and pt.ratio is None and ptl.ratio_min
    assert (tf.audited_steps, pt.audited_steps, ptl.audited_steps) == (3, 2, 3)
    tf, pt, ptl = comparison(tmp_path / "first", wrong("tf"), repeats=3).rows
    assert [tf.status, pt.status, ptl.status] == ["different training", "not proved", "not proved"]
    assert "TensorFlow trains differently; this row may be right" in ptl.note and ptl.ratio is None


def test_a_row_whose_replicas_have_different_weights_is_a_different_training(tmp_path):
    def make(job):
        return fast(job, changes={"replicas_differ": "after step 1, ..."} if job.implementation == "pt" else None)

    for verify in ("auto", "never"):
        tf, pt, ptl = comparison(tmp_path / verify, make, verify=verify).rows
        assert [tf.status, pt.status, ptl.status] == ["ok", "different training", "ok"] and pt.ratio is None
        assert pt.note.endswith("seed 0, round 1, after step 1, ...")


def test_losses_that_part_in_64_bits_accuse_nobody_if_every_step_is_right(tmp_path):
    def make(job):
        return fast(job, proof_factor=1 + 1e-9 * (job.implementation == "pt"))

    comparison(tmp_path, make)
    right = Audit(first_step=1, last_step=20, same=True, difference=1e-15, explained=1e-14)
    for name, steps in (("tf", 20), ("pt", 19)):
        again = tmp_path / "proofs" / name / FIRST_BATCH_DIR
        again.mkdir()
        audit = right.model_copy(update={"last_step": steps})
        write_json_model(again / AUDITS_FILE, Audits(steps=[audit], evaluations=[right], state_bytes=1, seconds=1))
    request = Request.read(tmp_path, "")
    runs, missing = find_runs(tmp_path, request)
    assert summarise(tmp_path, request, runs, len(missing)).rows[1].status == "different training"  # one is not proved
    write_json_model(again / AUDITS_FILE, Audits(steps=[right], evaluations=[right], state_bytes=1, seconds=1))
    assert [row.status for row in summarise(tmp_path, request, runs, len(missing)).rows] == ["ok"] * 3


def test_accuracies_that_differ_by_more_than_chance_are_in_the_conclusions(tmp_path):
    def wrong(job):
        return fast(job, accuracies=(0.5, 0.9 - 0.05 * (job.implementation == "pt")))

    def noisy(job):
        return fast(job, accuracies=(0.5, 0.9 + 0.01 * ((job.seed * 7 + len(job.implementation)) % 5 - 2)))

    words = "accuracies differ by more than chance explains: PyTorch 85.07%, TensorFlow 90.14%"
    for number, seeds in enumerate(([0], [0, 1, 2, 3])):
        assert words in conclusions(comparison(tmp_path / str(number), wrong, seeds=seeds).tables[0])
        found = conclusions(comparison(tmp_path / f"noisy-{number}", noisy, seeds=seeds).tables[0])
        assert not any("accuracies differ" in line for line in found)


def test_runs_whose_clocks_start_after_other_steps_share_no_ratio(tmp_path):
    def make(job):
        return fast(job, changes={"warmup_steps": 4} if job.implementation == "pt" else None)

    tf, pt, ptl = comparison(tmp_path, make, repeats=4).rows
    assert pt.ratio is None and ptl.ratio is not None
    assert "its clock starts after step 4, and TensorFlow's after 5" in pt.note


def test_without_proof_there_is_no_ratio_unless_none_was_asked_for(tmp_path):
    def make(job):
        return fast(job, proof_failure="exit status 1" if job.implementation == "pt" else None)

    summary = comparison(tmp_path / "failed", make)
    tf, pt, ptl = summary.rows
    assert [tf.status, pt.status, ptl.status] == ["ok", "not proved", "ok"] and not summary.succeeded
    assert pt.ratio is None and "the 64-bit run of pt failed: exit status 1; see " in pt.note
    never = comparison(tmp_path / "never", lambda job: fast(job, proof_factor=None), verify="never")
    assert [row.status for row in never.rows] == ["ok"] * 3 and never.rows[1].ratio_min and never.succeeded
    assert any("--verify never" in line for line in never.warnings)
    assert not any("--verify never" in line for line in summary.warnings)


@pytest.mark.parametrize("changes", [{"code_sha256": "1" * 64}, {"versions": {"python": "3.11.0", "made-up": "2.0"}}])
@pytest.mark.parametrize("changed", ["tf", "pt"])
def test_runs_of_other_code_or_versions_than_the_proof_are_not_proved(tmp_path, changes, changed):
    def make(job):
        return fast(job, changes=changes if (job.implementation, job.round) == (changed, 2) else None)

    (table,) = comparison(tmp_path, make, implementations=["tf", "pt"], repeats=2).tables
    tf, pt = table.rows
    what, title = "code" if "code_sha256" in changes else "versions", implementation_title(changed)
    for row in (tf, pt) if changed == "tf" else (pt,):
        assert (
            row.status == "not proved" and f"the proof of {title} was made with other {what} than its runs" in row.note
        )
    assert pt.ratio is None and (tf.status == "ok") == (changed == "pt")


def test_a_proof_that_takes_long_evaluates_few_images():
    """Divided by the devices, the cut test set leaves the same remainder as the whole one. Short ones are not cut."""
    digits = load_dataset(TrainConfig())
    flops = int(MOST_FLOPS)
    for devices in (1, 2, 3):
        config = TrainConfig(devices=devices, batch_size=16, verify_steps=20)
        assert cut_evaluation(config, digits, 1) == {}
        size = cut_evaluation(config, digits, flops)["test_size"]
        assert 32 <= size <= 32 + devices and (size - len(digits.test_images)) % devices == 0
    assert cut_evaluation(TrainConfig(batch_size=512), digits, flops) == {}  # fewer test examples than two batches


def test_other_data_settings_or_machines_never_share_a_table(tmp_path):
    elsewhere = MACHINE.model_copy(update={"processor": "another", "hostname": "node2"})
    for changes, words in (
        ({"data_sha256": "1" * 64}, "data_sha256"),
        ({"machine": elsewhere}, f"processor: {MACHINE.processor} and another"),
    ):
        folder = tmp_path / words[:6]
        summary = comparison(
            folder, lambda job, c=changes: fast(job, changes=c if job.implementation == "pt" else None)
        )
        assert [[row.implementation for row in table.rows] for table in summary.tables] == [["tf", "ptl"], ["pt"]]
        assert words in summary.tables[1].apart and words in summary.tables[1].rows[0].note
        assert summary.tables[1].rows[0].ratio == 1 and not summary.succeeded
    # The machine changes halfway: runs are compared only within each half.
    summary = comparison(
        tmp_path / "half", lambda job: fast(job, changes={"machine": elsewhere} if job.round > 2 else None), repeats=4
    )
    assert [[row.num_rounds for row in table.rows] for table in summary.tables] == [[2, 2, 2], [2, 2, 2]]
    assert any("not all runs are from the same machine" in line for line in summary.warnings)


def test_both_modes_are_rows_of_one_table_that_names_their_settings(tmp_path):
    found = {"tf": Settings(compile=True), "pt": Settings("bf16-mixed"), "ptl": Settings("bf16-mixed")}

    def make(job):
        changes = {"skipped_steps": 3} if job.name == "ptl tuned" else None
        factor = 1.0003 if job.config.mode == "tuned" and job.implementation != "tf" else 1.0
        return fast(job, tuned=found[job.implementation], loss_factor=factor, changes=changes)

    summary = comparison(tmp_path / "both", make, mode=["plain", "tuned"], repeats=3)
    (table,) = summary.tables
    assert [row.name for row in table.rows] == ["tf", "tf tuned", "pt", "pt tuned", "ptl", "ptl tuned"]
    assert [row.status for row in table.rows] == ["ok"] * 6 and summary.succeeded
    assert [row.settings for row in table.rows][:4] == ["32-bit", "32-bit, compiled", "32-bit", "bf16-mixed"]
    words = "modes plain and tuned: 32-bit; TensorFlow tuned 32-bit, compiled; PyTorch tuned bf16-mixed"
    words += "; Lightning tuned bf16-mixed"
    assert words in what_was_compared(table)
    assert table.rows[5].note == "loss scaling skipped 3 of 20 steps"
    assert all(row.ratio and row.num_rounds == 3 for row in table.rows)
    (table,) = comparison(tmp_path / "tuned", make, mode=["tuned"]).tables
    assert [row.name for row in table.rows] == ["tf tuned", "pt tuned", "ptl tuned"]
    (table,) = comparison(tmp_path / "plain", make).tables
    assert "mode plain: 32-bit" in what_was_compared(table)


def test_the_conclusions_are_sentences(tmp_path):
    def make(job):
        return fast(job) if job.config.mode == "plain" else MadeUp(speed=fast(job).speed * 1.5)

    both = {"mode": ["plain", "tuned"], "repeats": 4}
    summary = comparison(tmp_path / "both", make, **both)
    assert conclusions(summary.tables[0]) == [
        "PyTorch tuned, the fastest row, trained 1.03 times as fast as Lightning tuned (1.03 to 1.03), the fastest of"
        " the other frameworks",
        "PyTorch plain trained 1.03 times as fast as Lightning plain (1.03 to 1.03)",
        "PyTorch plain trained 3.00 times as fast as TensorFlow plain (3.00 to 3.00)",
        "PyTorch tuned trained 1.03 times as fast as Lightning tuned (1.03 to 1.03)",
        "PyTorch tuned trained 3.00 times as fast as TensorFlow tuned (3.00 to 3.00)",
        "TensorFlow tuned trained 1.50 times as fast as TensorFlow plain (1.50 to 1.50)",
        "PyTorch tuned trained 1.50 times as fast as PyTorch plain (1.50 to 1.50)",
        "Lightning tuned trained 1.50 times as fast as Lightning plain (1.50 to 1.50)",
        "same training: yes, proved in 64-bit runs: losses of the same step differ by at most 0",
        "timed runs: steps audited: 4 of each row; each matches the formulas up to rounding",
    ]
    write_tables(summary)
    write_report(summary)
    for name in ("results.md", "report.html"):
        assert "PyTorch plain trained 3.00 times as fast as TensorFlow plain" in (tmp_path / "both" / name).read_text()
    # The speed of a different training is not compared with others.
    parted = comparison(
        tmp_path / "parted", lambda job: fast(job, proof_factor=1 + 0.1 * (job.name == "pt tuned")), **both
    )
    assert not any("PyTorch tuned" in line for line in conclusions(parted.tables[0]))
    assert conclusions(comparison(tmp_path / "alone", make, implementations=["pt"]).tables[0]) == []


def test_reliability_is_a_sentence(tmp_path):
    def make(job):
        return MadeUp(speed=1000 * (1 + 0.05 * (-1) ** job.round * (job.implementation == "pt")))

    options = {"implementations": ["tf", "pt"], "verify": "never"}
    assert conclusions(comparison(tmp_path / "8", make, repeats=8, **options).tables[0]) == [
        "TensorFlow and PyTorch: no significant difference in speed: ratio 0.99 (0.95 to 1.04)",
        "same training: not proved",
    ]
    assert conclusions(comparison(tmp_path / "2", make, repeats=2, **options).tables[0])[0] == (
        "TensorFlow trained 0.95 to 1.05 times as fast as PyTorch in 2 rounds, too few to be sure"
    )
    (line, _) = conclusions(comparison(tmp_path / "1", make, **options).tables[0])
    assert line == "TensorFlow trained 1.05 times as fast as PyTorch in 1 round, too few to be sure"


def test_phases_add_up_to_what_was_seen_from_outside(tmp_path):
    summary = comparison(tmp_path, lambda job: MadeUp(process_seconds=12.0 + job.round), repeats=3)
    for run in summary.runs:
        assert sum(run.phase_seconds.values()) == pytest.approx(run.record.process_seconds)
    for row in summary.rows:
        parts = (
            row.imports_seconds,
            row.data_seconds,
            row.build_seconds,
            row.training_seconds,
            row.evaluation_seconds,
            row.between_seconds,
            row.rest_seconds,
        )
        assert row.wall_seconds == 14 and sum(parts) == pytest.approx(14)  # the run with the median duration


def test_the_target_is_reached_after_an_epoch_and_its_steps_and_seconds(tmp_path):
    accuracies = {"tf": (0.2, 0.96, 0.97), "pt": (0.96, 0.2, 0.97), "ptl": (0.1, 0.2, 0.3)}

    def make(job):
        return MadeUp(accuracies=accuracies[job.implementation])

    tf, pt, ptl = comparison(tmp_path, make, target_accuracy=0.95, repeats=2).rows
    assert (tf.target_reached, tf.target_epochs, tf.target_steps) == (2, 2, 20)
    assert tf.target_seconds == pytest.approx(2 * (0.64 + 0.5))  # two epochs and their evaluations
    # The first time that it is reached, without start-up.
    assert (pt.target_epochs, pt.target_steps, pt.target_seconds) == (1, 10, pytest.approx(0.64 + 0.5))
    assert (ptl.target_reached, ptl.target_epochs, ptl.target_seconds) == (0, None, None)
    assert comparison(tmp_path / "none").rows[0].target_reached is None


def test_a_mean_over_those_alone_that_reached_the_target_is_not_given(tmp_path):
    def make(job):
        return MadeUp(accuracies=(0.5, 0.9 if job.seed else 0.97))

    rows = comparison(tmp_path, make, target_accuracy=0.95, seeds=[0, 1]).rows
    assert [(row.target_reached, row.num_runs, row.target_seconds) for row in rows] == [(1, 2, None)] * 3


def test_unknown_is_null_and_never_zero(tmp_path):
    def make(job):
        return MadeUp(changes={"joules_per_image": 0.002, "energy_source": "RAPL"} if job.round == 1 else None)

    summary = comparison(tmp_path, make, repeats=2)
    assert all(row.joules_per_image is None for row in summary.rows)  # it is known in one round only
    write_tables(summary)
    header, *lines = [line.split(",") for line in (tmp_path / "results.csv").read_text().splitlines()]
    assert all(line[header.index("joules_per_image")] == "" for line in lines)


def test_results_json_keeps_its_published_schema(tmp_path):
    summary = comparison(tmp_path, fast, repeats=3, sweep=["batch-size=32,64"], target_accuracy=0.8)
    write_tables(summary)
    content = json.loads((tmp_path / "results.json").read_text())
    schema = json.loads((tmp_path / content["$schema"]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(content, schema)
    assert len(content["rows"]) == 6 and len(content["runs"]) == 18
    content["rows"][0]["ratio"] = "fast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema)


def test_a_limit_on_the_processors_instructions_is_reported_beside_the_table_and_in_the_report(tmp_path):
    told = "instructions up to AVX512_CORE_FP16 (ONEDNN_MAX_CPU_ISA), since made up"
    limit = {"cpu_instructions": "AVX512_CORE_FP16", "processor_note": told}

    def make(job):
        return fast(job, changes=limit if job.implementation == "pt" else {})

    summary = comparison(tmp_path, make, repeats=2)
    assert [row.note for row in summary.rows] == [None, told, None] and summary.succeeded
    assert f"PyTorch: {told}" in remarks(summary)
    write_tables(summary)
    write_report(summary)
    for name in ("results.csv", "results.md", "report.html"):
        assert told in (tmp_path / name).read_text(), name
    assert "AVX512_CORE_FP16" in (tmp_path / "runs.csv").read_text()


@pytest.mark.parametrize("implementations", [("tf", "pt"), ("pt", "tf")])
def test_stalls_are_reported_beside_the_ratio_of_usual_turns(tmp_path, implementations):
    """Every tenth turn of TensorFlow takes ten times as long; those of the second comparison are of others' making."""

    def make(job, load=0.0):
        slow = np.arange(40) % 10 == 5
        speeds = np.where(slow, 100.0, 1000.0) if job.implementation == "tf" else np.full(40, 1500.0)
        return MadeUp(turns=made_up_turns(speeds.tolist(), loads=[load * one for one in slow]))

    options = {"implementations": implementations, "repeats": 3}
    summary = comparison(tmp_path / "own", make, **options)
    assert conclusions(summary.tables[0])[0] == "PyTorch trained 1.50 times as fast as TensorFlow (1.50 to 1.50)"
    rows = {row.implementation: row for row in summary.tables[0].rows}
    assert rows["tf"].stalled == pytest.approx(36 / 76) and rows["pt"].stalled == pytest.approx(0)
    (warning,) = [one for one in summary.warnings if "stalls" in one]
    assert warning.startswith("TensorFlow: stalls take 47% of its turns' time, and are not in any speed")

    summary = comparison(tmp_path / "others", lambda job: make(job, load=0.6), **options)
    assert conclusions(summary.tables[0])[0] == "PyTorch trained 1.50 times as fast as TensorFlow (1.50 to 1.50)"
    assert not [one for one in summary.warnings if "stalls" in one]
