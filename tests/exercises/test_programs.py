"""The classical programs: comparable, the same on one device and on two, with clear messages about mistakes."""

import shlex
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, run
from notebook_runs import assert_paired, run_notebook
from printed import accuracies
from test_course import commands

NOTEBOOK = REPOSITORY / "exercises" / "TF_CNN_MultiGPU.ipynb"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
def test_the_pages_commands_train_alike():
    found = {}
    for command in commands(REPOSITORY / "exercises" / "multi_gpu.md"):
        program, *words = shlex.split(command)
        output = run(Path(sys.executable).parent / program, *words, **NO_GPU).stdout
        found[output.partition("\n")[0]] = accuracies(output)
    wanted = found["PyTorch on 1 x cpu, batches of 64"]
    # 0.3 percentage points are one of the 355 test images.
    assert found["PyTorch on 2 x cpu, batches of 64"] == pytest.approx(wanted, abs=0.3)
    assert found["Lightning on 2 x cpu, batches of 64"] == pytest.approx(wanted, abs=0.3)
    assert found["TensorFlow on 2 x cpu, batches of 64"][-1] > 90 and wanted[-1] > 90


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs(monkeypatch):
    """With its own settings: ten epochs, and one device because no GPU is visible."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    outputs = run_notebook(NOTEBOOK)
    printed = "".join(one.text for one in outputs if one.output_type == "stream" and one.name == "stdout")
    assert printed.startswith("TensorFlow on 1 x cpu, batches of 64\n")
    assert len(accuracies(printed)) == 10 and accuracies(printed)[-1] > 97


def test_the_notebook_is_its_text_and_holds_no_outputs():
    assert_paired(NOTEBOOK)


@pytest.mark.slow
def test_mistakes_are_one_line():
    for words, message in {
        ("PT_CNN_MultiGPU", "--dataset", "digit"): "argument --dataset: invalid choice: 'digit'",
        ("PT_CNN_MultiGPU", "--epochs", "0"): "argument --epochs: invalid positive value: '0'",
        ("PTL_multiGPU", "--devices", "3"): "PTL_multiGPU: error: --batch-size 64: must be a multiple of the 3 devices",
    }.items():
        done = run(sys.executable, "-m", f"exercises.{words[0]}", *words[1:], expect=2, **NO_GPU)
        assert message in done.stderr.splitlines()[-1]
