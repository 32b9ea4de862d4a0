"""What each file may import: only its own layer and lower ones (`FLOORS`), without cycles, and one framework."""

import ast
import sys
from graphlib import TopologicalSorter

import pytest
from conftest import CODE, REPOSITORY, run

# From the lowest to the highest.
COMMON = ("platform", "spec", "implementations", "data", "resolve", "experiment", "record", "trained")
COMPARISON = ("ratios", "lockstep", "numbers", "plan", "run", "prove", "measure", "show")
FLOORS = [
    *(f"common.{room}" for room in (*COMMON, "backend", "main")),
    *(f"comparison.{room}" for room in COMPARISON),
    "comparison",
]
FRAMEWORKS = {"tensorflow", "keras", "torch", "torchvision", "lightning", "jax", "flax", "optax"}
# Folder -> the frameworks and folders that it may import, beside itself and `common`.
ALLOWED = {
    "common": set(),
    "comparison": set(),
    "tf_impl": {"tensorflow", "keras"},
    "keras_impl": {"tensorflow", "keras", "tf_impl"},
    "pt_impl": {"torch", "torchvision"},
    "ptl_impl": {"torch", "lightning", "pt_impl"},
    "jax_impl": {"jax", "flax", "optax"},
}
EXCEPTIONS = {"keras_impl.on_one_device"}  # chooses the framework by KERAS_BACKEND


def modules():
    """Dotted name of a module -> its file."""
    paths = [path for folder in (*CODE, "benchmarks") for path in (REPOSITORY / folder).glob("**/*.py")]
    return {".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path for path in paths}


def imports(path):
    """Dotted names that a file imports anywhere, functions included."""
    known = modules()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def floor(name):
    """The number of a module's layer in `FLOORS`; None if it is in none of them."""
    found = [number for number, room in enumerate(FLOORS) if f"{name}.".startswith(f"{room}.")]
    return found[0] if found else None


@pytest.mark.parametrize("room", FLOORS)
def test_no_arrow_leads_up(room):
    files = {name: path for name, path in modules().items() if floor(name) == FLOORS.index(room)}
    assert files
    for name, path in files.items():
        for imported in imports(path):
            below = floor(imported)
            assert below is None or below <= floor(name), f"{name} imports {imported}"
            assert below is not None or not imported.startswith("common"), f"{imported} stands on no floor"


def test_no_two_files_need_each_other():
    """Not even in functions, where the interpreter would accept it: nobody could read one file before the other."""
    graph = {name: set(imports(path)) & set(modules()) for name, path in modules().items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_its_own_framework_alone(folder):
    restricted = FRAMEWORKS | ALLOWED.keys() - {"common", folder}
    files = {name: path for name, path in modules().items() if name.startswith(f"{folder}.")}
    assert files
    for name in files.keys() - EXCEPTIONS:
        found = {imported.partition(".")[0] for imported in imports(files[name])} & restricted
        assert found <= ALLOWED[folder], f"{name} imports {found}"


def test_neither_compare_nor_common_loads_a_framework_and_common_no_tool_of_the_comparison():
    """Not through other packages either. Each process of each run imports `common`."""
    tools = {"sklearn", "pandas", "matplotlib", "altair", "scipy", "jinja2"}
    common = [name for name in modules() if name.startswith("common.")]
    for names, absent in ((["compare"], FRAMEWORKS | {"sklearn"}), (common, FRAMEWORKS | tools)):
        loaded = run(sys.executable, "-c", f"import sys, {', '.join(names)}; print(*sys.modules)").stdout.split()
        assert not {name.partition(".")[0] for name in loaded} & absent
