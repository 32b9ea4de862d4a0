"""A made-up option, added to `common/spec/options.py` alone: each part of the code treats it as its kind asks for."""

import json
import sys

import pytest
from conftest import REPOSITORY, changed_code, run

pytestmark = pytest.mark.xdist_group("new option")  # all of them share one program
PLACE = "    batch_size: int = option("
ADDED = """\
    mixup: float = option("regularisation", 0.0, ge=0, lt=1, description="blend each image with another one")
    journal: str | None = option("logging", None, description="also keep a journal")
"""
# Prints the values of both options in every run that is made for a comparison, and what else depends on their kinds.
SCRIPT = """
import json, sys
from pathlib import Path

from made_up import comparison

from common.experiment import Experiment
from common.platform.cli import parse_options, to_arguments
from common.platform.errors import UserError
from common.record.checkpoints import Checkpoint, check_training
from common.spec.options import TrainConfig
from common.command import parse_command
from comparison.measure.frames import runs_frame
from comparison.plan.jobs import comparison_jobs, contenders, make_variants, rate_search_jobs
from comparison.prove.learning import make_memorising_runs, make_whole_set_runs
from comparison.lockstep import different_settings
from comparison.plan.options import CompareConfig
from comparison.run.side_runs import make_profiles
from comparison.prove.proof import proof_jobs
from comparison.show.sentences import what_was_compared
from comparison.run.side_runs import SideRunner

folder, configs = Path(sys.argv[1]), {}


class Launcher:
    def run(self, groups, at_once, timeout, follower):
        self.program = groups[0][0]


def message(attempt, *arguments):
    try:
        attempt(*arguments)
    except UserError as error:
        return str(error)


given = ["--mixup", "0.2", "--journal", "diary"]
tuned = ["--sweep", "batch-size=32,64", "--sweep-learning-rate", "0.1"]
options = parse_options(CompareConfig, "compare.py", "about", [*given, *tuned])
variants = make_variants(options, options.train_config())
configs["rate search"] = next(rate_search_jobs(options, variants)).config
configs["row"] = row = next(comparison_jobs(options, variants)).config
configs["proof"] = proof_jobs(variants[:1], contenders(options), 0)[0].config

summary = comparison(folder, mixup=0.2, journal="diary", implementations=["pt"])
launcher, request = Launcher(), summary.request
variants = make_variants(request.options, request.config)
runner = SideRunner(folder, request, variants, lambda text: None, launcher.run)
profiles = {"profile": lambda one: make_profiles(one, 3)}
for name, make in {"memorise": make_memorising_runs, "whole": make_whole_set_runs, **profiles}.items():
    make(runner)
    configs[name] = launcher.program.config

(folder / "config.json").write_text(row.model_dump_json())
(folder / "model.safetensors").touch()
command = ["evaluate", "--weights", str(folder / "model.safetensors")]
configs["evaluate"] = parse_command("pt_impl", "about", command).config

other = {"mixup": row.replace(mixup=0.1), "journal": row.replace(journal=None)}
checkpoints = {
    name: Checkpoint(
        implementation="pt", config=config, data_sha256="", step=1, epochs=[], epoch_correct=0, epoch_seconds=0
    )
    for name, config in other.items()
}
result = summary.runs[0].result
print(json.dumps({
    "values": {name: [config.mixup, config.journal] for name, config in configs.items()},
    "passed on": parse_options(TrainConfig, "pt_impl", "about", to_arguments(row)) == row,
    "bounds": message(parse_options, TrainConfig, "pt_impl", "about", ["--mixup", "1"]),
    "same digest": [name for name, config in other.items() if config.sha256() == row.sha256()],
    "apart": [
        different_settings(result, result.model_copy(update={"config": result.config.replace(**change)}))
        for change in ({"mixup": 0.1}, {"journal": None})
    ],
    "resumed": {
        name: message(check_training, Experiment.make(row), checkpoint) for name, checkpoint in checkpoints.items()
    },
    "swept": [
        message(make_variants, CompareConfig(sweep=[sweep]), row) for sweep in ("mixup=0.1,0.2", "journal=a,b")
    ],
    "columns": [name for name in ("mixup", "journal") if name in runs_frame(summary)],
    "report": what_was_compared(summary.tables[0]),
}))
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    folder = changed_code(tmp_path_factory.mktemp("code"), "common/spec/options.py", PLACE, ADDED + PLACE)
    (folder / "script.py").write_text(SCRIPT)
    helpers = str(REPOSITORY / "tests" / "comparison")
    done = run(sys.executable, "script.py", tmp_path_factory.mktemp("made"), cwd=folder, PYTHONPATH=helpers)
    return json.loads(done.stdout)


def test_each_run_has_it_or_its_neutral_value(printed):
    assert printed["values"] == {
        "row": [0.2, "diary"],
        "rate search": [0.2, None],
        "proof": [0.2, None],
        "memorise": [0.0, None],
        "whole": [0.2, None],
        "profile": [0.2, None],
        "evaluate": [0.0, None],
    }


def test_it_is_an_option_with_bounds_that_reaches_an_implementation(printed):
    assert printed["passed on"] and printed["bounds"] == "--mixup 1: should be less than 1"


def test_only_what_changes_the_training_keeps_runs_apart(printed):
    assert printed["same digest"] == ["journal"] and printed["apart"] == [["mixup: 0.2 and 0.1"], []]
    assert printed["resumed"]["mixup"] == "was made with --mixup 0.1, not 0.2"
    assert printed["resumed"]["journal"] == "was made with other data"  # the next check: nothing said of the option
    swept, refused = printed["swept"]
    assert swept is None and "--journal cannot be swept" in refused


def test_tables_name_it(printed):
    assert printed["columns"] == ["mixup"] and "regularisation: mixup 0.2" in printed["report"]
