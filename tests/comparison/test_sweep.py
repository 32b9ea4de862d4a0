import io

import pytest
from made_up import MadeUp, comparison
from rich.console import Console

from comparison.measure.sweep import make_sweep_study
from comparison.measure.table import paired_runs
from comparison.show.report.sweep_figures import study_charts
from comparison.show.sentences import study_conclusions
from comparison.show.terminal import print_tables


def test_speed_up_and_efficiency_are_from_pairs_with_the_fewest_devices(tmp_path):
    factor = {("1", "strong"): 1.0, ("2", "strong"): 1.6, ("2", "weak"): 1.9, ("4", "strong"): 2.0, ("4", "weak"): 3.6}

    def make(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * factor[values["devices"], values["scaling"]] * (1 + 0.2 * (job.round % 3)))

    summary = comparison(
        tmp_path, make, sweep=["devices=1,2,4"], repeats=4, implementations=["pt"], threads_per_device=1
    )
    study = make_sweep_study(summary)
    found = {(row.x, row.series): (row.speed_up.estimate, row.ideal, *row.efficiencies) for row in study.rows}
    assert study.kind == "devices" and study.numeric
    assert found == {
        ("1", "PyTorch, strong"): (1.0, 1.0, 1.0),
        ("2", "PyTorch, strong"): pytest.approx((1.6, 2.0, 0.8)),
        ("2", "PyTorch, weak"): pytest.approx((1.9, 2.0, 0.95)),
        ("4", "PyTorch, strong"): pytest.approx((2.0, 4.0, 0.5)),
        ("4", "PyTorch, weak"): pytest.approx((3.6, 4.0, 0.9)),
    }
    batches = {table.first_result.config.batch_size for table in summary.tables if table.variant["scaling"] == "weak"}
    assert batches == {128, 256}


def test_variants_whose_disturbed_rounds_differ_have_a_speed_up(tmp_path):
    disturbed = {("1", 1), ("2", 3)}  # the number of devices, and the round

    def make(job):
        devices = dict(job.variant.values)["devices"]
        return MadeUp(speed=1000 * float(devices), other_load=0.5 if (devices, job.round) in disturbed else 0.0)

    options = {"repeats": 4, "implementations": ["pt"], "threads_per_device": 1, "scaling": "strong"}
    study = make_sweep_study(comparison(tmp_path, make, sweep=["devices=1,2"], **options))
    pairs = paired_runs(*(row.row for row in study.rows))
    assert [(run.record.round, other.record.round) for run, other in pairs] == [(1, 2), (2, 3), (4, 4)]
    assert study.rows[1].speed_up.estimate == pytest.approx(2.0)


def test_nodes_are_swept_as_devices_are(tmp_path):
    factor = {("1", "strong"): 1.0, ("1", "weak"): 1.1, ("2", "strong"): 1.6, ("2", "weak"): 2.09}

    def make(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * factor[values["num-nodes"], values["scaling"]] * (1 + 0.2 * (job.round % 3)))

    options = {"repeats": 4, "implementations": ["pt"], "devices": 2, "threads_per_device": 1}
    summary = comparison(tmp_path, make, sweep=["num-nodes=1,2"], **options)
    study = make_sweep_study(summary)
    found = {(row.x, row.series): (row.speed_up.estimate, row.ideal, *row.efficiencies) for row in study.rows}
    assert (study.kind, study.option) == ("devices", "num-nodes")
    assert found == {
        ("1", "PyTorch, strong"): (1.0, 1.0, 1.0),
        ("2", "PyTorch, strong"): pytest.approx((1.6, 2.0, 0.8)),
        ("1", "PyTorch, weak"): (1.0, 1.0, 1.0),
        ("2", "PyTorch, weak"): pytest.approx((1.9, 2.0, 0.95)),
    }
    assert study_conclusions(study)[:2] == [
        "PyTorch, strong: 1.60 times as fast on 2 nodes (1.60 to 1.60), 80% of the ideal",
        "PyTorch, weak: 1.90 times as fast on 2 nodes (1.90 to 1.90), 95% of the ideal",
    ]
    assert {"sweep-speed-up", "sweep-efficiency"} < {chart.name for chart in study_charts(study)}


