"""Options from the command line and from files: a configuration, or one line that names the option and the value."""

import pytest
from conftest import REPOSITORY

from common.platform.cli import option_name, parse_options, to_arguments
from common.platform.errors import UserError
from common.spec.options import RESET_IN, TrainConfig, options_of_kind
from comparison.plan.options import CompareConfig


def parse(*arguments):
    return parse_options(TrainConfig, "python -m pt_impl", "about", arguments)


# Each option has a value in one of these lines that is not its default.
OPTIONS = (
    """
    --dataset synthetic --data-dir d --image-shape 16 20 3 --train-size 5 --test-size 6 --model lenet
    --sync-batchnorm true --initial-weights w --epochs 2 --max-steps 3 --batch-size 4 --schedule constant
    --learning-rate 0.123456789012345 --warmup-steps 1 --momentum 0.5 --nesterov true --weight-decay 1e-9
    --label-smoothing 0.1 --random-crop 2 --horizontal-flip true --accumulate-grad-batches 2 --gradient-clip-val 0.5
    --seed 9 --logger tensorboard wandb --profile 7 --accelerator cpu --devices 2 --strategy pipeline
    --stages cpu cpu --num-nodes 2 --microbatches 4 --threads-per-device 3 --mode tuned --precision 64 --compile true
    --tf32 true --log-every-n-steps 9 --save-first-batch true --checkpoint-every epoch --resume auto
    --verify-steps 7 --evaluate-on train --run-dir r --dry-run true
    """,
    "--optimizer adamw --schedule step --step-size 2",
    "--optimizer adadelta --schedule step --gamma 0.5",
)


def test_every_option_survives_the_way_to_an_implementation():
    configs = [parse(*line.split()) for line in OPTIONS]
    for name in TrainConfig.model_fields:
        assert any(getattr(one, name) != getattr(TrainConfig(), name) for one in configs), name
    for config in configs:
        assert parse(*to_arguments(config)) == config
    assert (configs[0].learning_rate, configs[0].image_shape) == (0.123456789012345, (16, 20, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch-size 0", "--batch-size 0: should be greater than 0"),
        ("--precision 16", "--precision 16: should be 'auto', '32', '64', 'bf16-mixed' or '16-mixed'"),
        ("--image-shape 8 8", "Parameter --image-shape requires 3 positional arguments. Only got 2."),
        ("--epochs", "Parameter --epochs requires an argument."),
        ("--batch-siz 8", "Unknown option: --batch-siz. Did you mean --batch-size? (see python -m pt_impl --help)"),
        ("stray", "Unused Tokens: ['stray']. (see python -m pt_impl --help)"),
        ("--run-dir=", "--run-dir: is empty"),
        ("--config none.yaml", "--config none.yaml: no such file"),
        ("--momentum 1", "--momentum 1: should be less than 1"),
        ("--learning-rate nan", "--learning-rate nan: should be a finite number"),
        ("--model vgg", "--model vgg: should be one of cnn, lenet, mnist_dropout, resnet8, resnet18, resnet50"),
        ("--image-shape 8 8 1", "--image-shape 8 8 1: only for --dataset synthetic and your own, not digits"),
        ("--stages cpu gpu", "--stages cpu gpu: needs --strategy pipeline"),
        ("--strategy pipeline --microbatches 3", "--microbatches 3: does not divide --batch-size 64"),
        ("--strategy pipeline --stages cpu gpu --accelerator cpu", "--stages cpu gpu: at odds with --accelerator cpu"),
        ("--max-steps 0", "--max-steps 0: at least 1, or -1 for no limit"),
        ("--nesterov true --momentum 0", "--nesterov true needs --momentum above 0"),
        ("--optimizer adam --nesterov true", "--nesterov true: needs --optimizer sgd, not adam"),
        ("--gamma 0.5", "--gamma 0.5: needs --schedule step, not cosine"),
    ],
)
def test_mistakes_are_reported_in_one_line_that_names_the_option(arguments, message):
    with pytest.raises(UserError) as caught:
        parse(*arguments.split())
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_true_or_false_option_needs_no_value():
    for arguments, wanted in (([], "auto"), (["--compile"], True), (["--compile", "false"], False)):
        assert parse(*arguments, "--epochs", "3").compile is wanted
    assert parse("--epochs", "3", "--epochs", "4").epochs == 4  # the last one counts
    assert parse("--nesterov", "--epochs", "3").nesterov and parse("--epochs", "3", "--dry-run").dry_run


