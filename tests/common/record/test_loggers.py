"""`--logger`: TensorBoard and Weights & Biases store a run, which is read back with their own readers."""

import json
import sys
from pathlib import Path

import pytest
from conftest import CPU, program_of, run

from common.platform.errors import UserError
from common.record import loggers
from common.record.results import EpochLine, read_metrics, read_result, read_step_losses

READER = Path(__file__).with_name("read_loggers.py")


@pytest.mark.slow
def test_each_tool_has_what_the_run_has(tmp_path):
    """Of two processes, which end in five steps each of two epochs."""
    folder = tmp_path / "r"
    options = (*CPU, "--devices", 2, "--epochs", 2, "--train-size", 300, "--log-every-n-steps", 3)
    options = (*options, "--run-dir", folder, "--logger", "tensorboard", "wandb")
    run(*program_of("pt"), *options, WANDB_MODE="offline", HOME=str(tmp_path))
    losses = {str(step): loss for step, loss in enumerate(read_step_losses(folder), 1)}
    accuracies = {str(5 * line.epoch): line.test_accuracy for line in read_metrics(folder, EpochLine)}
    assert len(losses) == 10 and len(accuracies) == 2
    for tool, place in (("tensorboard", folder / "tensorboard"), ("wandb", folder)):
        found = json.loads(run(sys.executable, READER, tool, place).stdout.splitlines()[-1])
        assert found["numbers"]["step/loss"] == pytest.approx(losses, rel=1e-6)  # TensorBoard's numbers are float32
        assert found["numbers"]["epoch/test_accuracy"] == pytest.approx(accuracies, rel=1e-6)
        rates = [found["numbers"]["step/learning_rate"][step] for step in losses]
        assert rates[0] == pytest.approx(0.05) and rates == sorted(rates, reverse=True)
        assert min(found["numbers"]["epoch/images_per_second"].values()) > 0
        assert found["options"]["batch_size"] == 64 and found["options"]["devices"] == 2
        assert found["summary"]["test_accuracy"] == pytest.approx(read_result(folder).test_accuracy)
    assert {"config.json", "metrics.jsonl", "result.json"} <= set(found["files"])  # of Weights & Biases


def test_a_tool_that_can_not_be_reached_ends_the_run_in_a_line(tmp_path):
    address = {"WANDB_BASE_URL": "nowhere", "WANDB_MODE": "online", "WANDB_API_KEY": "k" * 40}
    error = run(*program_of("pt"), "--run-dir", tmp_path / "r", "--logger", "wandb", expect=2, **address).stderr
    assert error.splitlines()[-1].startswith("python -m pt_impl: error: --logger wandb: ")
    assert "Traceback" not in error


def test_a_tool_that_is_missing_is_reported_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    message = "--logger tensorboard: tensorboardX is not installed; pip install -r requirements/loggers.txt"
    with pytest.raises(UserError, match=message):
        loggers.check_loggers(("tensorboard", "wandb"))
