"""Runs beside the measured ones: `--check-learning` and `--profile N`, and what tables and report say of them."""

import numpy as np
import pytest
from conftest import changed_code, compare
from made_up import MadeUp, comparison, report, shown, write_files

from common.data.datasets import load_dataset
from common.platform.files import write_json_model
from common.record.profile import PROFILE_FILE, Profile, ProfiledOperation
from common.record.results import EpochLine
from common.spec.options import TrainConfig
from comparison import load
from comparison.plan.jobs import make_variants
from comparison.prove.learning import Fit, by_heart, evaluated_on_training, make_memorising_runs, make_whole_set_runs
from comparison.run import side_runs
from comparison.run.program import RunEnd
from comparison.run.side_runs import SideRunner, make_profiles

# --- Under- and overfitting ---


def epochs(losses, accuracy, count):
    """Evaluations of so many examples with these losses; `accuracy`: of the last one, which is what counts."""
    counts = {"test_accuracy": accuracy, "test_correct": round(accuracy * count), "test_count": count}
    return [EpochLine.model_construct(epoch=number, test_loss=loss, **counts) for number, loss in enumerate(losses, 1)]


FALLING = [0.9, 0.5, 0.3, 0.2, 0.15, 0.12, 0.1]
RISING = [0.9, 0.6, 0.5, 0.55, 0.6, 0.7, 0.8]


def fit(train_losses, train_accuracy, test_losses, test_accuracy, count=1000, commonest=0.1):
    return Fit(epochs(train_losses, train_accuracy, count), epochs(test_losses, test_accuracy, count), commonest)


@pytest.mark.parametrize(
    ("verdict", "found", "says"),
    [
        ("fits", fit(FALLING, 1.0, FALLING, 0.995), "100.00% of training images and 99.50% of test images are right"),
        ("fits", fit(FALLING, 1.0, FALLING, 0.9, count=20), "losses are 0.1000 and 0.1000"),  # by chance
        ("overfits", fit(FALLING, 0.95, FALLING, 0.85), "augmentation"),
        ("underfits", fit(FALLING, 0.85, FALLING, 0.84), "try more epochs"),
        ("underfits", fit([2.0, 0.5, 0.5], 0.85, FALLING[:3], 0.84), "no longer falls"),
        ("overfits", fit(FALLING, 0.995, RISING, 0.992), "lowest after epoch 3 and has risen by 27% since"),
        # One bad epoch is noise.
        ("fits", fit(FALLING, 1.0, [*FALLING[:-1], 0.14], 1.0), ""),
        ("learns nothing", fit([2.3] * 7, 0.11, [2.3] * 7, 0.1), "another learning rate"),
        ("underfits", fit([0.6] * 7, 0.6, [0.6] * 7, 0.6, commonest=0.5), "no longer falls"),
    ],
)
def test_the_larger_part_of_the_error_is_what_it_is_called_for(verdict, found, says):
    assert found.verdict == verdict and says in found.words


# --- The check of learning ---


def test_the_small_set_is_learned_without_what_prevents_that():
    without = {"weight_decay": 0.1, "label_smoothing": 0.1, "random_crop": 2, "horizontal_flip": True}
    kept = {"batch_size": 48, "learning_rate": 0.03, "momentum": 0.5, "model": "mnist_dropout", "dataset": "mnist"}
    small = by_heart(TrainConfig(**kept, **without, schedule="one-cycle", epochs=1, max_steps=10))
    assert (small.train_size, small.test_size, small.evaluate_on, small.schedule) == (64, 64, "train", "constant")
    assert small.plan(64).total_steps == 200 and not any(getattr(small, name) for name in without)
    assert {name: getattr(small, name) for name in kept} == kept
    assert by_heart(TrainConfig(devices=128, batch_size=256)).train_size == 128  # an image for each replica
    # The second run is evaluated on as many images as there are test images, which are those that it is trained on.
    assert evaluated_on_training(TrainConfig()) == TrainConfig(evaluate_on="train", test_size=355)
    data = load_dataset(TrainConfig(train_size=100, test_size=30, evaluate_on="train"))
    assert np.array_equal(data.test_images, data.train_images[:30])
    assert np.array_equal(data.train_images, load_dataset(TrainConfig()).train_images[:100])


class Launcher:
    """Writes what runs leave; those of `failing` fail, and those of `unable` get no more than half right."""

    def __init__(self, failing=(), unable=()):
        self.failing, self.unable, self.programs = failing, unable, []

    def __call__(self, programs, timeout, follower):
        for program in programs:
            self.programs.append(program)
            program.run_dir.mkdir(parents=True)
            name, config, failure = program.implementation, program.config, None
            if name in self.failing:
                (program.run_dir / "log.txt").write_text("epoch 1/200\nerror: training diverged\n")
                failure = "exit status 1"
            elif config.profile:
                operations = [ProfiledOperation(name=f"<conv {n}>", calls=6, seconds=n) for n in range(20)]
                write_json_model(program.run_dir / PROFILE_FILE, Profile.make(name, 11, 3, 0.6, operations))
            else:
                last = 0.5 if name in self.unable else 1.0
                accuracies = (0.5, *[last] * 199) if config.train_size == 64 else (0.5, 0.9)
                write_files(program.run_dir, name, config, MadeUp(accuracies=accuracies), 1.0)
            follower.ended(program, RunEnd(started="", failure=failure))


