"""A made-up option, added to `common/spec/options.py` alone: each part of the code treats it as its kind asks for."""

import json
import sys

from conftest import REPOSITORY, changed_code, run

PLACE = "    batch_size: Number = option("
ADDED = """\
    mixup: float = option("regularisation", 0.0, ge=0, lt=1, description="blend each image with another one")
    journal: str | None = option("logging", None, description="also keep a journal")
"""
# Prints the values of both options in the runs that are made for a comparison, and what else depends on their kinds.
SCRIPT = """
import json, sys
from pathlib import Path

from made_up import comparison, shown

from common.experiment import Experiment
from common.platform.cli import parse_options, to_arguments
from common.platform.errors import UserError
from common.record.checkpoints import Checkpoint, check_training
from common.spec.options import TrainConfig
from comparison.plan.jobs import comparison_jobs, contenders, make_variants, rate_search_jobs
from comparison.plan.options import CompareConfig
from comparison.prove.learning import by_heart, evaluated_on_training
from comparison.prove.proof import proof_jobs


def message(attempt, *arguments):
    try:
        attempt(*arguments)
    except UserError as error:
        return str(error)


def checkpoint(config):
    return Checkpoint(
        implementation="pt", config=config, data_sha256="", step=1, epochs=[], epoch_correct=0, epoch_seconds=0
    )


given = ["--mixup", "0.2", "--journal", "diary"]
tuned = ["--sweep", "batch-size=32,64", "--sweep-learning-rate", "0.1"]
options = parse_options(CompareConfig, "compare.py", "about", [*given, *tuned])
variants = make_variants(options, options.train_config())
row = next(comparison_jobs(options, variants)).config
side = row.made_for("side run", seed=0)
configs = {
    "row": row,
    "rate search": next(rate_search_jobs(options, variants)).config,
    "proof": proof_jobs(variants[:1], contenders(options), 0)[0].config,
    "memorise": by_heart(side),
    "whole": evaluated_on_training(side),
}
other = {"mixup": row.replace(mixup=0.1), "journal": row.replace(journal=None)}
folder = Path(sys.argv[1])
print(json.dumps({
    "values": {name: [config.mixup, config.journal] for name, config in configs.items()},
    "passed on": parse_options(TrainConfig, "pt_impl", "about", to_arguments(row)) == row,
    "bounds": message(parse_options, TrainConfig, "pt_impl", "about", ["--mixup", "1"]),
    "same digest": [name for name, config in other.items() if config.sha256() == row.sha256()],
    "resumed": [message(check_training, Experiment.make(row), checkpoint(config)) for config in other.values()],
    "swept": [message(make_variants, CompareConfig(sweep=[sweep]), row) for sweep in ("mixup=0,0.2", "journal=a,b")],
    "columns": [*comparison(folder, mixup=0.2, journal="diary", implementations=["pt"]).runs.columns],
    "printed": shown(folder),
}))
"""


def test_a_new_option_is_one_field(tmp_path):
    folder = changed_code(tmp_path / "code", "common/spec/options.py", PLACE, ADDED + PLACE)
    (folder / "script.py").write_text(SCRIPT)
    helpers = str(REPOSITORY / "tests" / "comparison")
    found = json.loads(run(sys.executable, "script.py", tmp_path / "made", cwd=folder, PYTHONPATH=helpers).stdout)
    assert found["values"] == {
        "row": [0.2, "diary"],
        "rate search": [0.2, None],
        "proof": [0.2, None],
        "memorise": [0.0, None],  # its neutral value
        "whole": [0.2, None],
    }
    assert found["passed on"] and found["bounds"] == "--mixup 1: should be less than 1"
    assert found["same digest"] == ["journal"]  # only what changes the training keeps runs apart
    mixup, journal = found["resumed"]
    assert mixup == "was made with --mixup 0.1, not 0.2" and journal == "was made with other data"  # the next check
    swept, refused = found["swept"]
    assert swept is None and "--journal cannot be swept" in refused
    assert "mixup" in found["columns"] and "journal" not in found["columns"]
    assert "regularisation: mixup 0.2" in found["printed"]
