"""Which modes compare.py makes rows of, and what it says of them."""

import pytest
from made_up import MadeUp, comparison
from rich.console import Console

from comparison.plan.options import CompareConfig
from comparison.run_maker import default_modes
from comparison.show.export import write_tables
from comparison.show.sentences import conclusions


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, None),
        ({"devices": 2}, None),
        ({"devices": 4}, "4 devices can't share 1,442 training examples equally"),
        ({"devices": 4, "train_size": 1440}, None),
        ({"sweep": ["devices=1,2,3"]}, "--batch-size 64: with --mode tutorial, should be a multiple of the number of"),
        ({"strategy": "fsdp"}, "--strategy fsdp: not with --mode tutorial"),
        ({"accumulate_grad_batches": 2}, "--accumulate-grad-batches 2: not with --mode tutorial"),
    ],
)
def test_a_tutorial_is_a_row_unless_it_would_be_another_training(capsys, options, note):
    options = CompareConfig(**{"accelerator": "cpu", **options})
    modes = default_modes(options, options.train_config(), Console())
    assert modes == (["plain"] if note else ["tutorial", "plain"])
    out = capsys.readouterr().out
    assert f"note: only --mode plain: {note}" in " ".join(out.split()) if note else not out


def test_the_conclusion_says_what_of_a_tutorials_time_plain_mode_saves(tmp_path):
    def make(job):
        return MadeUp(speed={"tutorial": 100.0, "plain": 250.0}[job.config.mode])

    summary = comparison(tmp_path / "r", make, implementations=["pt"], mode=["tutorial", "plain"], repeats=4)
    (line,) = (line for line in conclusions(summary.tables[0]) if "as fast as" in line)
    assert line == (
        "PyTorch plain trained 2.50 times as fast as PyTorch tutorial (2.50 to 2.50): 60% of the tutorial's time goes"
        " into images that are transformed one by one"
    )
    write_tables(summary)
    text = " ".join((tmp_path / "r" / "results.md").read_text().split())
    assert "tutorial: the program that the framework's documentation teaches." in text
    assert "plain: the framework's own step and loop" in text and "tuned: plain, with" not in text
