"""`compare.py --check-learning`: memorising a few images, then all of them, and what the report says of both."""

import math
import sys

import numpy as np
import pytest
from conftest import ONE_ROUND, changed_code, run, train
from made_up import MadeUp, comparison, write_files
from rich.console import Console

from common.data.datasets import load_dataset
from common.record.results import EpochLine, read_metrics, read_result
from common.spec.options import TrainConfig
from comparison.measure.summary import find_runs, summarise
from comparison.plan.jobs import make_variants
from comparison.prove.learning import (
    SMALL,
    WHOLE,
    Fit,
    by_heart,
    evaluated_on_training,
    learning_path,
    make_memorising_runs,
    make_whole_set_runs,
    read_fit,
    read_small_set,
)
from comparison.run.program import Ended
from comparison.run.side_runs import SideRunner
from comparison.run.store import FAILURE_FILE
from comparison.show.export import write_tables
from comparison.show.report.page import write_report
from comparison.show.terminal import print_conclusions, print_tables

# --- The verdict ---


def epochs(losses, accuracies, count=1000):
    """Evaluations of so many examples; `accuracies`: of the last ones, which is what counts."""
    accuracies = [accuracies] * len(losses)
    return [
        EpochLine(
            kind="epoch",
            epoch=number,
            train_loss=1.0,
            train_accuracy=0.5,
            test_loss=loss,
            test_accuracy=accuracy,
            test_correct=round(accuracy * count),
            test_count=count,
            train_seconds=1.0,
            eval_seconds=0.1,
        )
        for number, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), 1)
    ]


FALLING = [0.9, 0.5, 0.3, 0.2, 0.15, 0.12, 0.1]
RISING = [0.9, 0.6, 0.5, 0.55, 0.6, 0.7, 0.8]


def fit(train_losses, train_accuracy, test_losses, test_accuracy, count=1000, commonest=0.1):
    train, test = epochs(train_losses, train_accuracy, count), epochs(test_losses, test_accuracy, count)
    return Fit(train, test, commonest)


@pytest.mark.parametrize(
    ("verdict", "found", "says"),
    [
        ("fits", fit(FALLING, 1.0, FALLING, 0.995), "100.00% of training images and 99.50% of test images are right"),
        # Ten test images of twenty more wrong: chance explains it.
        ("fits", fit(FALLING, 1.0, FALLING, 0.9, count=20), "losses are 0.1000 and 0.1000"),
        ("overfits", fit(FALLING, 1.0, FALLING, 0.9), "augmentation"),
        ("overfits", fit(FALLING, 0.95, FALLING, 0.85), "augmentation"),
        ("underfits", fit(FALLING, 0.85, FALLING, 0.84), "try more epochs"),
        ("underfits", fit([2.0, 0.5, 0.5], 0.85, FALLING[:3], 0.84), "no longer falls"),
        ("underfits", fit([0.5], 0.85, [0.5], 0.84), "try more epochs"),
        # The larger part of the error is there on training images, too.
        ("underfits", fit(FALLING, 0.80, FALLING, 0.70), "try more epochs"),
        ("overfits", fit(FALLING, 0.995, RISING, 0.992), "lowest after epoch 3 and has risen by 27% since"),
        # A loss that rises on training images as well: it diverges, and does not overfit.
        ("underfits", fit(RISING, 0.9, RISING, 0.9), "no longer falls"),
        # One bad epoch is noise.
        ("fits", fit(FALLING, 1.0, [*FALLING[:-1], 0.14], 1.0), ""),
        ("fits", fit(FALLING[:3], 1.0, RISING[2:5], 1.0), ""),  # too few epochs to tell
        ("learns nothing", fit([2.3] * 7, 0.11, [2.3] * 7, 0.1), "another learning rate"),
        ("learns nothing", fit([0.7] * 7, 0.5, [0.7] * 7, 0.5, commonest=0.5), "another learning rate"),
        ("underfits", fit([0.6] * 7, 0.6, [0.6] * 7, 0.6, commonest=0.5), "no longer falls"),
    ],
)
def test_the_larger_part_of_the_error_is_what_it_is_called_for(verdict, found, says):
    assert found.verdict == verdict and says in found.words


def test_equal_trainings_are_rarely_called_overfitting():
    """Of networks that are right on 95 % of all images, training and test images alike, chance alone decides."""
    generator = np.random.default_rng(0)
    called = 0
    for _ in range(1000):
        right = generator.binomial(500, 0.95, 2) / 500
        called += fit(FALLING, right[0], FALLING, right[1], count=500).verdict == "overfits"
    assert called <= 50


# --- The runs ---


