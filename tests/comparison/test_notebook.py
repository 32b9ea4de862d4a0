"""The notebook for analysing a comparison: it runs on any comparison, and matches the text file paired with it."""

import re

import pytest
from conftest import REPOSITORY
from made_up import MadeUp, comparison
from notebook_runs import assert_paired, run_notebook

NOTEBOOK = REPOSITORY / "docs" / "analysis.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs(tmp_path, monkeypatch):
    options = {"repeats": 3, "mode": ["plain", "tuned"]}
    found = comparison(tmp_path, lambda job: MadeUp(speed=1000 * (1 + 0.1 * job.round)), **options)
    comparison(tmp_path / "earlier", lambda job: MadeUp(speed=500.0), **options)
    monkeypatch.setenv("COMPARISON", str(tmp_path))
    monkeypatch.setenv("EARLIER", str(tmp_path / "earlier"))
    outputs, printed = run_notebook(NOTEBOOK)
    assert printed.startswith(tmp_path.name) and all(line in printed for line in found.warnings)
    tables = [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]
    speed = found.rows["images_per_second"][0]
    assert re.search(rf"images_per_second now +ratio(.|\n)* {speed:.1f} +{speed / 500:.1f}\b", tables[2])
    assert sum("image/png" in output.data for output in outputs if output.output_type == "display_data") == 4


def test_it_is_its_text_and_holds_no_outputs():
    assert_paired(NOTEBOOK)
