"""The rules of the house: who imports what, and that the implementations are laid out alike."""

import ast
import re
import sys

import pytest
from conftest import REPOSITORY, run

from benchmarks.limit import LimitConfig
from benchmarks.machine import MachineConfig
from benchmarks.memory import MemoryConfig
from benchmarks.paired import BenchmarkConfig
from common.config import TrainConfig, option_name
from common.image_folder import ImageFolderConfig
from comparison.options import CompareConfig

FRAMEWORKS = {"tensorflow", "keras", "torch", "torchvision", "lightning", "pytorch_lightning", "jax", "flax"}
# files: the frameworks and implementations that they may import; the first pattern that fits a file counts
ALLOWED = {
    "common/*.py": set(),
    "comparison/**/*.py": {"comparison"},
    "benchmarks/loops/tf_*.py": {"benchmarks", "tensorflow", "keras", "tf_impl"},
    "benchmarks/loops/keras_*.py": {"benchmarks", "tensorflow", "keras", "tf_impl", "keras_impl"},
    "benchmarks/loops/pt_*.py": {"benchmarks", "torch", "torchvision", "pt_impl"},
    "benchmarks/loops/ptl_*.py": {"benchmarks", "lightning", "torch", "pt_impl", "ptl_impl"},
    "benchmarks/**/*.py": {"benchmarks"},
    "tf_impl/*.py": {"tensorflow", "keras", "tf_impl"},
    "pt_impl/*.py": {"torch", "pt_impl"},
    "ptl_impl/*.py": {"lightning", "torch", "ptl_impl", "pt_impl"},
    "exercises/TF_*.py": {"exercises", "tensorflow", "keras"},
    "exercises/mirrored_strategy/*.py": {"exercises", "tensorflow", "keras"},
    "exercises/PTL_*.py": {"exercises", "lightning", "torch"},
    "exercises/to_lightning/*.py": {"exercises", "lightning", "torch"},
    "exercises/PT_*.py": {"exercises", "torch"},
    "exercises/*/*.py": {"exercises", "torch"},
    "exercises/ranks.py": {"exercises", "torch"},
    "exercises/*.py": {"exercises"},
}


def imported(path):
    """Names of all packages imported anywhere in a file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module.split(".")[0]


@pytest.mark.parametrize("pattern", ALLOWED)
def test_each_file_imports_only_what_it_may(pattern):
    restricted = FRAMEWORKS | {one.partition("/")[0] for one in ALLOWED} - {"common"}
    earlier = [one for one in ALLOWED if list(ALLOWED).index(one) < list(ALLOWED).index(pattern)]
    files = set(REPOSITORY.glob(pattern)) - {path for one in earlier for path in REPOSITORY.glob(one)}
    assert files
    for path in files:
        assert set(imported(path)) & restricted <= ALLOWED[pattern], path


def test_compare_imports_no_framework_and_no_implementation():
    found = set(imported(REPOSITORY / "compare.py"))
    assert not found & (FRAMEWORKS | {"tf_impl", "pt_impl", "ptl_impl"})


def test_no_framework_is_loaded_behind_the_scenes():
    """Not through another package either: compare.py and all of common, loaded for real."""
    modules = [f"common.{path.stem}" for path in (REPOSITORY / "common").glob("*.py")]
    code = f"import sys, compare, {', '.join(modules)}; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in run(sys.executable, "-c", code).stdout.split()}
    assert not loaded & (FRAMEWORKS | {"sklearn", "pandas"})


def test_the_implementations_have_the_same_files_and_functions():
    folders = [REPOSITORY / name for name in ("tf_impl", "pt_impl", "ptl_impl")]
    files = [sorted(path.name for path in folder.glob("*.py")) for folder in folders]
    # One for each framework: torch is tried out for Lightning too.
    assert files[0] == files[1] == sorted([*files[2], "probe.py"])
    assert files[2] == ["__init__.py", "__main__.py", "data.py", "devices.py", "model.py", "optimizer.py", "train.py"]
    for name, functions in {
        "train.py": {"main", "train", "fetch_steps"},
        "devices.py": {"setup_devices"},
        "optimizer.py": {"make_optimizer"},
    }.items():
        for folder in folders:
            tree = ast.parse((folder / name).read_text())
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert functions <= defined, f"{folder.name}/{name} lacks {functions - defined}"


def test_training_files_stay_short_enough_to_be_read():
    for name in ("tf_impl", "pt_impl", "ptl_impl"):
        assert len((REPOSITORY / name / "train.py").read_text().splitlines()) <= 245


def test_the_documents_are_whole_and_name_only_options_that_exist():
    fields = {*TrainConfig.model_fields, *CompareConfig.model_fields, *ImageFolderConfig.model_fields}
    fields |= {*BenchmarkConfig.model_fields, *LimitConfig.model_fields, *MachineConfig.model_fields}
    fields |= {*MemoryConfig.model_fields}
    options = {option_name(field) for field in fields} | {"--config", "--help", "--standalone", "--nproc-per-node"}
    options |= set(
        re.findall(r'"(--[a-z-]+)"', "".join(path.read_text() for path in REPOSITORY.glob("exercises/**/*.py")))
    )
    options |= {
        "--sync",
        "--no-index",
        "--find-links",
        "--gpus-per-node",
        "--ntasks-per-node",
        "--wait",
    }  # of jupytext, pip and sbatch
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("exercises/**/*.md")]:
        text = path.read_text()
        assert "@@" not in text, f"{path.name} has a gap"
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= options, path.name
        for name in re.findall(
            r"`((?:benchmarks|common|configs|comparison|docs|exercises|tests|tf_impl|pt_impl|ptl_impl)/[\w/.-]+)`", text
        ):
            assert (REPOSITORY / name).exists() or "NAME" in name, f"{path.name} names {name}"
