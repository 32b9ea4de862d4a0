"""A made-up column, one method of `Row`: everything that stores or shows rows then has it."""

import json
import sys

from conftest import changed_code, run
from made_up import comparison

PLACE = "    # --- Columns: speed ---\n"
ADDED = '''
    @column("runs\\nin all", MAIN, SWEEP_SPEED, form="{:,} runs".format)
    def runs_in_all(self) -> int:
        """Number of runs, with those that have failed."""
        return len(self.runs) + len(self.failed)
'''


def test_a_new_column_is_one_method(tmp_path):
    comparison(tmp_path / "made", implementations=["tf", "pt"], repeats=2)
    comparison(tmp_path / "sweep", implementations=["tf", "pt"], repeats=2, sweep=["batch-size=16,32"])
    code = changed_code(tmp_path / "code", "comparison/measure/row.py", PLACE, PLACE + ADDED)
    for name in ("made", "sweep"):
        printed = run(sys.executable, "compare.py", "--report-only", tmp_path / name, cwd=code).stdout
        assert "in all" in printed and "2 runs" in printed
    files = ("results.csv", "results.json", "results.md", "report.html")
    table, stored, markdown, page = ((tmp_path / "made" / name).read_text() for name in files)
    assert "runs_in_all" in table.splitlines()[0].split(",")
    assert [row["runs_in_all"] for row in json.loads(stored)["rows"]] == [2, 2]
    assert "runs in all" in markdown
    assert "<td>2 runs</td>" in page
