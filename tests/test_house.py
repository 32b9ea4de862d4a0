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
# folder: the frameworks and implementations that it may import
ALLOWED = {
    "common": set(),
    "comparison": {"comparison"},
    "benchmarks": {"benchmarks"},
    "benchmarks/loops/tf": {"benchmarks", "tensorflow", "keras", "tf_impl"},
    "benchmarks/loops/pt": {"benchmarks", "torch", "torchvision", "pt_impl"},
    "benchmarks/loops/ptl": {"benchmarks", "lightning", "torch", "pt_impl", "ptl_impl"},
    "tf_impl": {"tensorflow", "keras", "tf_impl"},
    "pt_impl": {"torch", "pt_impl"},
    "ptl_impl": {"lightning", "torch", "ptl_impl", "pt_impl"},
}


def imported(path):
    """Names of all packages imported anywhere in a file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module.split(".")[0]


@pytest.mark.parametrize("folder", ALLOWED)
def test_each_folder_imports_only_what_it_may(folder):
    restricted = FRAMEWORKS | {name for name in ALLOWED if "/" not in name} - {"common"}
    loops = REPOSITORY / "benchmarks" / "loops"
    if folder.startswith("benchmarks/loops/"):  # there the beginning of a file's name tells the framework
        files = list(loops.glob(f"{folder.rpartition('/')[2]}_*.py"))
    else:
        files = [path for path in (REPOSITORY / folder).glob("**/*.py") if loops not in path.parents]
    assert files
    for path in files:
        assert set(imported(path)) & restricted <= ALLOWED[folder], path


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
    assert files[0] == files[1] == files[2]
    assert files[0] == ["__init__.py", "__main__.py", "data.py", "devices.py", "model.py", "optimizer.py", "train.py"]
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
    options = {option_name(field) for field in fields} | {"--config", "--help", "--nproc-per-node"}
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")]:
        text = path.read_text()
        assert "@@" not in text, f"{path.name} has a gap"
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) <= options, path.name
        for name in re.findall(
            r"`((?:benchmarks|common|configs|comparison|docs|tests|tf_impl|pt_impl|ptl_impl)/[\w/.-]+)`", text
        ):
            assert (REPOSITORY / name).exists(), f"{path.name} names {name}"
