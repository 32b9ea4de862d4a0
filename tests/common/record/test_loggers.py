"""`--logger`: TensorBoard, Weights & Biases and MLflow store a run, which is read back with their own readers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, program_of

from common.platform.errors import UserError
from common.record import loggers
from common.record.loggers.logged_run import MOST_GUESSES
from common.record.predictions import Predictions
from common.record.results import EpochLine, read_metrics, read_result, read_step_losses

READER = Path(__file__).with_name("read_loggers.py")
pytestmark = [pytest.mark.xdist_group("loggers")]


def environment(folder):
    own = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "WANDB_MODE": "offline", "HOME": str(folder)}
    own["PYTHONPATH"] = f"{REPOSITORY}:{REPOSITORY / 'tests' / 'comparison'}:{REPOSITORY / 'tests'}"
    return {**os.environ, **own}


def read(tool, place):
    done = subprocess.run([sys.executable, READER, tool, str(place)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def train(implementation, folder, *options):
    command = [*program_of(implementation), "--run-dir", str(folder / "r"), "--epochs", "2"]
    command += ["--train-size", "300", "--log-every-n-steps", "3", "--threads-per-device", "1", *options]
    return subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a run of two processes that was logged to two tools."""
    folder = tmp_path_factory.mktemp("logged")
    done = train("pt", folder, "--devices", "2", "--logger", "tensorboard", "wandb")
    assert done.returncode == 0, done.stderr
    return folder


def expected(folder):
    """From the run's own files: losses by step, and test accuracies by the last step of their epochs."""
    losses = dict(enumerate(read_step_losses(folder / "r"), 1))
    epochs = read_metrics(folder / "r", EpochLine)
    return losses, {5 * line.epoch: line.test_accuracy for line in epochs}


def check_numbers(folder, numbers, **tolerance):
    losses, accuracies = expected(folder)
    assert len(losses) == 10
    steps = {int(step): value for step, value in numbers["step/loss"].items()}
    assert steps == pytest.approx(losses, **tolerance)
    after = {int(step): value for step, value in numbers["epoch/test_accuracy"].items()}
    assert after == pytest.approx(accuracies, **tolerance)
    rates = [numbers["step/learning_rate"][key] for key in sorted(numbers["step/learning_rate"], key=int)]
    assert rates[0] == pytest.approx(0.05) and rates == sorted(rates, reverse=True) and len(rates) == 10
    assert min(numbers["epoch/images_per_second"].values()) > 0


