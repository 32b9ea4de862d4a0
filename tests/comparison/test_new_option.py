"""A made-up option of each kind, added to `common/spec/options.py` alone: compare.py treats it as its kind asks for."""

import json
import sys

import pytest
from conftest import ONE_ROUND, read_csv, run

PLACE = "    batch_size: Number = option("
ADDED = """\
    mixup: float = option("regularisation", 0.0, ge=0, lt=1, description="blend each image with another one")
    journal: str | None = option("logging", None, description="also keep a journal")
"""


@pytest.mark.slow
def test_a_new_option_is_one_field(project, tmp_path):
    options, output = project / "common" / "spec" / "options.py", tmp_path / "r"
    assert PLACE in options.read_text()
    options.write_text(options.read_text().replace(PLACE, ADDED + PLACE))
    command = (sys.executable, "compare.py", "--implementations", "one", "--output-dir", output, "--max-steps", 20)
    command = (*command, *ONE_ROUND, "--sweep", "batch-size=20,30", "--sweep-learning-rate", 0.1)
    refused = run(*command, "--mixup", 1, cwd=project, expect=2)
    assert refused.stderr == "compare.py: error: --mixup 1: should be less than 1\n"
    shown = run(*command, "--mixup", 0.2, "--journal", "diary", cwd=project).stdout
    configs = {path.relative_to(output).parts[0]: json.loads(path.read_text()) for path in output.rglob("config.json")}
    assert {name: (config["mixup"], config["journal"]) for name, config in configs.items()} == {
        "runs": (0.2, "diary"),
        "proofs": (0.2, None),
        "rate-search": (0.2, None),
    }
    rows = read_csv(output / "runs.csv")
    assert {row["mixup"] for row in rows} == {"0.2"} and "journal" not in rows[0]
    assert "regularisation: mixup 0.2" in shown
    resumed = run(sys.executable, "compare.py", "--resume", output, "--mixup", 0.1, cwd=project, expect=2)
    assert "--mixup 0.1: the comparison in" in resumed.stderr
