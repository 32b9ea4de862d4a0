"""Files of options: any content gives a configuration or a one-line error, without delay."""

import pytest

from common.platform.cli import check_options_file, parse_options
from common.platform.errors import UserError
from common.spec.options import TrainConfig

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MISTAKES = {
    b"\x89PNG\r\n\x1a\n\x00\x00": "is no text in UTF-8",
    "model: cnn # für".encode("latin-1"): "is no text in UTF-8",
    b"epochs: &n 3\nbatch_size: *n\n": "line 1: anchors and aliases (& and *) are not for files of options",
    b"&all\nepochs: 3\nmodel: *all\n": "line 1: anchors and aliases",
    BOMB.encode(): "line 1: anchors and aliases",
    b"epochs: " + b"9" * 5000: "line 1: a value of 5,000 letters; 1,000 at most",
    b"epochs: 3\nmodel: cnn\nepochs: 4\n": "line 3: epochs is given twice",
    b"- epochs\n- 3\n": "line 1: should hold lines of OPTION: VALUE",
    b"epochs: " + b"[" * 50: "line 1: should hold lines of OPTION: VALUE",
    b"epochs: {\n": "not YAML: ",
    b"epochs: 3\n\tmodel: cnn\n": "not YAML: ",
    b"#" * (2**20 + 1): "1,048,577 bytes; 1,048,576 at most",
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
            check_options_file(path)


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
