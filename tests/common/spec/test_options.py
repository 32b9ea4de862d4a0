import json
from typing import get_args

import pytest
from conftest import REPOSITORY

from common.platform.cli import parse_options, to_arguments
from common.platform.errors import UserError
from common.spec.options import RESET_IN, TrainConfig, options_of_kind
from comparison.plan import options as compare_options
from comparison.plan.options import CompareConfig


def parse(*arguments):
    return parse_options(TrainConfig, "python -m pt_impl", "about", arguments)


def test_options_reach_their_fields():
    config = parse(
        *["--batch-size", "7", "--learning-rate", "1e-3", "--nesterov", "true", "--devices", "3", "--precision", "64"],
        *["--dataset", "synthetic", "--image-shape", "16", "20", "3", "--data-dir", "d"],
    )
    assert (config.batch_size, config.learning_rate, config.nesterov, config.devices) == (7, 1e-3, True, 3)
    assert (config.precision, config.image_shape, str(config.data_dir)) == ("64", (16, 20, 3), "d")


def test_every_option_survives_the_way_to_an_implementation():
    config = TrainConfig(
        dataset="synthetic",
        data_dir="a b",
        image_shape=(16, 20, 3),
        train_size=5,
        test_size=6,
        model="lenet",
        sync_batchnorm=True,
        initial_weights="w",
        epochs=2,
        max_steps=3,
        batch_size=4,
        learning_rate=0.123456789012345,
        schedule="constant",
        warmup_steps=1,
        momentum=0.5,
        nesterov=True,
        weight_decay=1e-9,
        label_smoothing=0.1,
        random_crop=2,
        horizontal_flip=True,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        seed=9,
        logger=("tensorboard", "wandb"),
        profile=7,
        accelerator="cpu",
        devices=2,
        strategy="pipeline",
        stages=("cpu", "cpu"),
        num_nodes=2,
        microbatches=4,
        threads_per_device=3,
        mode="tuned",
        precision="64",
        compile=True,
        tf32=True,
        log_every_n_steps=9,
        save_first_batch=True,
        checkpoint_every="epoch",
        resume="auto",
        verify_steps=7,
        evaluate_on="train",
        run_dir="r",
        dry_run=True,
    )
    others = [
        TrainConfig(optimizer="adamw", schedule="step", step_size=2),
        TrainConfig(optimizer="adadelta", schedule="step", gamma=0.5),
    ]
    for name in TrainConfig.model_fields:
        assert any(getattr(one, name) != getattr(TrainConfig(), name) for one in (config, *others)), name
    for one in (config, *others):
        assert parse(*to_arguments(one)) == one


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--momentum 1", "--momentum 1: should be less than 1"),
        ("--learning-rate 1e-46", "--learning-rate 1e-46: counts as 0 in the 32-bit floats"),
        ("--weight-decay 1e-300", "--weight-decay 1e-300: counts as 0 in the 32-bit floats"),
        ("--weight-decay 1e-40", "--weight-decay 1e-40: counts as 0 in the 32-bit floats"),
        ("--gradient-clip-val 1e-300", "--gradient-clip-val 1e-300: counts as 0 in the 32-bit floats"),
        ("--momentum 0.99999999999", "--momentum 0.99999999999: counts as 1 in the 32-bit floats"),
        ("--learning-rate nan", "--learning-rate nan: should be a finite number"),
        ("--model vgg", "--model vgg: should be 'cnn', 'lenet', 'mnist_dropout', 'resnet8', 'resnet18' or 'resnet50'"),
        ("--image-shape 8 8 1", "--image-shape 8 8 1: only for --dataset synthetic, not digits"),
        ("--stages cpu gpu", "--stages cpu gpu: needs --strategy pipeline"),
        ("--microbatches 2", "--microbatches 2: needs --strategy pipeline"),
        ("--strategy pipeline --microbatches 3", "--microbatches 3: does not divide --batch-size 64"),
        ("--strategy pipeline --stages cpu gpu --accelerator cpu", "--stages cpu gpu: at odds with --accelerator cpu"),
        ("--nesterov true --momentum 0", "--nesterov true needs --momentum above 0"),
        ("--optimizer adam --nesterov true", "--nesterov true: needs --optimizer sgd, not adam"),
        ("--optimizer adadelta --momentum 0", "--momentum 0.0: needs --optimizer sgd, not adadelta"),
        ("--gamma 0.5", "--gamma 0.5: needs --schedule step, not cosine"),
        ("--optimizer adams", "--optimizer adams: should be 'sgd', 'adam', 'adamw' or 'adadelta'"),
        ("--epochs 0", "--epochs 0: should be greater than 0"),
        ("--max-steps 0", "--max-steps 0: at least 1, or -1 for no limit"),
        ("--accumulate-grad-batches 0", "--accumulate-grad-batches 0: should be greater than 0"),
        ("--gradient-clip-val 0", "--gradient-clip-val 0: should be greater than 0"),
    ],
)
def test_mistakes_are_reported_in_one_line_that_names_the_option(arguments, message):
    with pytest.raises(UserError) as caught:
        parse(*arguments.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_digest_is_over_the_training_and_not_over_paths():
    config = TrainConfig()
    assert config.sha256() == config.replace(data_dir="elsewhere", run_dir="r", log_every_n_steps=3).sha256()
    assert config.sha256() != config.replace(seed=1).sha256()
    assert config.sha256() != config.replace(devices=2).sha256()
    json.dumps(config.training_fields())


def test_compare_passes_every_training_option_on():
    options = parse_options(CompareConfig, "compare.py", "about", ["--batch-size", "5", "--python", "tf=python3"])
    assert options.train_config() == TrainConfig(batch_size=5)
    assert set(TrainConfig.model_fields) - set(CompareConfig.model_fields) == {
        "run_dir",
        "dry_run",
        "seed",
        "initial_weights",
        "verify_steps",
        "evaluate_on",
        "log_every_n_steps",
        "save_first_batch",
    }


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_configurations_that_ship_are_whole_and_for_all_programs(path):
    config = parse("--config", str(path))
    assert (config.dataset, config.model) in {("mnist", "lenet"), ("cifar10", "resnet8")}
    options = parse_options(CompareConfig, "compare.py", "", ["--config", str(path)])
    assert options.train_config() == config
    command = next(line for line in path.read_text().splitlines() if "python compare.py" in line)
    assert f"--config configs/{path.name}" in command


def test_every_option_says_what_kind_it_is():
    kinds = tuple(RESET_IN)
    assert options_of_kind(TrainConfig, *kinds) == list(TrainConfig.model_fields)
    assert options_of_kind(CompareConfig, *kinds, *get_args(compare_options.Kind)) == list(CompareConfig.model_fields)
    for kind in kinds:
        assert options_of_kind(TrainConfig, kind), kind


def test_places_and_output_are_no_part_of_the_training(tmp_path):
    given = TrainConfig(dry_run=True, run_dir=tmp_path, data_dir=tmp_path, log_every_n_steps=3, save_first_batch=True)
    assert given.sha256() == TrainConfig().sha256() != TrainConfig(batch_size=3).sha256()


def test_zero_has_no_sign():
    config = parse("--label-smoothing", "-0", "--momentum", "-0.0")
    assert config == parse("--momentum", "0") and config.sha256() == parse("--momentum", "0").sha256()
