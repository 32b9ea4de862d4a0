import io
import re

import pytest
from made_up import MACHINE, MadeUp, comparison
from rich.console import Console

from comparison.show.export import write_tables
from comparison.show.report.page import write_report
from comparison.show.sentences import changes
from comparison.show.tables import baseline_table
from comparison.show.terminal import print_tables


def beside(tmp_path, now, then=lambda job: wobbly(job), **options):
    """The lines that compare a comparison, `now`, with an earlier one, `then`."""
    options = {"repeats": 5, "implementations": ["pt"], **options}
    comparison(tmp_path / "then", then, **options)
    return changes(comparison(tmp_path / "now", now, **options, baseline=tmp_path / "then"))


def wobbly(job, factor=1.0, **more):
    return MadeUp(speed=1000 * factor * (1 + 0.01 * ((job.round * 3) % 5)), **more)


def test_the_same_again(tmp_path):
    lines = beside(tmp_path, wobbly)
    assert lines[0] == "PyTorch: the same training (largest loss difference in 64-bit runs: 0e+00)"
    assert lines[1] == "PyTorch: accuracy 90.14%, now 90.14% (+0.00 points)"
    assert "speed 1.00 times the baseline's, 95 % interval 0.98 to 1.02: no difference shown" in lines[2]
    assert "changed since then: nothing that is recorded; the machine's load may differ too" in lines[2]
    assert len(lines) == 3


def test_a_change_of_speed_versions_and_code(tmp_path):
    changed = {"versions": {"python": "3.11.0", "made-up": "2.0"}, "git": {"commit": "b" * 40, "dirty": False}}
    lines = beside(tmp_path, lambda job: wobbly(job, 1.5, changes=changed))
    assert "PyTorch: versions changed: made-up 1.0, now 2.0" in lines
    assert f"PyTorch: code changed: commit {'a' * 12}, now {'b' * 12}" in lines
    assert "speed 1.50 times" in lines[-1] and "faster" in lines[-1] and "versions, code" in lines[-1]


@pytest.mark.parametrize("same", [True, False])
def test_uncommitted_changes_are_kept_apart(tmp_path, same):
    then = {"git": {"commit": "a" * 40, "dirty": True}}
    now = then | ({} if same else {"code_sha256": "1" * 64})
    lines = beside(tmp_path, lambda job: wobbly(job, changes=now), lambda job: wobbly(job, changes=then))
    code = f"{'a' * 12} with uncommitted changes"
    assert (f"PyTorch: code changed: commit {code}, now with other uncommitted changes" in lines) != same
    assert ("changed since then: code" in lines[-1]) != same


def test_a_difference_of_machines_is_not_called_one_of_code(tmp_path):
    other = MACHINE.model_copy(update={"processor": "another"})
    lines = beside(tmp_path, lambda job: wobbly(job, 2.0, changes={"machine": other}))
    assert "the machine changed" in lines[-1] and "so speeds are not compared" in lines[-1]
    assert not any("faster" in line or "times the baseline" in line for line in lines)


@pytest.mark.parametrize("options", [{"batch_size": 32}, {"learning_rate": 0.1}])
def test_another_experiment_is_not_set_beside_it(tmp_path, options):
    comparison(tmp_path / "then", wobbly, implementations=["pt"])
    now = comparison(tmp_path / "now", wobbly, implementations=["pt"], baseline=tmp_path / "then", **options)
    (line,) = changes(now)
    assert "not the same experiment" in line and next(iter(options)) in line


def test_other_initial_weights_are_another_experiment(tmp_path):
    now = {"initial_weights_sha256": "f" * 64}
    (line,) = beside(tmp_path, lambda job: wobbly(job, accuracies=(0.2, 0.35), changes=now))
    assert "not the same experiment" in line and "initial_weights_sha256: " in line and "ffffffffffff" in line


def test_another_training_and_another_accuracy(tmp_path):
    lines = beside(tmp_path, lambda job: wobbly(job, proof_factor=1.01, accuracies=(0.5, 0.8)))
    assert any(line.startswith("PyTorch: not the same training: step 1 of 20 (epoch 1)") for line in lines)
    assert "PyTorch: accuracy 90.14%, now 80.00% (-10.14 points)" in lines


def test_what_the_baseline_lacks(tmp_path):
    comparison(tmp_path / "then", wobbly, implementations=["tf"])
    now = comparison(tmp_path / "now", wobbly, implementations=["pt"], baseline=tmp_path / "then")
    assert changes(now) == ["PyTorch: not in the baseline"] and baseline_table(now.changes).empty


def test_a_verdict_for_each_row(tmp_path):
    options = {"repeats": 5, "implementations": ["tf", "pt", "ptl"]}
    factors = {"tf": 1.0, "pt": 1.5, "ptl": 0.5}
    comparison(tmp_path / "then", wobbly, **options)
    now = comparison(
        tmp_path / "now", lambda job: wobbly(job, factors[job.implementation]), **options, baseline=tmp_path / "then"
    )
    cells = baseline_table(now.changes)
    assert list(cells["\nverdict"]) == ["no difference shown", "faster", "slower"]
    assert list(cells["\nratio"]) == ["1.00", "1.50", "0.50"] and list(cells["same\ntraining"]) == ["yes"] * 3
    assert list(cells["images/s\nthen"]) == ["1,020"] * 3 and set(cells["accuracy\npoints"]) == {"+0.00"}
    console = Console(width=80, file=io.StringIO())
    print_tables(console, now, details=False)
    text = console.file.getvalue()
    assert f"beside {tmp_path / 'then'}:\n" in text and re.search(r"PyTorch +\+0\.00 +1,020 +1,530 +1\.50", text)
    write_report(now)
    write_tables(now)
    assert "Compared with" in (tmp_path / "now" / "report.html").read_text()
    assert "| PyTorch | +0.00 | 1,020 | 1,530 | 1.50 |" in (tmp_path / "now" / "results.md").read_text()


def test_seeds_of_which_none_is_in_both(tmp_path):
    comparison(tmp_path / "then", wobbly, implementations=["pt"], seeds=[0])
    now = comparison(tmp_path / "now", wobbly, implementations=["pt"], seeds=[1], baseline=tmp_path / "then")
    assert changes(now)[0].startswith("PyTorch: unknown whether the training is the same: not the same settings: ")


def test_a_baseline_that_is_gone_loses_nothing_but_itself(tmp_path):
    now = comparison(tmp_path / "now", wobbly, implementations=["pt"], baseline=tmp_path / "then")
    (line,) = changes(now)
    assert "holds no comparison" in line and now.rows[0].images_per_second
