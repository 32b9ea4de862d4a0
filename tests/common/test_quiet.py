import os
import sys

import pytest
from conftest import run

from common.quiet import held_back_stderr


def test_what_is_written_past_python_is_held_back(capfd):
    with held_back_stderr():
        os.write(2, b"chatter")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_all_of_it_is_shown_before_an_exception(capfd):
    with pytest.raises(ImportError), held_back_stderr():
        os.write(2, b"the reason")
        raise ImportError
    assert capfd.readouterr().err == "the reason"


def test_whoever_asks_sees_everything(capfd):
    with held_back_stderr(unless=True):
        os.write(2, b"chatter")
    assert capfd.readouterr().err == "chatter"


def test_tensorflow_starts_without_chatter_unless_asked(tmp_path):
    command = (sys.executable, "-m", "tf_impl", "--epochs", 0, "--accelerator", "cpu", "--run-dir")
    assert run(*command, tmp_path / "1").stderr == ""
    assert "oneDNN" in run(*command, tmp_path / "2", TF_CPP_MIN_LOG_LEVEL="0").stderr
