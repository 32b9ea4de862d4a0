"""Files of checkpoints: complete or absent, and used only if they are undamaged and of the same training."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import run

from common.experiment import Experiment
from common.platform.errors import FileError, UserError
from common.platform.files import read_safetensors, write_safetensors
from common.record import checkpoints
from common.record.checkpoints import (
    CHECKSUMS_FILE,
    FILES,
    checkpoint_dirs,
    find_checkpoint,
    has_whole_checkpoint,
    read_checkpoint,
    with_checkpoint,
    write_checkpoint,
)
from common.record.history import History
from common.spec.options import TrainConfig
from common.spec.state import ScaleState, TrainState

OPTIONS = {"train_size": 60, "batch_size": 10, "epochs": 3, "optimizer": "adam", "precision": "64"}


def experiment(**options):
    config = TrainConfig(**{**OPTIONS, "accelerator": "cpu", "devices": 1, "threads_per_device": 1, **options})
    return Experiment.make(config)


def state_of(made, step):
    numbers = np.random.default_rng(step)
    weights = {parameter.name: numbers.normal(size=parameter.shape) for parameter in made.network.parameters}
    slots = {slot: dict(weights) for slot in made.update_rule.rule.slots}
    scale = ScaleState(1024.0, 3, 2) if made.config.precision == "16-mixed" else None
    return TrainState(step, weights, slots, scale)


def write(made, run_dir, step):
    history, per_epoch = History(made.plan), made.plan.steps_per_epoch
    for done in range(step):
        history.add_steps([1 / (1 + done)], [5], 0.1)
        if (done + 1) % per_epoch == 0:
            history.add_epoch(1.0, 3, 10, 2.0, 1.0)
    checkpoint = history.checkpoint("pt", made, 0.5)
    return write_checkpoint(run_dir, checkpoint, history.losses, state_of(made, step))


def seal(folder):
    """Writes checksums that match the files as they are now."""
    sums = [f"{checkpoints._sha256(folder / name)}  {name}\n" for name in FILES if (folder / name).exists()]
    (folder / CHECKSUMS_FILE).write_text("".join(sums))


@pytest.fixture
def both(tmp_path):
    """A run with checkpoints after 5 and 7 steps."""
    made = experiment(run_dir=tmp_path)
    for step in (5, 7):
        write(made, tmp_path, step)
    return tmp_path


def names(run_dir):
    return [path.name for path in checkpoint_dirs(run_dir)]


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd", "momentum": 0.0}, {"precision": "16-mixed"}])
def test_what_is_written_is_read(tmp_path, options):
    made = experiment(run_dir=tmp_path, **options)
    folder = write(made, tmp_path, 4)
    checkpoint, losses = read_checkpoint(folder)
    assert losses == [1 / (1 + one) for one in range(4)] and checkpoint.step == 4 and checkpoint.config == made.config
    gone_on = with_checkpoint(experiment(run_dir=tmp_path, resume="auto", **options))
    assert gone_on.config.resume == folder and gone_on.plan.first_step == 5
    found, expected = gone_on.state, state_of(made, 4)
    assert (found.step, found.scale, found.steps_taken) == (4, expected.scale, 2 if expected.scale else 4)
    for one, other in zip(
        (found.weights, *found.slots.values()),
        (expected.weights, *expected.slots.values()),
        strict=True,
    ):
        assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    assert run("sha256sum", "-c", CHECKSUMS_FILE, cwd=folder).returncode == 0


def test_the_last_ones_are_kept_and_nothing_else_is_left(tmp_path):
    made = experiment(run_dir=tmp_path)
    (tmp_path / "checkpoints" / ".step-000000001.abc").mkdir(parents=True)  # left by a process that was killed
    for step in (1, 2, 10, 9):
        write(made, tmp_path, step)
    assert names(tmp_path) == ["step-000000010", "step-000000009", "step-000000002"]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_one_of_the_same_step_is_replaced(both):
    made = experiment(run_dir=both)
    changed = replace(state_of(made, 5), weights=state_of(made, 6).weights)
    history = History(made.plan)
    history.add_steps([0.0] * 5, [0] * 5, 0.1)
    folder = write_checkpoint(both, history.checkpoint("pt", made, 0.5), history.losses, changed)
    assert read_checkpoint(folder)[1] == [0.0] * 5 and len(names(both)) == 2


def flip_a_bit(folder):
    path = folder / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def cut_off(folder):
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def without(name):
    def remove(folder):
        (folder / name).unlink()

    return remove


def other_options(**options):
    """Turns a checkpoint into an undamaged one of another training."""

    def change(folder):
        content = json.loads((folder / "checkpoint.json").read_text())
        content["config"] |= options
        (folder / "checkpoint.json").write_text(json.dumps(content))
        seal(folder)

    return change


def other_data(folder):
    content = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps(content | {"data_sha256": "0" * 64}))
    seal(folder)


def other_arrays(change):
    def write_changed(folder):
        write_safetensors(folder / "state.safetensors", change(read_safetensors(folder / "state.safetensors")))
        seal(folder)

    return write_changed


def other_epochs(folder):
    content = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps(content | {"epochs": content["epochs"] * 2 + [EPOCH]}))
    seal(folder)


EPOCH = {
    "kind": "epoch",
    "epoch": 1,
    "train_loss": 1.0,
    "train_accuracy": 0.5,
    "test_loss": 1.0,
    "test_accuracy": 0.5,
    "test_correct": 5,
    "test_count": 10,
    "train_seconds": 1.0,
    "eval_seconds": 1.0,
}


def less(arrays):
    return {name: array for name, array in arrays.items() if name != "slots.mean.dense2.bias"}


DAMAGES = {
    "a bit": (flip_a_bit, "checksums.sha256: does not match the files beside it; one of them is damaged"),
    "cut off": (cut_off, "checksums.sha256: does not match the files beside it; one of them is damaged"),
    "state": (without("state.safetensors"), "state.safetensors: cannot be read: No such file"),
    "losses": (without("losses.safetensors"), "losses.safetensors: cannot be read: No such file"),
    "json": (without("checkpoint.json"), "checkpoint.json: missing"),
    "checksums": (without(CHECKSUMS_FILE), "checksums.sha256: cannot be read"),
    "batch size": (other_options(batch_size=20), "was made with --batch-size 20, not 10"),
    "precision": (other_options(precision="32"), "was made with --precision 32, not 64"),
    "flip": (other_options(horizontal_flip=True), "was made with --horizontal-flip true, not false"),
    "length": (
        other_options(epochs=9),
        "was made with --epochs 9, not 3; the learning rates of its steps depend on it (--schedule cosine)",
    ),
    "seed": (other_options(seed=3), "was made with --seed 3, not 0"),
    "data": (other_data, "was made with other data"),
    "less": (other_arrays(less), "state.safetensors: missing: slots.mean.dense2.bias"),
    "more": (other_arrays(lambda arrays: arrays | {"x": np.zeros(2)}), "state.safetensors: unexpected: x"),
    "nan": (
        other_arrays(lambda arrays: arrays | {"slots.mean.dense2.bias": np.full(10, np.nan)}),
        "contains NaN or infinity",
    ),
    "step": (other_arrays(lambda arrays: arrays | {"step": np.array([2])}), "its files are of different steps"),
    "epochs": (other_epochs, " finished epochs do not fit step "),
    "scaled": (other_arrays(lambda arrays: arrays | {"scale": np.ones(3)}), "state.safetensors: unexpected: scale"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_damaged_and_foreign_ones_the_one_before_is_taken(both, capsys, damage):
    change, said = DAMAGES[damage]
    change(both / "checkpoints" / "step-000000007")
    made = experiment(run_dir=both, resume="auto")
    assert with_checkpoint(made).state.step == 5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "note: continuing from step-000000005, since a later checkpoint can't be used: step-000000007: "
    )
    assert said in line
    change(both / "checkpoints" / "step-000000005")
    with pytest.raises(UserError) as told:
        with_checkpoint(made)
    assert str(told.value).startswith("--resume auto: no checkpoint there can be used; step-000000007: ")
    assert said in str(told.value) and capsys.readouterr().err == ""


def test_what_may_be_another(both):
    changes = {
        "threads_per_device": 2,
        "devices": 2,
        "strategy": "ddp",
        "mode": "tuned",
        "log_every_n_steps": 3,
    }
    assert with_checkpoint(experiment(resume=both, **changes, run_dir=both / "other")).state.step == 7


def test_mistakes_are_reported_in_a_line(both):
    for resume, said in (
        (both / "none", f"--resume {both / 'none'}: no checkpoint is there"),
        (both / "checkpoints", f"--resume {both / 'checkpoints'}: no checkpoint is there"),
    ):
        with pytest.raises(UserError) as told:
            find_checkpoint(experiment(resume=resume))
        assert str(told.value) == said
    with pytest.raises(UserError, match="--resume auto: needs --run-dir, whose latest checkpoint it takes"):
        find_checkpoint(experiment(resume="auto"))
    assert find_checkpoint(experiment(resume="auto", run_dir=both / "new")) is None
    assert find_checkpoint(experiment()) is None
    flip_a_bit(both / "checkpoints" / "step-000000007")
    assert has_whole_checkpoint(both) and not has_whole_checkpoint(both / "new")


@pytest.mark.parametrize(("old", "new"), [(None, "w"), ("w", None)])
def test_initial_weights_that_would_have_no_effect_are_refused(tmp_path, old, new):
    made = experiment()
    at_start, resumed = (
        replace(made, config=made.config.replace(initial_weights=weights, run_dir=tmp_path, resume=resume))
        for weights, resume in ((old, None), (new, "auto"))
    )
    write(at_start, tmp_path, 2)
    message = f"was made with --initial-weights {old or 'unset'}, not {new or 'unset'}"
    with pytest.raises(UserError, match=message):
        with_checkpoint(resumed)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    made = experiment(run_dir=tmp_path)
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(FileError, match="step-000000002 cannot be written: "):
        write(made, tmp_path, 2)
