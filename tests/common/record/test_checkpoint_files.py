"""Files of checkpoints: used only if they can be read and are of the same training."""

import json
import shutil

import pytest
from conftest import train

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record.checkpoints import with_checkpoint
from common.record.results import read_result


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A run of 18 steps, with a checkpoint after each."""
    options = ("--train-size", 60, "--batch-size", 10, "--epochs", 3, "--optimizer", "adam", "--checkpoint-every", 1)
    return train("pt", tmp_path_factory.mktemp("run") / "r", *options)


@pytest.fixture
def both(trained_run, tmp_path):
    """The run without the last of its checkpoints, which is that of a finished training."""
    folder = shutil.copytree(trained_run, tmp_path / "r")
    shutil.rmtree(folder / "checkpoints" / "step-000000018")
    return folder


def resumed(run_dir, resume="auto"):
    config = read_result(run_dir).config.replace(run_dir=run_dir, resume=resume)
    return with_checkpoint(Experiment.make(config)).state


def test_the_last_ones_are_kept_and_nothing_else_is_left(trained_run):
    names = sorted(path.name for path in (trained_run / "checkpoints").iterdir())
    assert names == ["step-000000016", "step-000000017", "step-000000018"]


def cut_off(folder):
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def of_another_training(data_sha256=None, **options):
    def change(folder):
        content = json.loads((folder / "checkpoint.json").read_text())
        content["config"] |= options
        content["data_sha256"] = data_sha256 or content["data_sha256"]
        (folder / "checkpoint.json").write_text(json.dumps(content))

    return change


DAMAGES = {
    "cut off": (cut_off, "state.safetensors: not a readable safetensors file"),
    "missing": (lambda folder: (folder / "losses.safetensors").unlink(), "losses.safetensors: not a readable"),
    "batch size": (of_another_training(batch_size=20), "was made with --batch-size 20, not 10"),
    "length": (
        of_another_training(epochs=9),
        "was made with --epochs 9, not 3; the learning rates of its steps depend on it (--schedule cosine)",
    ),
    "data": (of_another_training("0" * 64), "was made with other data"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_one_is_refused(both, damage):
    change, said = DAMAGES[damage]
    assert resumed(both).step == 17
    change(both / "checkpoints" / "step-000000017")
    with pytest.raises(UserError) as told:
        resumed(both)
    assert str(told.value).startswith("--resume auto: step-000000017 can't be used: ") and said in str(told.value)
    assert resumed(both, both / "checkpoints" / "step-000000016").step == 16


def test_without_a_checkpoint_auto_begins_and_a_given_folder_is_a_mistake(both):
    shutil.rmtree(both / "checkpoints")
    assert resumed(both) is None
    with pytest.raises(UserError, match=f"^--resume {both / 'none'}: no checkpoint is there$"):
        resumed(both, both / "none")