def test_the_small_set_is_learned_without_what_prevents_that():
    config = TrainConfig(
        batch_size=48,
        weight_decay=0.1,
        label_smoothing=0.1,
        random_crop=2,
        horizontal_flip=True,
        schedule="one-cycle",
        max_steps=10,
        epochs=1,
        learning_rate=0.03,
        momentum=0.5,
        model="mnist_dropout",
        dataset="mnist",
    )
    small = by_heart(config)
    plan = small.plan(small.train_size)
    assert (small.train_size, small.test_size, small.evaluate_on) == (64, 64, "train")
    assert plan.total_steps == 200 and plan.steps_per_epoch == 2 and small.schedule == "constant"
    kept = {"model", "dataset", "batch_size", "optimizer", "learning_rate", "momentum", "devices", "precision", "seed"}
    assert all(getattr(small, name) == getattr(config, name) for name in kept)
    plain = TrainConfig()
    without = {"weight_decay": 0.0, "label_smoothing": 0.0, "random_crop": 0, "horizontal_flip": False}
    assert {name: getattr(small, name) for name in without} == without
    assert small.max_steps == plain.max_steps


def test_a_small_set_is_no_larger_than_the_training_set_and_feeds_all_replicas():
    few = TrainConfig(train_size=40)
    assert by_heart(few).train_size == 40 and math.ceil(40 / 64) * by_heart(few).epochs == 200
    many = TrainConfig(devices=128, batch_size=256)
    assert by_heart(many).train_size == 128
    assert evaluated_on_training(TrainConfig()) == TrainConfig(evaluate_on="train", test_size=355)
    assert evaluated_on_training(TrainConfig(train_size=100)).test_size == 100


def test_evaluating_on_training_images_takes_those_that_are_trained_on():
    data = load_dataset(TrainConfig(train_size=100, test_size=30, evaluate_on="train"))
    whole = load_dataset(TrainConfig())
    assert np.array_equal(data.test_images, whole.train_images[:30])
    assert np.array_equal(data.test_labels, whole.train_labels[:30])
    assert np.array_equal(data.train_images, whole.train_images[:100])


class Launcher:
    """Writes what runs leave; those of `failing` fail, and those of `unable` get no more than half right."""

    def __init__(self, failing=(), unable=()):
        self.failing, self.unable, self.programs = failing, unable, []

    def run(self, groups, at_once, timeout, follower):
        for program in (program for group in groups for program in group):
            self.programs.append(program)
            program.run_dir.mkdir(parents=True)
            name, small = program.implementation, program.config.train_size == 64
            failure = None
            if name in self.failing:
                (program.run_dir / "log.txt").write_text("epoch 1/200\nerror: training diverged\n")
                failure = "exit status 1"
            else:
                accuracies = (0.5, *[0.5 if name in self.unable else 1.0] * 199) if small else (0.5, 0.9)
                write_files(program.run_dir, name, program.config, MadeUp(accuracies=accuracies), 1.0)
            follower.ended(
                program, Ended.unknown(failure) if failure else Ended.unknown("x").model_copy(update={"failure": None})
            )


def checked(folder, launcher, **options):
    """A comparison that was checked; its summary, and what was said meanwhile."""
    said = []
    request = comparison(folder, check_learning=True, **options).request
    variants = make_variants(request.options, request.config)
    runner = SideRunner(folder, request, variants, said.append, launcher.run)
    make_memorising_runs(runner)
    make_whole_set_runs(runner)
    runs, missing = find_runs(folder, request)
    return summarise(folder, request, runs, len(missing)), said, runner


def test_each_row_is_checked_once(tmp_path):
    launcher = Launcher()
    summary, said, runner = checked(tmp_path, launcher, seeds=[3, 4])
    assert said == [
        "check of learning, memorising a few training images: TensorFlow, PyTorch, Lightning",
        "check of learning, loss on all training images: TensorFlow, PyTorch, Lightning",
    ]
    assert len(launcher.programs) == 6
    assert {program.config.seed for program in launcher.programs} == {3}
    assert {run.result.config.evaluate_on for run in summary.runs} == {"test"}  # the measured ones
    make_memorising_runs(runner)
    assert len(launcher.programs) == 6  # all are there