def check_table(folder, table):
    """Checks the line of each image shown, and that wrong guesses come first."""
    predictions = Predictions.read(folder / "r")
    wrong = int((predictions.guesses != predictions.labels).sum())
    assert len(table["index"]) == MOST_GUESSES
    for index, guess, truth, score in zip(*(table[name] for name in ("index", "guess", "truth", "score")), strict=True):
        assert (str(guess), str(truth)) == (str(predictions.guesses[index]), str(predictions.labels[index]))
        assert score == pytest.approx(float(predictions.scores[index]), rel=1e-6)
    mistakes = [guess != truth for guess, truth in zip(table["guess"], table["truth"], strict=True)]
    assert sum(mistakes) == min(wrong, MOST_GUESSES // 2) > 0 and mistakes == sorted(mistakes, reverse=True)


def test_tensorboard(run):
    found = read("tensorboard", run / "r" / "tensorboard")
    check_numbers(run, found["numbers"], rel=1e-6)  # float32
    assert found["hyperparameters"]["batch_size"] == 64 and found["hyperparameters"]["implementation"] == "pt"
    result = read_result(run / "r")
    assert found["numbers"]["test_accuracy"]["10"] == pytest.approx(result.test_accuracy)
    table = found["texts"]["predictions/text_summary"].splitlines()
    assert table[0] == "| image | guess | truth | score |" and len(table) == 52 and found["images"] == 50
    assert "result.json" in found["texts"]["files/text_summary"]


def test_wandb(run):
    found = read("wandb", run / "r")
    check_numbers(run, found["numbers"])
    assert found["hyperparameters"]["batch_size"] == 64 and found["hyperparameters"]["devices"] == 2
    assert found["summary"]["test_accuracy"] == read_result(run / "r").test_accuracy
    assert {"config.json", "metrics.jsonl", "result.json", "predictions.safetensors"} <= set(found["files"])
    columns = list(zip(*found["predictions"]["data"], strict=True))
    table = dict(zip(found["predictions"]["columns"], columns, strict=True))
    images = [file for file in found["files"] if file.startswith("media/images/")]
    assert len(images) == MOST_GUESSES and "predictions.table.json" in found["files"]  # the table shows them
    check_table(run, table)


@pytest.mark.slow
def test_mlflow(tmp_path):
    run = tmp_path
    done = train("pt", run, "--devices", "2", "--logger", "tensorboard", "wandb", "mlflow")
    assert done.returncode == 0, done.stderr
    (found,) = read("mlflow", environment(run)["MLFLOW_TRACKING_URI"])  # one run: only one of the two processes logs
    check_numbers(run, found["numbers"])
    assert found["status"] == "FINISHED" and found["name"] == str(run / "r")
    assert found["hyperparameters"]["batch_size"] == "64" and found["hyperparameters"]["num_nodes"] == "1"
    assert found["summary"]["test_accuracy"] == read_result(run / "r").test_accuracy
    assert {"config.json", "metrics.jsonl", "result.json", "predictions.safetensors"} <= set(found["files"])
    check_table(run, found["predictions"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", ["tf", pytest.param("keras", marks=pytest.mark.slow), pytest.param("ptl", marks=pytest.mark.slow)]
)
def test_every_implementation_logs(implementation, tmp_path):
    done = train(implementation, tmp_path, "--logger", "tensorboard")
    assert done.returncode == 0, done.stderr
    check_numbers(tmp_path, read("tensorboard", tmp_path / "r" / "tensorboard")["numbers"], rel=1e-6)


def test_a_tool_that_can_not_be_reached_ends_the_run_in_a_line(tmp_path):
    address = {"MLFLOW_TRACKING_URI": "nowhere://here"}
    command = [sys.executable, "-m", "pt_impl", "--run-dir", str(tmp_path / "r"), "--logger", "mlflow"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **address}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("python -m pt_impl: error: --logger mlflow: ")
    assert "Traceback" not in done.stderr


def test_a_tool_that_is_missing_is_reported_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        loggers.check_loggers(("tensorboard", "wandb"))
    told = "--logger tensorboard: tensorboardX is not installed; pip install -r requirements-loggers.txt"
    assert str(error.value) == told
    loggers.check_loggers(())


def test_no_tool_brings_a_framework_along():
    code = "import sys; import common.record.loggers.to_{}; print({{'torch', 'tensorflow'}} & set(sys.modules))"
    for name in ("tensorboard", "wandb", "mlflow"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == "set()", done.stdout + done.stderr


@pytest.mark.slow
def test_a_comparison_is_a_run_with_its_report(tmp_path):
    """It is logged in a process of its own, since the tools change settings of the whole process."""
    code = """
import sys
from pathlib import Path
from made_up import MadeUp, comparison
from comparison.show.export import log_comparison
from comparison.show.export import write_tables
from comparison.show.report.page import write_report
rates = ["learning-rate=0.05,1e+0"]
loggers = ("tensorboard", "mlflow")
summary = comparison(Path(sys.argv[1]), lambda job: MadeUp(), logger=loggers, repeats=3, sweep=rates)
write_tables(summary); write_report(summary); log_comparison(summary)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c")],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (found,) = read("mlflow", environment(tmp_path)["MLFLOW_TRACKING_URI"])
    assert {"report.html", "results.json", "results.md"} <= set(found["files"]) and found["status"] == "FINISHED"
    assert found["summary"]["learning-rate 0.05/tf/images_per_second"] == 1000
    assert found["summary"]["learning-rate 1e_0/pt/ratio"] == pytest.approx(1)  # MLflow's names have no plus sign
    texts = read("tensorboard", tmp_path / "c" / "tensorboard")["texts"]
    assert "TensorFlow" in texts["results.md/text_summary"] and "report.html" in texts["files/text_summary"]