def test_a_file_gives_options_and_the_command_line_overrides_it(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("batch_size: 12\nprecision: 64\nimage-shape: [9, 9, 1]\ndataset: synthetic\nhorizontal_flip: true")
    config = parse("--batch-size", "13", "--config", str(path))
    wanted = {"batch_size": 13, "precision": "64", "image_shape": (9, 9, 1), "horizontal_flip": True}
    assert config == TrainConfig(dataset="synthetic", **wanted) and config.model_fields_set == {"dataset", *wanted}


@pytest.mark.parametrize(
    ("content", "message"),
    {
        "model: cnn # für": "--config FILE: UnicodeDecodeError: utf-8",
        "- epochs": 'Configuration in "FILE" must be a mapping, but got list.',
        "epochs: [": "--config FILE: ParserError: ",
        "epoch: 3": 'Unknown option: "[epoch]" from FILE. Did you mean --epochs?',
        "epochs: 1:30:x": "--epochs 1:30:x: should be a valid integer",
    }.items(),
)
def test_a_wrong_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "options.yaml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError) as told:
        parse("--config", str(path))
    assert str(told.value).startswith(message.replace("FILE", str(path))) and "\n" not in str(told.value)


@pytest.mark.parametrize("schema", [TrainConfig, CompareConfig])
def test_help_shows_every_option_once_under_its_heading(schema, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse_options(schema, "compare.py", "about", ["--help"])
    panels = [panel.splitlines() for panel in capsys.readouterr().out.split("╭─ ")[1:]]
    titles = [panel[0].partition(" ─")[0] for panel in panels]
    assert titles == ["most used", *schema.headings, "options from a file, and help"]
    shown = [line.split()[1] for panel in panels for line in panel[1:] if line.startswith("│ --")]
    hidden = {"log_every_n_steps", "save_first_batch"}  # this program alone gives them to its own runs
    assert sorted(shown) == sorted(map(option_name, {*schema.model_fields, "config", "help"} - hidden))


def test_the_digest_is_over_the_training_and_not_over_places_and_output(tmp_path):
    given = TrainConfig(dry_run=True, run_dir=tmp_path, data_dir=tmp_path, log_every_n_steps=3, save_first_batch=True)
    assert given.sha256() == TrainConfig().sha256()
    assert options_of_kind(TrainConfig, *RESET_IN) == list(TrainConfig.model_fields)  # one without a kind would lack
    for options in ({"seed": 1}, {"devices": 2}, {"batch_size": 3}):
        assert TrainConfig(**options).sha256() != TrainConfig().sha256()


def test_compare_passes_every_training_option_on():
    options = parse_options(CompareConfig, "compare.py", "about", ["--batch-size", "5", "--python", "tf=python3"])
    assert options.train_config() == TrainConfig(batch_size=5)
    own = {"run_dir", "dry_run", "seed", "initial_weights", "verify_steps", "evaluate_on", "log_every_n_steps"}
    assert set(TrainConfig.model_fields) - set(CompareConfig.model_fields) == {*own, "save_first_batch"}


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_configurations_that_ship_are_whole_and_for_all_programs(path):
    config = parse("--config", str(path))
    assert (config.dataset, config.model) in {("mnist", "lenet"), ("cifar10", "resnet8")}
    options = parse_options(CompareConfig, "compare.py", "", ["--config", str(path)])
    assert options.train_config() == config
    command = next(line for line in path.read_text().splitlines() if "python compare.py" in line)
    assert f"--config configs/{path.name}" in command
