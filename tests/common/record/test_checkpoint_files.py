"""Files of checkpoints: complete or absent, and used only if they are undamaged and of the same training."""

import json
import shutil

import pytest
from conftest import train

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record import checkpoints
from common.record.checkpoints import CHECKSUMS_FILE, has_whole_checkpoint, with_checkpoint
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


def flip_a_bit(folder):
    path = folder / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def of_another_training(data_sha256=None, **options):
    def change(folder):
        content = json.loads((folder / "checkpoint.json").read_text())
        content["config"] |= options
        content["data_sha256"] = data_sha256 or content["data_sha256"]
        (folder / "checkpoint.json").write_text(json.dumps(content))
        (folder / CHECKSUMS_FILE).write_text(checkpoints._checksums(folder))

    return change


DAMAGES = {
    "a bit": (flip_a_bit, "checksums.sha256: does not match the files beside it; one of them is damaged"),
    "checksums": (lambda folder: (folder / CHECKSUMS_FILE).unlink(), "checksums.sha256: cannot be read"),
    "batch size": (of_another_training(batch_size=20), "was made with --batch-size 20, not 10"),
    "length": (
        of_another_training(epochs=9),
        "was made with --epochs 9, not 3; the learning rates of its steps depend on it (--schedule cosine)",
    ),
    "data": (of_another_training("0" * 64), "was made with other data"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_damaged_and_foreign_ones_the_one_before_is_taken(both, capsys, damage):
    change, said = DAMAGES[damage]
    change(both / "checkpoints" / "step-000000017")
    assert has_whole_checkpoint(both) and resumed(both).step == 16
    (line,) = capsys.readouterr().err.splitlines()
    note = "note: continuing from step-000000016, since a later checkpoint can't be used: step-000000017: "
    assert line.startswith(note) and said in line
    change(both / "checkpoints" / "step-000000016")
    with pytest.raises(UserError) as told:
        resumed(both)
    assert str(told.value).startswith("--resume auto: no checkpoint there can be used; step-000000017: ")
    assert said in str(told.value) and capsys.readouterr().err == ""


def test_without_a_checkpoint_auto_begins_and_a_given_folder_is_a_mistake(both):
    shutil.rmtree(both / "checkpoints")
    assert resumed(both) is None and not has_whole_checkpoint(both)
    with pytest.raises(UserError, match=f"^--resume {both / 'none'}: no checkpoint is there$"):
        resumed(both, both / "none")
