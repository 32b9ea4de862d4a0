"""The classical programs: comparable, the same on one device and on two, with clear messages about mistakes."""

import re
import sys

import pytest
from conftest import REPOSITORY, run
from notebook_runs import assert_paired, run_notebook
from test_course import run_commands

NOTEBOOK = REPOSITORY / "exercises" / "TF_CNN_MultiGPU.ipynb"
EPOCH = re.compile(r"^epoch +\d+: test accuracy ([\d.]+)%, [\d,]+ images/s$", re.MULTILINE)
LAST = re.compile(r"^test accuracy ([\d.]+)%, [\d,]+ images/s in the last epoch, [\d.]+ s of training$", re.MULTILINE)


def accuracies(output):
    """The test accuracies in percent, one per epoch. The output must have one final line, with the last accuracy."""
    found = EPOCH.findall(output)
    assert LAST.findall(output) == found[-1:], output
    return [float(percent) for percent in found]


@pytest.mark.slow
def test_the_pages_commands_train_alike():
    outputs = run_commands(REPOSITORY / "exercises" / "multi_gpu.md")
    found = {output.partition("\n")[0]: accuracies(output) for output in outputs}
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
    _, printed = run_notebook(NOTEBOOK)
    assert printed.startswith("TensorFlow on 1 x cpu, batches of 64\n")
    assert len(accuracies(printed)) == 10 and accuracies(printed)[-1] > 97


def test_the_notebook_is_its_text_and_holds_no_outputs():
    assert_paired(NOTEBOOK)


@pytest.mark.slow
def test_a_mistake_is_one_line():
    done = run(sys.executable, "-m", "exercises.PTL_multiGPU", "--devices", "3", expect=2, CUDA_VISIBLE_DEVICES="")
    assert done.stderr.splitlines()[-1] == "PTL_multiGPU: error: --batch-size 64: must be a multiple of the 3 devices"
