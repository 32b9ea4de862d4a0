"""The documents name only programs, options, files and tests that exist."""

import importlib
import re

from conftest import REPOSITORY
from pydantic import BaseModel

from common.platform.cli import option_name
from docs.side_by_side import SECTIONS, make_page

# Options of the other programs that documents name: sbatch, mpirun, torchrun, docker, pytest, uv.
OTHERS = re.findall(
    "--[a-z-]+",
    "--bind-to --map-by --oversubscribe --allow-run-as-root --nodes --ntasks-per-node --gpus-per-node --exclusive"
    " --signal --requeue --distribution --standalone --nnodes --node-rank --nproc-per-node --no-python"
    " --shm-size --entrypoint-resources --compile-bytecode",
)


def all_subclasses(schema):
    return {schema}.union(*map(all_subclasses, schema.__subclasses__()))


def test_the_documents_are_whole_and_name_only_programs_and_options_that_exist():
    """Options: those of commands that start with `python`, and those that stand alone between backquotes."""
    programs = ("compare", "common.data.image_folder", "common.evaluate_predict", "port.__main__")
    for name in (*programs, *(f"benchmarks.{path.stem}" for path in (REPOSITORY / "benchmarks").glob("*.py"))):
        importlib.import_module(name)
    options = {option_name(field) for schema in all_subclasses(BaseModel) for field in schema.model_fields}
    options |= {"--config", "--help", *OTHERS}
    for path in [*REPOSITORY.glob("exercises/**/*.py"), *REPOSITORY.glob("launch/*.py")]:
        options |= set(re.findall(r'"(--[a-z-]+)"', path.read_text()))  # of argparse
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("exercises/**/*.md")]
    for path in set(pages) - {REPOSITORY / "CHANGELOG.md"}:  # which names what is gone, too
        text = path.read_text()
        assert "@@" not in text, f"{path.name} has a gap"
        for module in re.findall(r"python\s+-m\s+((?!exercises)\w+[\w.]*\w)", text):
            assert importlib.util.find_spec(module) or "NAME" in module, f"{path.name}: python -m {module}"
        for command in re.findall(r"(?:^|[`/])(python .*|--[a-z].*?`)", text.replace("\\\n", " "), re.MULTILINE):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", command))
            assert named <= options, f"{path.name}: {command}"
        folders = r"benchmarks|common|configs|comparison|docs|exercises|tests|\w+_impl"
        for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`", text):
            assert (REPOSITORY / name).exists() or "NAME" in name, f"{path.name} names {name}"


def test_the_page_of_training_files_has_every_section_and_the_loops_of_all():
    page = make_page()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*SECTIONS]
    assert page.count("def train(") == 5


def test_every_promise_has_its_test():
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text()
    promises = re.findall(r"^\|.*\| `(test_\w+)` \|$", page, re.MULTILINE)
    tests = "".join(path.read_text() for path in REPOSITORY.glob("tests/**/test_*.py"))
    assert len(promises) > 20 and [name for name in promises if f"def {name}(" not in tests] == []
