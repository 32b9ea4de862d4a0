"""Files of checkpoints: complete or absent, and used only if they are undamaged and of the same training."""

import json

import numpy as np
import pytest

from common.experiment import Experiment
from common.platform.errors import UserError
from common.record import checkpoints
from common.record.checkpoints import (
    CHECKSUMS_FILE,
    FILES,
    Checkpoint,
    checkpoint_dirs,
    has_whole_checkpoint,
    with_checkpoint,
    write_checkpoint,
)
from common.record.results import EpochLine
from common.spec.options import TrainConfig
from common.spec.state import TrainState

OPTIONS = {"train_size": 60, "batch_size": 10, "epochs": 3, "optimizer": "adam", "precision": "64"}
OPTIONS |= {"accelerator": "cpu", "devices": 1, "threads_per_device": 1}


def experiment(**options):
    return Experiment.make(TrainConfig(**{**OPTIONS, **options}))


def write(made, run_dir, step):
    """Writes a checkpoint of random weights."""
    numbers = {"train_loss": 1.0, "train_accuracy": 0.5, "train_seconds": 2.0, "eval_seconds": 1.0}
    numbers |= {"test_loss": 1.0, "test_accuracy": 0.3, "test_correct": 3, "test_count": 10}
    checkpoint = Checkpoint(
        implementation="pt",
        config=made.config,
        data_sha256=made.dataset.sha256,
        step=step,
        epochs=[
            EpochLine(kind="epoch", epoch=epoch + 1, **numbers) for epoch in range(step // made.plan.steps_per_epoch)
        ],
        epoch_correct=5,
        epoch_seconds=0.5,
    )
    random = np.random.default_rng(step)
    weights = {parameter.name: random.normal(size=parameter.shape) for parameter in made.network.parameters}
    state = TrainState(step, weights, dict.fromkeys(made.update_rule.rule.slots, weights), None)
    return write_checkpoint(run_dir, checkpoint, [1.0] * step, state)


@pytest.fixture
def both(tmp_path):
    """A run with checkpoints after 5 and 7 steps."""
    made = experiment(run_dir=tmp_path)
    for step in (5, 7):
        write(made, tmp_path, step)
    return tmp_path


def test_the_last_ones_are_kept_and_nothing_else_is_left(tmp_path):
    made = experiment(run_dir=tmp_path)
    (tmp_path / "checkpoints" / ".step-000000001.abc").mkdir(parents=True)  # left by a process that was killed
    for step in (1, 2, 10, 9):
        write(made, tmp_path, step)
    kept = ["step-000000010", "step-000000009", "step-000000002"]
    assert [path.name for path in checkpoint_dirs(tmp_path)] == kept
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def seal(folder):
    """Writes checksums that match the files as they are now."""
    sums = [f"{checkpoints._sha256(folder / name)}  {name}\n" for name in FILES]
    (folder / CHECKSUMS_FILE).write_text("".join(sums))


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
        seal(folder)

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
    change(both / "checkpoints" / "step-000000007")
    made = experiment(run_dir=both, resume="auto")
    assert with_checkpoint(made).state.step == 5
    (line,) = capsys.readouterr().err.splitlines()
    note = "note: continuing from step-000000005, since a later checkpoint can't be used: step-000000007: "
    assert line.startswith(note) and said in line
    change(both / "checkpoints" / "step-000000005")
    with pytest.raises(UserError) as told:
        with_checkpoint(made)
    assert str(told.value).startswith("--resume auto: no checkpoint there can be used; step-000000007: ")
    assert said in str(told.value) and capsys.readouterr().err == ""
    write(made, both, 7)  # replaces the other one of this step
    assert with_checkpoint(made).state.step == 7


def test_mistakes_are_reported_in_a_line(both):
    with pytest.raises(UserError, match=f"^--resume {both / 'none'}: no checkpoint is there$"):
        with_checkpoint(experiment(resume=both / "none"))
    with pytest.raises(UserError, match="--resume auto: needs --run-dir, whose latest checkpoint it takes"):
        with_checkpoint(experiment(resume="auto"))
    assert with_checkpoint(experiment(resume="auto", run_dir=both / "new")).state is None
    flip_a_bit(both / "checkpoints" / "step-000000007")
    assert has_whole_checkpoint(both) and not has_whole_checkpoint(both / "new")
