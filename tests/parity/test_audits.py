"""Audits: steps of sound runs pass them, and mistakes that exist only in the timed run do not."""

import random
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from agreement import RANDOM_SETTINGS, rotated
from conftest import IMPLEMENTATIONS, changed_code, compare, each_mistake, run, train
from mistakes import MISTAKES, OF_EVALUATION

from common.experiment import Experiment
from common.platform.cli import parse_options
from common.platform.files import read_safetensors, read_safetensors_metadata, write_safetensors
from common.record.audited_states import STATES_DIR, STEPS_VARIABLE, audited_state_path, audited_state_steps
from common.record.results import WEIGHTS_FILE, read_result
from common.spec.options import TrainConfig
from comparison.lockstep import ROUNDOFF, find_loss_jump, loss_differences, roundoff
from comparison.prove import differences
from comparison.prove.audits import PROVABLE_SHARE, audited_steps_around, choose_audited_steps, first_state, make_audits
from comparison.prove.differences import ROUNDING_ERRORS
from comparison.prove.reference import compute_gradients

# An epoch has 11 steps; the last one has 10 examples.
SMALL = ("--train-size", 170, "--test-size", 100, "--batch-size", 16, "--epochs", 3)
STEPS = (1, 9, 11, 12, 33)


def audited(implementation, run_dir, *options, steps=STEPS, **more):
    """Trains, then audits; returns the audits."""
    train(implementation, run_dir, *options, **{STEPS_VARIABLE: " ".join(map(str, steps))}, **more)
    return make_audits(run_dir, steps)


# --- Sound runs ---

SETTINGS = {
    "sgd": (*SMALL, "--momentum", 0.9, "--nesterov", "true", "--weight-decay", 0.01, "--gradient-clip-val", 0.5),
    "adam": (
        *(*SMALL, "--optimizer", "adam", "--schedule", "one-cycle", "--seed", 2**33 + 1),
        *("--random-crop", 2, "--horizontal-flip", "true", "--devices", 2),
    ),
    "adamw": (*SMALL, "--optimizer", "adamw", "--label-smoothing", 0.1, "--devices", 3),
    "adadelta": (*SMALL, "--optimizer", "adadelta", "--model", "mnist_dropout", "--accumulate-grad-batches", 2),
    "resnet8": (*SMALL, "--model", "resnet8", "--devices", 2),
    "synchronised": (*SMALL, "--model", "resnet8", "--devices", 2, "--sync-batchnorm", "true"),
    "bf16": (*SMALL, "--precision", "bf16-mixed", "--model", "mnist_dropout", "--random-crop", 2),
    "float16": (*SMALL, "--precision", "16-mixed", "--gradient-clip-val", 0.5, "--devices", 3),
    "float64": (*SMALL, "--precision", "64"),
    "learned": ("--train-size", 340, "--batch-size", 32, "--epochs", 40),  # at the end the loss is 3e-4
}


# Half of the pairs, so that each setting is in both modes, and each implementation too.
RUNS = [case for case in rotated(SETTINGS, IMPLEMENTATIONS, [("plain",), (), ("tuned",), ()]) if len(case) == 3]


@pytest.mark.quick("adam-ptl", "resnet8-tf", "sgd-pt")
@pytest.mark.parametrize(
    ("setting", "implementation", "mode"),
    [
        *(run for run in RUNS if run[:2] != ("adadelta", "keras")),  # Keras's fit can't accumulate batches
        *((setting, "keras_torch", "tutorial") for setting in ("sgd", "learned")),
        *((setting, "keras_jax", "tutorial") for setting in ("sgd", "float64")),
    ],
)
def test_steps_and_evaluation_of_sound_runs_pass(tmp_path, setting, implementation, mode):
    options = (*SETTINGS[setting], "--mode", mode, "--compile", "false")
    steps = {"learned": (1, 300, 435, 440), "adadelta": (1, 6, 7, 18)}.get(setting, STEPS)
    audits = audited(implementation, tmp_path / "run", *options, steps=steps)
    notes = [audit.note for audit in (*audits.steps, *audits.evaluations) if audit.same is not True]
    # A call of ten steps with batch normalisation may amplify rounding so much that nothing is proved of it.
    amplifies = (implementation, mode) == ("keras", "tuned") and setting in ("resnet8", "synchronised")
    allowed = ("loss scaling skipped it", *(["rounding explains"] if amplifies else []))
    assert all(note.startswith(allowed) for note in notes) and len(notes) < len(audits.steps), notes
    for step in steps:
        assert any(audit.first_step <= step <= audit.last_step for audit in audits.steps), step
    half = setting in ("bf16", "float16")
    explained = sorted(audit.explained for audit in audits.steps)
    # A random error may turn a ReLU unit near a tie, and so explain much of one step.
    assert amplifies or explained[-1] < PROVABLE_SHARE and (half or explained[-2] < 0.04), explained
    assert not (tmp_path / "run" / STATES_DIR).exists()
    assert read_result(tmp_path / "run").config.precision != "auto"


