"""The classical programs: comparable, the same on one device and on two, with clear messages about mistakes."""

import sys

import pytest
from conftest import REPOSITORY, run
from notebook_runs import assert_paired, run_notebook
from printed import accuracies

from exercises import course
from exercises.course import commands_with_output, without_numbers

NOTEBOOK = REPOSITORY / "exercises" / "TF_CNN_MultiGPU.ipynb"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
def test_the_page_shows_what_they_print_and_they_train_alike():
    blocks = commands_with_output(REPOSITORY / "exercises" / "multi_gpu.md")
    found = {}
    for command, shown in blocks:
        done = course.run(command)
        assert done.returncode == 0, done.stderr
        assert without_numbers(done.stdout) == without_numbers(shown), command
        found[done.stdout.partition("\n")[0]] = accuracies(done.stdout)
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
    printed = "".join(
        one.text for one in run_notebook(NOTEBOOK) if one.output_type == "stream" and one.name == "stdout"
    )
    found = accuracies(printed)
    assert printed.startswith("TensorFlow on 1 x cpu, batches of 64\n")
    assert len(found) == 10 and len(printed.splitlines()) == 12 and found[-1] > 97


def test_the_notebook_is_its_text_and_holds_no_outputs():
    assert_paired(NOTEBOOK)


@pytest.mark.slow
def test_mistakes_are_reported_in_one_line():
    # Even with unbuffered output, the messages of the two processes must not mix.
    environment = {**NO_GPU, "PYTHONUNBUFFERED": "1"}
    done = run(*TORCHRUN, "exercises.PT_CNN_MultiGPU", "--batch-size", 63, expect=1, **environment)
    told = "PT_CNN_MultiGPU: error: --batch-size 63: must be a multiple of the 2 processes"
    assert told in done.stderr.splitlines()
    done = run(sys.executable, "-m", "exercises.PT_CNN_MultiGPU", "--dataset", "digit", expect=2, **NO_GPU)
    assert "argument --dataset: invalid choice: 'digit'" in done.stderr.splitlines()[-1]
    done = run(sys.executable, "-m", "exercises.PT_CNN_MultiGPU", "--epochs", 0, expect=2, **NO_GPU)
    assert "argument --epochs: invalid positive value: '0'" in done.stderr.splitlines()[-1]
    done = run(sys.executable, "-m", "exercises.PTL_multiGPU", "--devices", 3, expect=2, **NO_GPU)
    told = "PTL_multiGPU: error: --batch-size 64: must be a multiple of the 3 devices"
    assert done.stderr.splitlines()[-1] == told


def test_data_that_are_not_there_are_reported_in_one_line(tmp_path):
    damaged = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no images")
    options = ("--dataset", "mnist", "--data-dir", tmp_path)
    environment = {**NO_GPU, "https_proxy": "http://127.0.0.1:9"}  # no network access
    done = run(sys.executable, "-m", "exercises.PT_CNN_MultiGPU", *options, expect=1, **environment)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and f"not in {damaged.parent} (--data-dir)" in last
    assert "Traceback" not in done.stderr