@pytest.fixture
def make_twice(tmp_path, monkeypatch):
    """A function that makes additional runs of a comparison twice; the second time, it makes those that have failed.

    It returns the rows, what was said meanwhile, and the programs that were run.
    """

    def make(*kinds, failing=(), unable=(), **options):
        comparison(tmp_path, **options)
        said, launcher = [], Launcher(failing, unable)
        monkeypatch.setattr(side_runs, "run_programs", launcher)
        request = load(tmp_path).request
        runner = SideRunner(tmp_path, request, make_variants(request.options, request.config), said.append)
        for kind in kinds * 2:
            kind(runner)
        return load(tmp_path).rows.set_index("implementation"), said, launcher.programs

    return make


CHECK = {"check_learning": True, "seeds": [3, 4]}


def test_a_row_that_cannot_learn_what_others_can_is_at_fault(tmp_path, make_twice):
    rows, said, programs = make_twice(make_memorising_runs, make_whole_set_runs, unable=("pt",), **CHECK)
    assert said == [
        "check of learning, memorising a few training images: TensorFlow, PyTorch, Lightning",
        "check of learning, loss on all training images: TensorFlow, PyTorch, Lightning",
    ]
    assert len(programs) == 6 and {program.config.seed for program in programs} == {3}
    assert rows["status"].to_dict() == {"tf": "ok", "pt": "does not learn", "ptl": "ok"}
    note = rows.loc["pt", "note"]
    assert "it did not memorise 64 training images in 200 steps (32 were right at best)" in note
    assert "TensorFlow and Lightning did: look for a mistake in PyTorch" in note
    assert rows.loc["tf", "small_set_steps"] == 2 and rows["learning"]["tf"] == "underfits"
    printed = shown(tmp_path)
    assert "TensorFlow, Lightning: memorised 64 training images in 2 steps\n" in printed
    assert "PyTorch trained" not in printed  # who learns nothing is fast in vain
    page = report(tmp_path)
    assert "<h2>Does it learn?</h2>" in page and 'id="learning"' in page and "Underfitting or overfitting" in page
    assert "TensorFlow, Lightning: memorised 64 training images in 2 steps" in page


def test_where_no_row_can_learn_the_options_are_at_fault(make_twice):
    rows, said, _ = make_twice(make_memorising_runs, failing=("tf",), unable=("pt", "ptl"), **CHECK)
    assert "no check of learning of TensorFlow: exit status 1; see learning/tf/small/log.txt" in said
    assert set(rows["status"]) == {"does not learn"}
    assert all("no row did: look at the options first" in note for note in rows["note"])
    assert "exit status 1: error: training diverged" in rows.loc["tf", "note"]


@pytest.mark.slow
def test_an_implementation_that_learns_nothing_is_found(tmp_path):
    """A step that forgets the gradients of all but the last layer's biases."""
    step = "    scaler.step(optimizer)\n"
    forgets = "    for parameter in list(model.parameters())[:-1]:\n        parameter.grad = None\n"
    folder = changed_code(tmp_path / "code", "pt_impl/train.py", step, forgets + step)
    options = ("--check-learning", "--verify", "never", "--epochs", 2)
    text, _ = compare(tmp_path / "found", *options, cwd=folder, expect=1)
    assert "PyTorch: does not learn: it did not memorise 64 training images in 200 steps" in text
    assert "TensorFlow and Lightning did: look for a mistake in PyTorch" in text


# --- Profiles ---


def test_a_comparison_profiles_each_row_once_in_a_run_of_its_own(tmp_path, make_twice):
    _, said, programs = make_twice(lambda runner: make_profiles(runner, 3), failing=("pt",), profile=3)
    failed = "no profile of PyTorch: exit status 1; see profiles/pt/log.txt"
    rows = "TensorFlow, PyTorch, Lightning"
    assert said == [f"profiling 3 steps of {rows}", failed, "profiling 3 steps of PyTorch", failed]
    assert {(program.config.profile, program.config.max_steps) for program in programs} == {(3, 39)}
    page = report(tmp_path)
    assert page.count("&lt;conv 19&gt;") == 2 and "&lt;conv 9&gt;" not in page  # ten operations of each profile
    assert 'href="profiles/tf/profile/trace.json.gz"' in page and "steps 11 to 13, 200.00 ms each" in page
    assert "Does it learn?" not in page  # without --check-learning