@pytest.mark.parametrize(
    ("accelerator", "precision", "at_least", "at_most"),
    [("cpu", "32", 1e-6, 1e-4), ("gpu", "32", 1e-3, 1e-1), ("gpu", "64", 1e-15, 1e-11)],
)
def test_on_gpus_winograds_algorithm_explains_more_of_a_5_x_5_convolution(accelerator, precision, at_least, at_most):
    options = {"dataset": "synthetic", "image_shape": (28, 28, 1), "model": "lenet", "train_size": 64, "batch_size": 32}
    config = TrainConfig(**options, accelerator=accelerator, precision=precision, tf32=False, devices=1)
    experiment = Experiment.make(config)
    exact, rounded = (
        compute_gradients(experiment, first_state(experiment), errors, 1).gradients["conv2.kernel"]
        for errors in (0.0, ROUNDING_ERRORS[precision] * ROUNDOFF[precision])
    )
    assert at_least < np.linalg.norm(rounded - exact) / np.linalg.norm(exact) < at_most


def draw(chance):
    """An implementation and options that a user might choose."""
    model = chance.choice(["cnn", "cnn", "lenet", "mnist_dropout", "resnet8", "resnet18"])
    optimizer = chance.choice(["sgd", "sgd", "adam", "adamw", "adadelta"])
    implementation = chance.choice(IMPLEMENTATIONS)
    half = "bf16-mixed" if model == "resnet18" else "16-mixed"  # processors compute an image a second in float16
    options = {
        "mode": chance.choice(["plain", "tuned"]),
        "model": model,
        "optimizer": optimizer,
        "schedule": chance.choice(["constant", "cosine", "step", "one-cycle"]),
        "seed": chance.choice([chance.randrange(1000), chance.randrange(2**33, 2**40)]),
        "batch_size": chance.choice([8, 16, 32, 64, 100]),
        "epochs": chance.randint(2, 4),
        "devices": chance.choice([1, 1, 2, 3]),
        "precision": chance.choice(["32", "32", "32", "64", "bf16-mixed", half]),
        "train_size": chance.randint(60, 400),
        "test_size": chance.randint(20, 100),
        "compile": "false",
    }
    if model in ("lenet", "resnet18"):  # larger images, so fewer of them
        options |= {"dataset": "synthetic", "image_shape": "28 28 1" if model == "lenet" else "16 16 3"}
        options |= {"train_size": chance.randint(40, 100), "batch_size": chance.choice([8, 16])}
    now_and_then = [
        (0.3, {"label_smoothing": 0.1}),
        (0.3, {"gradient_clip_val": chance.choice([0.1, 1])}),
        (0.3, {"weight_decay": chance.choice([1e-4, 1e-2])}),
        (0.25, {"random_crop": 2, "horizontal_flip": "true"}),
        (0.2, {"warmup_steps": 1}),
        (0.3, {"learning_rate": 10 ** chance.uniform(-4, -1)}),
        (0.2, {"checkpoint_every": chance.choice(["epoch", 7])}),
        (0.3 * (optimizer == "sgd"), {"momentum": chance.choice([0, 0.5])}),
        (0.3 * (optimizer == "sgd"), {"momentum": chance.choice([0.5, 0.9]), "nesterov": "true"}),
        (0.3 * ("resnet" in model), {"sync_batchnorm": "true"}),
        (0.2 * (implementation != "keras"), {"accumulate_grad_batches": chance.choice([2, 3])}),
    ]
    for share, more in now_and_then:
        options |= more if chance.random() < share else {}
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", *str(value).split())]
    return implementation, words


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RANDOM_SETTINGS // 10))
def test_of_random_settings_none_is_accused(tmp_path, number):
    chance = random.Random(number)
    without = 0  # a result: refused combinations, and trainings that diverge
    for index in range(10):
        implementation, options = draw(chance)
        steps = choose_audited_steps(Experiment.make(parse_options(TrainConfig, "", "", options)), 1, chance)
        try:
            audits = audited(implementation, tmp_path / str(index), *options, steps=steps)
        except AssertionError as error:
            assert "exit status 2" in str(error) or "training diverged" in str(error), (implementation, options)
            without += 1
            continue
        assert not audits.different, (implementation, options, audits.different)
        shutil.rmtree(tmp_path / str(index))
    assert without <= 4


