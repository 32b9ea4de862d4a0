"""launch/flyte_workflow.py: a run on this machine, and its definition for a cluster."""

import importlib.util
import json
import sys

import pytest
from conftest import REPOSITORY, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("flyte") is None, reason="pip install -r requirements/flyte.txt"),
]

RUN_HERE = """
import json, sys, flyte, pandas as pd
from common.record.predictions import Predictions
from launch import flyte_workflow as workflow

flyte.init()
hyperparameters = workflow.Hyperparameters(epochs=2, precision="64", accelerator="cpu", train_size=400)
context = flyte.with_runcontext(mode="local", disable_run_cache=True)
compared = context.run(workflow.compare_all, hyperparameters=hyperparameters).outputs()[0]
predictions = [pd.read_parquet(one.predictions.uri) for one in compared.trained]
print(json.dumps({
    "table": pd.read_parquet(compared.table.uri).to_dict("records"),
    "accuracies": [one.test_accuracies for one in compared.trained],
    "models": [one.model.path for one in compared.trained],
    "right": [float((one.labels == one.guesses).mean()) for one in predictions],
}))
"""

WRITE_DOWN = """
import json, flyte
from google.protobuf.json_format import MessageToDict
from launch import flyte_workflow as workflow

flyte.init(endpoint="dns:///localhost:1", insecure=True, project="p", domain="d", root_dir=workflow.REPOSITORY)
(deployment,) = flyte.deploy(workflow.tables, dry_run=True, version="1", copy_style="none")
tasks = [task for one in deployment.envs.values() for task in one.deployed_entities]
print(json.dumps([MessageToDict(task.deployed_task.task_template) for task in tasks]))
"""

# The second attempt, which trains longer, continues from the last checkpoint that the first one has stored.
TWO_ATTEMPTS = """
import sys
from types import SimpleNamespace
import flyte
from common.record.results import read_result
from launch import flyte_workflow as workflow

workflow.POLL_SECONDS, workflow.collect_run = 0.05, lambda implementation, run_dir: read_result(run_dir)
options, previous = {"schedule": "constant", "accelerator": "cpu"}, None
for epochs, folder in ((3, sys.argv[1]), (6, sys.argv[2])):
    kept, previous = flyte.Checkpoint(folder, previous), folder
    flyte.ctx = lambda: SimpleNamespace(is_in_cluster=lambda: False, checkpoint=kept)
    result = workflow.train("pt", workflow.Hyperparameters(epochs=epochs, **options))
    print(result.resumed_from or 0, result.num_steps)
"""


def program(text, folder, *words):
    """The lines that the Python program `text` prints when it runs in `folder`."""
    path = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return run(sys.executable, "-c", text, *words, cwd=folder, **path).stdout.splitlines()


def test_the_workflow_runs_here_and_the_three_are_in_lockstep(tmp_path):
    found = json.loads(program(RUN_HERE, tmp_path)[-1])
    assert [line["implementation"] for line in found["table"]] == ["tf", "pt", "ptl"]
    assert all(line["largest_loss_difference"] <= 1e-12 for line in found["table"])
    assert all(len(one) == 2 for one in found["accuracies"])
    assert [one[-1] for one in found["accuracies"]] == pytest.approx(found["right"])
    assert all(path.endswith("model.safetensors") for path in found["models"])


TABLES = {"tables.compare", "tables.compare_all"}


def test_what_a_cluster_is_asked_for(tmp_path):
    tasks = {task["id"]["name"]: task for task in json.loads(program(WRITE_DOWN, tmp_path)[-1])}
    assert tasks.keys() == {"tensorflow.train_tf", "pytorch.train_pt", "pytorch.train_ptl", *TABLES}
    for name in ("pytorch.train_pt", "pytorch.train_ptl"):
        assert tasks[name]["type"] == "pytorch"
        elastic, workers = (tasks[name]["custom"][key] for key in ("elasticConfig", "workerReplicas"))
        assert (elastic["minReplicas"], elastic["maxReplicas"], elastic["nprocPerNode"]) == (2, 2, 2)
        assert workers == {"replicas": 2}
    for name, task in tasks.items():
        asked = {one["name"]: one["value"] for one in task["container"]["resources"]["requests"]}
        assert asked.get("GPU") == (None if name in TABLES else "2")
        assert task["metadata"]["discoverable"], "what was made once is kept"
        assert name in TABLES or task["metadata"]["retries"] == {"retries": 3}


def test_a_second_attempt_goes_on_where_the_first_one_was(tmp_path):
    lines = program(TWO_ATTEMPTS, tmp_path, tmp_path / "first", tmp_path / "second")
    ((none, first), (resumed_from, second)) = [map(int, line.split()) for line in lines if line[0].isdigit()]
    assert none == 0 < resumed_from <= first < second
