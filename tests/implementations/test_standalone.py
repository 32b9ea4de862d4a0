"""Each implementation alone, as a user starts it."""

import json
import re

import pytest
from conftest import CPU, program_of, run

from common.implementations import implementation_title
from common.record.results import EpochLine, StepLine, read_metrics, read_result

SHORT = (*CPU, "--epochs", 2, "--train-size", 200)


@pytest.mark.quick("pt")
@pytest.mark.parametrize("implementation", ["tf", "pt", "ptl", "jax"])
def test_plain_lines_from_one_process_and_a_complete_run_folder_and_nothing_else(tmp_path, implementation):
    """The limit on the steps falls into the second epoch, which ends early and is evaluated."""
    folder, temporary = tmp_path / "r", tmp_path / "temporary"
    temporary.mkdir()
    options = (*SHORT, "--devices", 2, "--max-steps", 6, "--log-every-n-steps", 5)
    command = (*program_of(implementation), "train", *options, "--run-dir", folder)
    # Python writes bytecode, as by default.
    lines = run(*command, TMPDIR=str(temporary), PYTHONDONTWRITEBYTECODE="").stdout.splitlines()
    assert not [path for path in temporary.rglob("*") if path.is_file()]
    assert lines[0] == f"{implementation_title(implementation)}: cnn on digits, 200 training and 355 test images"
    assert lines[1].startswith("batch 64, 32-bit, 2 x cpu (")
    assert [line[:10] for line in lines[2:4]] == ["epoch 1/2:", "epoch 2/2:"]
    assert lines[4].startswith("test accuracy") and lines[5].startswith("start-up")
    assert lines[6:] == [f"results: {folder}"]
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "metrics.jsonl", "model.safetensors", "predictions.safetensors", "result.json"}
    result = read_result(folder)
    assert json.loads((folder / "config.json").read_text()) == result.config.model_dump(mode="json")
    assert result.implementation == implementation and result.devices == 2
    assert result.num_steps == len(read_metrics(folder, StepLine)) == 6
    assert [line.epoch for line in read_metrics(folder, EpochLine)] == [1, 2] and result.test_count == 355
    assert result.test_correct == read_metrics(folder, EpochLine)[-1].test_correct
    parts = [result.startup_seconds, *result.epoch_train_seconds, *result.eval_seconds]
    assert sum(parts) <= result.wall_seconds and min(parts) > 0
    package = {"tf": "tensorflow", "pt": "torch", "ptl": "lightning", "jax": "jax"}[implementation]
    assert package in result.versions and result.peak_memory_bytes > 100 * 2**20


@pytest.mark.slow
def test_jax_compiles_a_step_once(tmp_path):
    """With --max-steps the last epoch is shorter. A step that is compiled again would be compiled while it is timed."""
    options = (*SHORT, "--mode", "tuned", "--max-steps", 6, "--run-dir", tmp_path / "r")
    done = run(*program_of("jax"), *options, JAX_LOG_COMPILES="1")
    assert done.stderr.count("Finished XLA compilation of jit(step_of)") == 1


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["tf", "pt"])
def test_a_training_that_diverges_ends_in_one_line(tmp_path, implementation):
    options = ("--learning-rate", 1e38, "--epochs", 20, "--devices", 2, "--run-dir", tmp_path / "r")
    error = run(*program_of(implementation), *SHORT, *options, expect=1).stderr
    (line,) = [line for line in error.splitlines() if "_impl: error:" in line]
    assert re.search(r"error: training diverged: the loss of step \d+ is (nan|inf)", line)
    assert "Traceback" not in error and not (tmp_path / "r" / "result.json").exists()


@pytest.mark.slow
def test_within_a_slurm_job_lightning_starts_its_replicas_all_the_same(tmp_path):
    slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "batch"}
    slurm |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    options = ("--devices", 2, "--max-steps", 2, "--run-dir", tmp_path / "r")
    run(*program_of("ptl"), *CPU, *options, **slurm)
    result = read_result(tmp_path / "r")
    assert (result.test_count, result.devices) == (355, 2)