def test_nodes_times_devices_is_what_counts(tmp_path):
    def make(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * (int(values["num-nodes"]) * int(values["devices"])) ** 0.5)

    options = {"repeats": 3, "implementations": ["pt"], "threads_per_device": 1, "scaling": "strong"}
    study = make_sweep_study(comparison(tmp_path, make, sweep=["num-nodes=1,2", "devices=1,2"], **options))
    assert study.option == "total devices"
    assert {(row.series, row.x): (row.speed_up.estimate, row.ideal) for row in study.rows} == {
        ("PyTorch, 1, strong", "1"): (1, 1),
        ("PyTorch, 1, strong", "2"): pytest.approx((2**0.5, 2)),
        ("PyTorch, 2, strong", "2"): pytest.approx((2**0.5, 2)),
        ("PyTorch, 2, strong", "4"): pytest.approx((2, 4)),
    }
    assert study_conclusions(study)[1].startswith("PyTorch, 2, strong: 2.00 times as fast with 4 devices")


def test_other_options_swept_with_the_devices_keep_their_own_base(tmp_path):
    def make(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * int(values["devices"]) * (5 if values["momentum"] == "0" else 1))

    options = {"implementations": ["pt"], "scaling": "strong", "threads_per_device": 1}
    study = make_sweep_study(comparison(tmp_path, make, sweep=["momentum=0,0.9", "devices=1,2"], repeats=3, **options))
    assert study.option == "devices"
    assert {(row.series, row.x): row.speed_up.estimate for row in study.rows} == {
        ("PyTorch, 0, strong", "1"): 1,
        ("PyTorch, 0, strong", "2"): pytest.approx(2),
        ("PyTorch, 0.9, strong", "1"): 1,
        ("PyTorch, 0.9, strong", "2"): pytest.approx(2),
    }


def test_any_option_can_be_swept_and_nothing_is_one_without_a_sweep(tmp_path):
    study = make_sweep_study(comparison(tmp_path / "a", sweep=["schedule=constant,cosine"]))
    assert (study.option, study.kind, study.numeric) == ("schedule", "other", False)
    assert [row.x for row in study.rows] == ["constant"] * 3 + ["cosine"] * 3
    assert make_sweep_study(comparison(tmp_path / "b")) is None


def test_a_sweep_is_reported_in_sentences(tmp_path):
    def make(job):
        values, factor = dict(job.variant.values), {"tf": 1, "pt": 3}[job.implementation]
        return MadeUp(speed=1000 * factor * float(values["devices"]) ** 0.5 * (1 + 0.001 * job.round))

    options = {
        "implementations": ["tf", "pt"],
        "repeats": 3,
        "sweep": ["devices=1,4"],
        "scaling": "strong",
        "threads_per_device": 1,
    }
    study = make_sweep_study(comparison(tmp_path / "devices", make, **options))
    assert study_conclusions(study) == [
        "TensorFlow, strong: 2.00 times as fast with 4 devices (2.00 to 2.00), 50% of the ideal",
        "PyTorch, strong: 2.00 times as fast with 4 devices (2.00 to 2.00), 50% of the ideal",
        "highest median speed: PyTorch, with each value of devices",
        "same training: yes, proved for each in 64-bit runs: losses differ by at most 0",
    ]
    speeds = {"tf": {"16": 900, "32": 2000}, "pt": {"16": 1000, "32": 1500}}

    def make(job):
        batch = dict(job.variant.values)["batch-size"]
        accuracy = 0.9 if batch == "16" else 0.8
        return MadeUp(speed=speeds[job.implementation][batch], accuracies=(0.5, accuracy))

    options = {"implementations": ["tf", "pt"], "sweep": ["batch-size=16,32"]}
    study = make_sweep_study(comparison(tmp_path / "batches", make, **options))
    ends = "test accuracy from 80.00% (32) to 90.14% (16)"
    assert study_conclusions(study)[:3] == [
        f"TensorFlow: fastest with batch-size 32 (2,000 images/s), slowest with 16 (900); {ends}",
        f"PyTorch: fastest with batch-size 32 (1,500 images/s), slowest with 16 (1,000); {ends}",
        "highest median speed: PyTorch with batch-size 16; TensorFlow with batch-size 32",
    ]


def test_columns_that_do_not_fit_beside_the_others_stand_below(tmp_path):
    summary = comparison(tmp_path, sweep=["devices=1,2"], scaling="strong", repeats=3)
    console = Console(width=60, file=io.StringIO())
    print_tables(console, summary)
    text = console.file.getvalue()
    assert "speed-up" in text and "efficiency" in text and "interval" in text
    table = text[text.index("images/s") : text.index("the tables of each variant")]
    assert max(map(len, table.splitlines())) <= 60 and "…" not in table
