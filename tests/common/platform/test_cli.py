"""Options from the command line and from files: a configuration, or one line that names the option and the value."""

import pytest

from common.platform.cli import option_name, parse_options
from common.platform.errors import UserError
from common.spec.options import TrainConfig
from comparison.plan.options import CompareConfig


def parse(*arguments):
    return parse_options(TrainConfig, "python -m pt_impl", "about", arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch-size x", "--batch-size x: should be a valid integer"),
        ("--batch-size 0", "--batch-size 0: should be greater than 0"),
        ("--devices 0", "--devices 0: should be 'auto' or should be greater than 0"),
        ("--precision 16", "--precision 16: should be 'auto', '32', '64', 'bf16-mixed' or '16-mixed'"),
        ("--image-shape 1 1 5000", "--image-shape 5000: should be less than or equal to 4096"),
        ("--image-shape 8 8", "Parameter --image-shape requires 3 positional arguments. Only got 2."),
        ("--epochs", "Parameter --epochs requires an argument."),
        ("--batch-siz 8", "Unknown option: --batch-siz. Did you mean --batch-size? (see python -m pt_impl --help)"),
        ("stray", "Unused Tokens: ['stray']. (see python -m pt_impl --help)"),
        ("--run-dir=", "--run-dir: is empty"),
        ("--config none.yaml", "--config none.yaml: no such file"),
    ],
)
def test_a_wrong_option_is_one_line(arguments, message):
    with pytest.raises(UserError) as told:
        parse(*arguments.split())
    assert str(told.value).startswith(message) and "\n" not in str(told.value)


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
        "optimizer: sdg": "--optimizer sdg: should be 'sgd'",
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