def test_the_first_step_after_a_resumption_is_audited_from_the_checkpoint(tmp_path):
    train("tf", tmp_path / "first", *SMALL, "--checkpoint-every", 15)
    checkpoint = tmp_path / "first" / "checkpoints" / "step-000000030"
    audits = audited("pt", tmp_path / "run", *SMALL, "--resume", checkpoint, steps=(3, 31, 33))
    assert [(audit.last_step, audit.same) for audit in audits.steps] == [(31, True), (33, True), (3, None)]
    assert "were not kept" in audits.steps[-1].note


@pytest.mark.parametrize(("gradient", "explains"), [(1e-3, True), (2e-3, False)])
def test_a_sign_that_a_small_gradient_may_change_is_explained_and_others_are_not(gradient, explains):
    """As in Adam's first step. No sample changes the sign: each is 6e-4 away, to one side."""
    _, (difference,) = differences.compare(
        lambda errors, seed: {"1.weight": np.array([gradient + (6e-4 if errors else 0.0)])},
        lambda computed: {"weights.weight": np.sign(computed["1.weight"])},
        {"weights.weight": np.array([-1.0])},
        {},
        TrainConfig(precision="32"),
        most_samples=3,
        stored=0.0,
    )
    assert (difference.size, difference.explained) == (2.0, 2.0 if explains else 0.0)
    assert difference.is_beyond is not explains


# --- Wrong steps ---


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run whose states are still there."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    return train("pt", folder, *SMALL, "--schedule", "step", "--step-size", 1, **{STEPS_VARIABLE: "1 12 33"})


@pytest.mark.parametrize(
    ("after", "name", "scale", "slope", "what", "same", "said"),
    [
        (12, "slots.velocity.conv2.kernel", 1.01, 0, "step 12", False, "gradients of conv2"),
        (12, "weights.dense2.bias", 1.001, 0, "step 12", False, "the slots are right"),
        (11, "weights.dense2.bias", 1, 1e-3, "evaluation after step 11", False, "how the test set is"),
        (None, "dense2.bias", 1, 1e-3, "evaluation after step 33", False, "has other weights than those"),
        (12, "weights.dense2.bias", np.nan, 0, "step 12", None, "contains NaN or infinity"),
    ],
)
def test_what_is_wrong_in_a_stored_state_is_found(kept, tmp_path, after, name, scale, slope, what, same, said):
    """A damaged state proves nothing. The states of a difference are kept."""
    copy = shutil.copytree(kept, tmp_path / "run")
    path = audited_state_path(copy, after) if after else copy / WEIGHTS_FILE
    arrays, metadata = read_safetensors(path), read_safetensors_metadata(path)
    changed = arrays[name] * scale + np.linspace(0, slope, arrays[name].shape[-1])
    write_safetensors(path, arrays | {name: changed.astype(np.float32)}, metadata)
    audits = make_audits(copy, (1, 12, 33))
    found = [audit for audit in (*audits.steps, *audits.evaluations) if audit.same is same]
    assert what in [audit.what for audit in found] and said in found[-1].note
    assert audited_state_steps(copy) == ([1, 11, 12, 32, 33] if same is False else [])


@each_mistake(MISTAKES, lambda name: name == "half a batch in 32 bits")
def test_compare_finds_a_mistake_in_the_timed_run_and_names_its_row_and_place(tmp_path, mutation):
    file, before, after, words, *options = MISTAKES[mutation]
    folder = changed_code(tmp_path / "copy", file, before, after)
    changed = file.partition("_")[0]
    rows = ("tf", "pt") if changed == "tf" else ("pt", "keras") if changed == "keras" else ("tf", changed)
    options = ("--implementations", *rows, "--epochs", 6, *options)
    _, (first, second) = compare(tmp_path / "r", *options, cwd=folder, expect=1)
    wrong, sound = (first, second) if changed == "tf" else (second, first)
    assert wrong["status"] == f"different {'evaluation' if mutation in OF_EVALUATION else 'training'}", wrong
    assert any(each in wrong["note"] for each in ((words,) if isinstance(words, str) else words)), wrong
    assert sound["status"] == ("not proved" if wrong is first else "ok") and int(sound["audited_steps"]) >= 5, sound
    assert second["ratio"] == ""


