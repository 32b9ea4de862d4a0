"""A new column is one method, a new option one field, and a new framework a folder and a line."""

import json
import sys

import pytest
from conftest import CPU, changed_code, compare, read_csv, replace_in, run
from made_up import comparison

COLUMNS = "    # --- Columns: speed ---\n"
COLUMN = '''
    @column("runs\\nin all", MAIN, SWEEP_SPEED, form="{:,} runs".format)
    def runs_in_all(self) -> int:
        """Number of runs, with those that have failed."""
        return len(self.runs) + len(self.failed)
'''


def test_a_new_column_is_stored_and_shown_everywhere(tmp_path):
    comparison(tmp_path / "made", implementations=["tf", "pt"], repeats=2)
    comparison(tmp_path / "sweep", implementations=["tf", "pt"], repeats=2, sweep=["batch-size=16,32"])
    code = changed_code(tmp_path / "code", "comparison/measure/row.py", COLUMNS, COLUMNS + COLUMN)
    for name in ("made", "sweep"):
        printed = run(sys.executable, "compare.py", "--report-only", tmp_path / name, cwd=code).stdout
        assert "in all" in printed and "2 runs" in printed
    files = ("results.csv", "results.json", "results.md", "report.html")
    table, stored, markdown, page = ((tmp_path / "made" / name).read_text() for name in files)
    assert "runs_in_all" in table.splitlines()[0].split(",")
    assert [row["runs_in_all"] for row in json.loads(stored)["rows"]] == [2, 2]
    assert "runs in all" in markdown
    assert "<td>2 runs</td>" in page


NEXT_OPTION = "    batch_size: Number = option("
OPTIONS = """\
    mixup: float = option("regularisation", 0.0, ge=0, lt=1, description="blend each image with another one")
    journal: str | None = option("logging", None, description="also keep a journal")
"""


@pytest.mark.slow
def test_compare_treats_a_new_option_as_its_kind_asks_for(project, tmp_path):
    replace_in(project / "common/spec/options.py", NEXT_OPTION, OPTIONS + NEXT_OPTION)
    output, options = tmp_path / "r", ("--implementations", "one", "--max-steps", 20, "--sweep", "batch-size=20,30")
    options = (*options, "--sweep-learning-rate", 0.1, 0.2)
    refused = run(sys.executable, "compare.py", "--mixup", 1, cwd=project, expect=2)
    assert refused.stderr == "compare.py: error: --mixup 1: should be less than 1\n"
    shown, rows = compare(output, *options, "--mixup", 0.2, "--journal", "diary", cwd=project)
    configs = {path.relative_to(output).parts[0]: json.loads(path.read_text()) for path in output.rglob("config.json")}
    assert {name: (config["mixup"], config["journal"]) for name, config in configs.items()} == {
        "runs": (0.2, "diary"),
        "proofs": (0.2, None),
        "rate-search": (0.2, None),
    }
    assert {row["learning_rate"] for row in rows} == {"0.1"}  # both rates do equally well, so the smaller one is used
    runs = read_csv(output / "runs.csv")
    assert {row["mixup"] for row in runs} == {"0.2"} and "journal" not in runs[0]
    assert "regularisation: mixup 0.2" in shown and shown.count("rate search): starting") == 4
    resumed = run(sys.executable, "compare.py", "--resume", output, "--mixup", 0.1, cwd=project, expect=2)
    assert "--mixup 0.1: the comparison in" in resumed.stderr


NEXT_LINE = '    "pt": Implementation('
LINE = '    "np": Implementation("Numpy", "loop written out", "numpy"),\n'
SHORT = (*CPU, "--train-size", 300, "--epochs", 2, "--batch-size", 64, "--nesterov", "true", "--weight-decay", 1e-3)


@pytest.mark.slow
def test_a_new_framework_is_a_row_that_is_proved_to_be_the_same_training(project, tmp_path):
    """The framework is numpy (tests/fakes/np_impl)."""
    replace_in(project / "common/implementations.py", NEXT_LINE, LINE + NEXT_LINE)
    text, rows = compare(tmp_path / "r", "--implementations", "pt", "numpy", *SHORT, cwd=project)
    assert "same training: yes, proved in 64-bit runs" in text and "Numpy" in text
    assert [(row["implementation"], row["status"], row["same_training"]) for row in rows] == [
        ("pt", "ok", ""),
        ("np", "ok", "True"),
    ]
    trained = tmp_path / "r/runs/seed-0/round-1/np"
    options = ("--weights", trained / "model.safetensors", "--format", "json", "--accelerator", "cpu")
    evaluated = json.loads(run(sys.executable, "-m", "np_impl", "evaluate", *options, cwd=project).stdout)
    assert evaluated["test_correct"] == json.loads((trained / "result.json").read_text())["test_correct"]