def test_a_row_that_cannot_learn_what_others_can_is_at_fault(tmp_path, capsys):
    summary, said, _ = checked(tmp_path, Launcher(unable=("pt",)))
    tensorflow, pytorch, lightning = summary.rows
    assert (tensorflow.status, pytorch.status, lightning.status) == ("ok", "does not learn", "ok")
    assert not summary.succeeded
    assert "it did not memorise 64 training images in 200 steps (32 were right at best)" in pytorch.note
    assert "TensorFlow and Lightning did: look for a mistake in PyTorch" in pytorch.note
    assert tensorflow.small_set_steps == 2 and pytorch.small_set_steps is None
    console = Console(width=80, highlight=False, markup=False, emoji=False)
    print_tables(console, summary)
    print_conclusions(console, summary)
    printed = capsys.readouterr().out
    assert "PyTorch: does not learn" in printed and "not 64" in printed and "64 in 2 steps" in printed
    assert "TensorFlow, Lightning: memorised 64 training images in 2 steps\n" in printed
    assert "PyTorch trained" not in printed  # who learns nothing is fast in vain
    assert all(len(line) <= 80 for line in printed.splitlines() if " " * 3 in line)


def test_where_no_row_can_learn_the_options_are_at_fault(tmp_path):
    summary, said, _ = checked(tmp_path, Launcher(failing=("tf",), unable=("pt", "ptl")))
    assert "no check of learning of TensorFlow: exit status 1; see learning/tf/small/log.txt" in said
    assert {row.status for row in summary.rows} == {"does not learn"}
    assert all("no row did: look at the options first" in row.note for row in summary.rows)
    assert "exit status 1: error: training diverged" in summary.rows[0].note
    assert (tmp_path / learning_path({}, "tf", SMALL) / FAILURE_FILE).exists()


def test_the_report_shows_both_steps_and_the_curves(tmp_path):
    summary, _, _ = checked(tmp_path, Launcher())
    write_tables(summary)
    write_report(summary)
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Does it learn?</h2>" in page and 'id="learning"' in page and "Underfitting or overfitting" in page
    learned = "TensorFlow, PyTorch, Lightning: memorised 64 training images in 2 steps"
    assert learned in page and learned in (tmp_path / "results.md").read_text()
    assert (tmp_path / "figures" / "learning.svg").exists()
    assert "underfits" in (tmp_path / "results.csv").read_text()
    fit = read_fit(tmp_path, {}, "pt", summary.tables[0].rows[1].runs)
    assert fit.verdict == "underfits" and fit.commonest == pytest.approx(0.1, abs=0.02)


def test_a_check_with_damaged_files_is_made_again(tmp_path):
    launcher = Launcher()
    summary, _, runner = checked(tmp_path, launcher)
    damaged = tmp_path / learning_path({}, "pt", WHOLE)
    (damaged / "predictions.safetensors").write_bytes(b"damaged")
    assert read_fit(tmp_path, {}, "pt", summary.tables[0].rows[1].runs) is None
    make_whole_set_runs(runner)
    assert [program.run_dir for program in launcher.programs[6:]] == [damaged]
    assert read_fit(tmp_path, {}, "pt", summary.tables[0].rows[1].runs).verdict == "underfits"


def test_without_it_nothing_is_said_of_learning(tmp_path):
    summary = comparison(tmp_path)
    write_report(summary)
    page = (tmp_path / "report.html").read_text()
    assert "Does it learn?" not in page and 'id="learning"' not in page
    assert read_small_set(tmp_path, {}, "tf") is None
    assert {row.status for row in summary.rows} == {"ok"}


# --- Real runs ---


def test_a_run_evaluated_on_training_images_is_the_same_training(tmp_path):
    """And what it evaluates is what `evaluate` makes of these images."""
    options = ("--train-size", 200, "--epochs", 2)
    on_test, on_train = (
        train("pt", tmp_path / kind, *options, "--evaluate-on", kind, "--test-size", 50) for kind in ("test", "train")
    )
    losses = [(metric.train_loss, metric.train_accuracy) for metric in read_metrics(on_test, EpochLine)]
    assert losses == [(metric.train_loss, metric.train_accuracy) for metric in read_metrics(on_train, EpochLine)]
    assert read_result(on_test).test_loss != read_result(on_train).test_loss


@pytest.mark.slow
def test_an_implementation_that_learns_nothing_is_found(tmp_path):
    """A step that forgets the gradients of all but the last layer's biases."""
    forgets = "    scaler.step(optimizer)\n"
    folder = changed_code(
        tmp_path / "code",
        "pt_impl/train.py",
        forgets,
        "    for parameter in list(model.parameters())[:-1]:\n        parameter.grad = None\n" + forgets,
    )
    options = ("--check-learning", "--verify", "never", "--epochs", 2, *ONE_ROUND, "--output-dir", tmp_path / "found")
    done = run(sys.executable, "compare.py", *options, cwd=folder, expect=1)
    assert "PyTorch: does not learn: it did not memorise 64 training images in 200 steps" in done.stdout
    assert "TensorFlow and Lightning did: look for a mistake in PyTorch" in done.stdout