@pytest.mark.slow
def test_a_row_whose_losses_suddenly_part_is_audited_there_whatever_other_rows_do(tmp_path):
    folder = changed_code(
        tmp_path / "copy",
        "pt_impl/train.py",
        "        parts.train_batches.sampler.set_epoch(epoch)\n",
        "        parts.train_batches.sampler.set_epoch(epoch)\n        if epoch == 2:\n"
        "            parts.optimizer.state.clear()\n",
    )
    for file, before, after in (
        ("ptl_impl/train.py", "        factor = self.trainer", "        factor = 2 * self.trainer"),
        ("comparison/prove/audits.py", "MOST_STEPS = 7", "MOST_STEPS = 1"),  # chance alone does not find it
    ):
        path = folder / file
        assert before in path.read_text()
        path.write_text(path.read_text().replace(before, after))
    options = ("--implementations", "tf", "ptl", "pt", "--epochs", 4)
    text, (first, visible, late) = compare(tmp_path / "r", *options, cwd=folder, expect=1)
    assert "losses suddenly part from those of TensorFlow (seed 0): PyTorch at step 4" in text
    assert [row["status"] for row in (first, visible, late)] == ["ok", "different training", "different training"]
    assert "repeated run, step 47: " in late["note"], late
    closer = tmp_path / "r" / "proofs" / "pt" / "closer"
    (closer / "audits.json").unlink()  # as if it had been interrupted
    (closer.parent.parent / "tf" / "closer" / "audits.json").unlink()
    done = run(sys.executable, "compare.py", "--report-only", tmp_path / "r", cwd=folder, expect=1)
    assert "warning: PyTorch: its losses suddenly part from the first row's at step 4" in " ".join(done.stdout.split())
    done = run(sys.executable, "compare.py", "--resume", tmp_path / "r", cwd=folder, expect=1)
    assert "PyTorch at step 4" in done.stdout and (closer / "audits.json").exists()


# mistake: the code that is inserted before `PASS` in pt_impl/train.py
PASS = "    with autocast:\n        logits = model(inputs)\n"
FEWER_BITS = {
    # TF32 as on GPUs: the factors of products keep 10 of 23 bits of the mantissa, rounded to nearest, ties to even.
    "TF32": """
    def cut(module, inputs):
        bits = [one.view(torch.int32) for one in inputs]
        return tuple((one + 4095 + (one >> 13 & 1) & -8192).view(torch.float32) for one in bits)
    if not hasattr(model, "cut"):
        for module in model.modules():
            if hasattr(module, "weight"):
                module.register_forward_pre_hook(cut)
                module.weight.data = cut(module, [module.weight.data])[0]
        model.cut = True
""",
    "a layer in float16": """
    if not hasattr(model, "cut"):
        layer = torch.nn.Linear(model.dense1.in_features, model.dense1.out_features).half()
        layer.load_state_dict(model.dense1.state_dict())
        model.dense1.forward = lambda images: layer(images.half()).float()
        model.cut = True
""",
}


@pytest.mark.parametrize(("mistake", "batch_size"), [("TF32", 256), ("a layer in float16", 16)])
def test_fewer_bits_by_accident_show_in_a_step(tmp_path, mistake, batch_size):
    """Runs in 64 bits can't show these mistakes: TF32 left on, or a layer in 16 bits."""
    folder = changed_code(tmp_path, "pt_impl/train.py", PASS, FEWER_BITS[mistake] + PASS)
    options = ("--train-size", 418, "--test-size", 50, "--batch-size", batch_size, "--max-steps", 1)
    audits = audited("pt", tmp_path / "cut", *options, cwd=folder, steps=(1,))
    assert [audit.first_step for audit in audits.different[:1]] == [1]


