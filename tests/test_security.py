"""The promises of docs/security.md: input is never executed, others can't change files, and files hold no secrets."""

import ast
import os
import stat
import subprocess
import sys

import pytest
from conftest import CPU, REPOSITORY
from test_architecture import modules

SECRET = "s3cr3t-of-the-environment"
# Calls that can execute their input, or write to paths that the input names.
REFUSED = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "os.system",
        "os.popen",
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
    ),
    *("torch.load", "joblib.load", "marshal.loads", "shelve.open", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("keras.models.load_model", "keras.saving.load_model", "np.load", "numpy.load"),
}
PROGRAMS = [*modules().values(), REPOSITORY / "compare.py", REPOSITORY / "make_dataset.py"]


def calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_nothing_that_is_read_is_run(path):
    for name, options in calls(path):
        if name in ("np.load", "numpy.load"):
            assert options.get("allow_pickle") == "False", path
        else:
            assert name not in REFUSED, f"{path}: {name}"
        assert options.get("shell", "False") == "False" and not name.endswith((".extractall", ".extract")), path
    unpicklers = [
        ast.unparse(base)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if "Unpickler" in ast.unparse(base)
    ]
    assert not unpicklers or path.name == "formats.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All files of a comparison with checkpoints, made with umask 0, which denies other users nothing."""
    folder = tmp_path_factory.mktemp("made")
    options = ("--mode", "plain", "--epochs", 2, "--train-size", 200, "--checkpoint-every", 2, "--repeats", 1, *CPU)
    command = [sys.executable, "compare.py", "--output-dir", folder / "r", "--implementations", "pt", "tf", *options]
    subprocess.run(
        list(map(str, command)),
        cwd=REPOSITORY,
        env={**os.environ, "API_TOKEN": SECRET, "TMPDIR": str(folder)},
        umask=0,
        check=True,
        capture_output=True,
    )
    found = [path for path in (folder / "r").rglob("*") if not path.is_symlink()]
    assert {"result.json", "report.html", "log.txt", "state.safetensors", "proof.json"} <= {path.name for path in found}
    return found


@pytest.mark.slow
def test_no_file_can_be_changed_by_others(made):
    for path in made:
        assert not path.stat().st_mode & stat.S_IWOTH, path


@pytest.mark.slow
def test_no_variable_of_the_environment_is_in_them(made):
    for path in made:
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
