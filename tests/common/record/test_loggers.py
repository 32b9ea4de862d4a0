"""`--logger`: TensorBoard and Weights & Biases store a run, which is read back with their own readers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, program_of

from common.platform.errors import UserError
from common.record import loggers
from common.record.results import EpochLine, read_metrics, read_result, read_step_losses

READER = Path(__file__).with_name("read_loggers.py")
pytestmark = [pytest.mark.xdist_group("loggers")]


def environment(folder):
    own = {"WANDB_MODE": "offline", "HOME": str(folder)}
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


@pytest.mark.slow
def test_tensorboard(run):
    found = read("tensorboard", run / "r" / "tensorboard")
    check_numbers(run, found["numbers"], rel=1e-6)  # float32
    assert found["hyperparameters"]["batch_size"] == 64 and found["hyperparameters"]["implementation"] == "pt"
    result = read_result(run / "r")
    assert found["numbers"]["test_accuracy"]["10"] == pytest.approx(result.test_accuracy)


@pytest.mark.slow
def test_wandb(run):
    found = read("wandb", run / "r")
    check_numbers(run, found["numbers"])
    assert found["hyperparameters"]["batch_size"] == 64 and found["hyperparameters"]["devices"] == 2
    assert found["summary"]["test_accuracy"] == read_result(run / "r").test_accuracy
    assert {"config.json", "metrics.jsonl", "result.json"} <= set(found["files"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", ["tf", pytest.param("keras", marks=pytest.mark.slow), pytest.param("ptl", marks=pytest.mark.slow)]
)
def test_every_implementation_logs(implementation, tmp_path):
    done = train(implementation, tmp_path, "--logger", "tensorboard")
    assert done.returncode == 0, done.stderr
    check_numbers(tmp_path, read("tensorboard", tmp_path / "r" / "tensorboard")["numbers"], rel=1e-6)


def test_a_tool_that_can_not_be_reached_ends_the_run_in_a_line(tmp_path):
    address = {"WANDB_BASE_URL": "nowhere", "WANDB_MODE": "online", "WANDB_API_KEY": "k" * 40}
    command = [sys.executable, "-m", "pt_impl", "--run-dir", str(tmp_path / "r"), "--logger", "wandb"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **address}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("python -m pt_impl: error: --logger wandb: ")
    assert "Traceback" not in done.stderr


def test_a_tool_that_is_missing_is_reported_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        loggers.check_loggers(("tensorboard", "wandb"))
    told = "--logger tensorboard: tensorboardX is not installed; pip install -r requirements/loggers.txt"
    assert str(error.value) == told
    loggers.check_loggers(())


def test_no_tool_brings_a_framework_along(tmp_path):
    code = """
import sys
from pathlib import Path
from common.record.loggers import LOGGERS
LOGGERS[sys.argv[1]]("pt", Path(sys.argv[2])).begin({})
print({"torch", "tensorflow"} & set(sys.modules))
"""
    for name in ("tensorboard", "wandb"):
        done = subprocess.run(
            [sys.executable, "-c", code, name, str(tmp_path)],
            cwd=REPOSITORY,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == "set()", done.stdout + done.stderr
