import pytest
from made_up import MadeUp, comparison

from comparison.sweep import make_study


def test_speed_up_and_efficiency_are_from_pairs_with_the_fewest_devices(tmp_path):
    factor = {("1", "strong"): 1.0, ("2", "strong"): 1.6, ("2", "weak"): 1.9, ("4", "strong"): 2.0, ("4", "weak"): 3.6}

    def make(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * factor[values["devices"], values["scaling"]] * (1 + 0.2 * (job.round % 3)))

    summary = comparison(
        tmp_path, make, sweep=["devices=1,2,4"], repeats=4, implementations=["pt"], threads_per_device=1
    )
    study = make_study(summary)
    found = {(one.x, one.series): (one.speed_up.estimate, one.ideal, *one.efficiencies) for one in study.rows}
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


def test_other_options_swept_with_the_devices_keep_their_own_base(tmp_path):
    def make(job):
        values = dict(job.variant.values)
        return MadeUp(speed=1000 * int(values["devices"]) * (5 if values["momentum"] == "0" else 1))

    options = {"implementations": ["pt"], "scaling": "strong", "threads_per_device": 1}
    study = make_study(comparison(tmp_path, make, sweep=["momentum=0,0.9", "devices=1,2"], repeats=3, **options))
    assert study.option == "devices"
    assert {(one.series, one.x): one.speed_up.estimate for one in study.rows} == {
        ("PyTorch, 0, strong", "1"): 1,
        ("PyTorch, 0, strong", "2"): pytest.approx(2),
        ("PyTorch, 0.9, strong", "1"): 1,
        ("PyTorch, 0.9, strong", "2"): pytest.approx(2),
    }


def test_any_option_can_be_swept_and_nothing_is_one_without_a_sweep(tmp_path):
    study = make_study(comparison(tmp_path / "a", sweep=["schedule=constant,cosine"]))
    assert (study.option, study.kind, study.numeric) == ("schedule", "other", False)
    assert [one.x for one in study.rows] == ["constant"] * 3 + ["cosine"] * 3
    assert make_study(comparison(tmp_path / "b")) is None
