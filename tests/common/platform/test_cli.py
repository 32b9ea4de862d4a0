"""Files of options: any content gives a configuration or a one-line error, without delay."""

import pytest

from common.platform.cli import parse_options
from common.platform.errors import UserError
from common.spec.options import TrainConfig

MISTAKES = {
    "model: cnn # für".encode("latin-1"): "is no text in UTF-8",
    b"- epochs\n- 3\n": "should hold lines of OPTION: VALUE",
    b"epochs: [[3]]\n": "epochs should be a value, or a list of values",
    b"resume: {a: b}\n": "resume should be a value, or a list of values",
    b"epochs: [\n": "not YAML: ",
    b"epochs: 3\n\tmodel: cnn\n": "not YAML: ",
    b"epochs: 3\n---\nmodel: cnn\n": "not YAML: ",
    b"batch_size: 64\nbatch-size: 32\n": "batch-size is given twice",
    b"config: other.yaml\n": "'config' is not an option that a file can have",
    b"# nothing else\n": "should hold lines of OPTION: VALUE",
}


@pytest.mark.parametrize(("content", "message"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_what_is_no_file_of_options_is_reported_in_one_line(tmp_path, content, message):
    path = tmp_path / "options.yaml"
    path.write_bytes(content)
    for arguments in (["--config", str(path)], [f"--config={path}"]):
        with pytest.raises(UserError) as told:
            parse_options(TrainConfig, "python -m pt_impl", "about", arguments)
        assert str(told.value).startswith(f"--config {path}: {message}") and "\n" not in str(told.value)


def test_a_folder_or_nothing_is_reported_too(tmp_path):
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "none.yaml", "No such file or directory")):
        with pytest.raises(UserError, match=f"--config {path}: {reason}"):
            parse_options(TrainConfig, "python -m pt_impl", "about", ["--config", str(path)])


@pytest.mark.parametrize(
    ("content", "message"),
    {
        "epochs:": "--epochs: is empty",
        "epochs: 1:30": "--epochs 1:30: should be a valid integer",
        "epochs: [3]": "--epochs 3: should be a single value, without brackets",
        "optimizer: off": "--optimizer off: should be 'sgd'",
        "image_shape: 8": "--image-shape 8: should be 3 values",
        "data_dir: null": "--data-dir unset: is not a valid path",
    }.items(),
)
def test_a_value_that_an_option_does_not_accept_is_shown_as_it_was_typed(tmp_path, content, message):
    path = tmp_path / "options.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as told:
        parse_options(TrainConfig, "python -m pt_impl", "about", ["--config", str(path)])
    assert str(told.value).startswith(message) and "\n" not in str(told.value) and "pathlib" not in str(told.value)


def test_values_are_text_as_on_the_command_line_and_null_is_unset(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("seed: 010\ntrain_size: null\nprecision: 64\nnesterov: on\nlogger: wandb\ndata_dir: 2024-01-01\n")
    config = parse_options(TrainConfig, "python -m pt_impl", "about", ["--train-size", "5", "--config", str(path)])
    assert (config.seed, config.train_size, config.precision, config.nesterov) == (10, None, "64", True)
    assert (config.logger, str(config.data_dir)) == (("wandb",), "2024-01-01")


def test_values_may_be_lists_and_stand_in_any_order(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("image_shape: [8, 9, 3]\ndataset: synthetic\nbatch_size: 8\n# the end\n")
    config = parse_options(TrainConfig, "python -m pt_impl", "about", ["--config", str(path), "--epochs", "2"])
    assert (config.image_shape, config.batch_size, config.epochs) == ((8, 9, 3), 8, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", str(10**30)], f"--batch-size {10**30}: should be less than or equal to 2147483647"),
        (["--epochs", str(10**12)], f"--epochs {10**12}: should be less than or equal to 1000000"),
        (["--devices", "100000"], "--devices 100000: should be "),
        (["--threads-per-device", str(10**12)], f"--threads-per-device {10**12}: should be "),
        (["--image-shape", "1", "1", "5000"], "--image-shape 5000: should be less than or equal to 4096"),
        (["--max-steps", str(10**20)], f"--max-steps {10**20}: should be "),
        (["--microbatches", str(10**7)], f"--microbatches {10**7}: should be less than or equal to 1000000"),
        (["--learning-rate", "nan"], "--learning-rate nan: should be "),
        (["--data-dir", ""], "--data-dir: is empty"),
        (["--run-dir="], "--run-dir: is empty"),
        (["--data-dir", "x" * 300], f"--data-dir {'x' * 100}...: File name too long"),
        (["--resume", "x" * 300], f"--resume {'x' * 100}...: File name too long"),
        (["--epochs", "9" * 5000], "--epochs 999"),
    ],
    ids=lambda value: value[0][:20] if isinstance(value, list) else "",
)
def test_every_bound_is_a_real_bound(arguments, message):
    with pytest.raises(UserError) as told:
        parse_options(TrainConfig, "python -m pt_impl", "about", arguments)
    assert str(told.value).startswith(message) and "\n" not in str(told.value)


def test_a_true_or_false_option_needs_no_value():
    for arguments, wanted in (([], False), (["--compile"], True), (["--compile", "false"], False)):
        assert (
            parse_options(TrainConfig, "python -m pt_impl", "about", ["--compile", "false", *arguments]).compile
            is wanted
        )
    assert parse_options(TrainConfig, "python -m pt_impl", "about", ["--nesterov", "--epochs", "3"]).nesterov is True
    with pytest.raises(UserError, match="--nesterov perhaps: should be a valid boolean"):
        parse_options(TrainConfig, "python -m pt_impl", "about", ["--nesterov", "perhaps"])
