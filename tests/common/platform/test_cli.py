"""Options from the command line and from files: a configuration, or one line that names the option and the value."""

import pytest

from common.platform.cli import option_name, parse_options
from common.platform.errors import UserError
from common.spec.options import TrainConfig
from comparison.plan.options import CompareConfig


def parse(*arguments):
    return parse_options(TrainConfig, "python -m pt_impl", "about", arguments)


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