@pytest.mark.slow
def test_losses_that_part_by_rounding_alone_accuse_nobody(tmp_path):
    """With a tolerance below the rounding of 64 bits all proofs are in doubt, and their audits decide."""
    tolerance = ("comparison/prove/proof.py", "LOSS_TOLERANCE = 1e-10", "LOSS_TOLERANCE = 1e-17")
    folder = changed_code(tmp_path / "copy", *tolerance)
    text, rows = compare(tmp_path / "r", "--implementations", "tf", "pt", "--epochs", 2, cwd=folder)
    assert "losses differ; looking for the layer and the step" in text
    assert [row["same_training"] for row in rows] == ["", "True"]


# --- Which steps, and what is kept ---


def test_the_steps_to_audit():
    """The first, some at random, and those where something changes: an epoch, the rate, a checkpoint, a resumption."""
    experiment = Experiment.make(TrainConfig(epochs=9, schedule="step", step_size=4, checkpoint_every=50))
    plan = experiment.plan
    chosen = [set(choose_audited_steps(experiment, 1, random.Random(seed))) for seed in range(200)]
    assert all(len(steps) == 7 and {1, plan.total_steps} < steps <= set(range(1, 208)) for steps in chosen)
    ends = {plan.last_step(epoch) for epoch in range(1, 9)}
    assert all(any({end, end + 1} <= steps for end in ends) for steps in chosen)
    assert all(steps & {93, 185} and steps & {51, 101, 151, 201} for steps in chosen)
    assert len(set().union(*chosen)) > 100
    resumed = replace(experiment, plan=replace(plan, first_step=200))
    assert all(200 in choose_audited_steps(resumed, 1, random.Random(seed)) for seed in range(20))


def test_of_large_images_one_step_is_audited_in_the_first_round_with_the_smallest_batch():
    large = TrainConfig(dataset="synthetic", image_shape=(96, 64, 3), train_size=150, epochs=7)
    chosen = [choose_audited_steps(Experiment.make(large), number, random.Random(0)) for number in (1, 2)]
    assert len(chosen[0]) == 1 and chosen[0][0] % 3 == 0 and not chosen[1]  # the third of an epoch has 22 images


def test_differences_are_relative_above_a_loss_of_1_and_absolute_below():
    assert loss_differences([2.0, 0.5, 1.0], [2.2, 0.6]) == pytest.approx([0.1, 0.1])  # of the steps that both took
    assert np.isnan(loss_differences([1.0], [float("nan")])[0])
    one, half = TrainConfig(precision="32"), TrainConfig(precision="bf16-mixed")
    assert roundoff(one) == 2.0**-24 and roundoff(one, half) == 2.0**-8  # of the coarsest precision


def test_losses_that_part_suddenly_are_looked_at_closer():
    configs = (TrainConfig(precision="32", tf32=False),) * 2
    first = [1.0] * 60
    grows = [1 + min(1e-2, 1e-7 * 2**step) for step in range(60)]  # as rounding errors do
    jumps = first[:40] + [1.001] * 20
    evaluations = ({23: 0.5, 46: 0.4}, {23: 0.5, 46: 0.401})
    assert find_loss_jump((first, jumps), ({}, {}), configs) == 41
    assert find_loss_jump((first, first), evaluations, configs) == 46
    for losses, of in ((grows, ({}, {})), (grows, evaluations)):  # no more than the losses before it
        assert find_loss_jump((first, losses), of, configs) is None
    half = tuple(config.replace(precision="bf16-mixed") for config in configs)
    assert find_loss_jump((first, jumps), ({}, {}), half) is None
    plan = TrainConfig(epochs=6).plan(1437)
    assert audited_steps_around(plan, 94) == (92, 93, 94, 95)


def test_an_audit_takes_no_measured_second(tmp_path):
    """A second for each state: the run waits, and trains as fast as without audits."""
    slow = changed_code(
        tmp_path / "copy",
        "pt_impl/parts.py",
        "        return get_state(",
        "        import time\n        time.sleep(1)\n        return get_state(",
    )
    options, steps = (*SMALL, "--train-size", 340, "--batch-size", 32), {STEPS_VARIABLE: "20 22"}
    result = read_result(train("pt", tmp_path / "run", *options, cwd=slow, **steps))
    assert result.phase_seconds["waiting"] > 4 and sum(result.epoch_train_seconds) < 1
    assert result.images_per_second > 340  # 300 timed images a second, if one of the four counted
