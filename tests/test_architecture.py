"""What each file may import: only its own layer and lower ones (`FLOORS`), without cycles, and one framework.

A run imports only what it uses: its own framework, and nothing that only other frameworks need.
"""

import ast
import sys
from graphlib import TopologicalSorter

import pytest
from conftest import CODE, CPU, REPOSITORY, run

from common.implementations import environment_of, folder_of, interpreter_of

# From the lowest to the highest.
COMMON = ("platform", "spec", "implementations", "data", "resolve", "experiment", "record", "evaluate_predict")
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


# Dotted name of a module -> its file.
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path
    for folder in (*CODE, "benchmarks")
    for path in (REPOSITORY / folder).glob("**/*.py")
}


def imports(name):
    """Dotted names that a module imports anywhere, functions included."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def floor(name):
    """The number of a module's layer in `FLOORS`; None if it is in none of them."""
    return next((number for number, room in enumerate(FLOORS) if f"{name}.".startswith(f"{room}.")), None)


def test_no_arrow_leads_up():
    floors = {name: floor(name) for name in MODULES if floor(name) is not None}
    assert set(floors.values()) == set(range(len(FLOORS)))
    for name, own in floors.items():
        for imported in imports(name):
            below = floor(imported)
            assert below is None or below <= own, f"{name} imports {imported}"
            assert below is not None or not imported.startswith("common"), f"{imported} stands on no floor"


def test_no_two_files_need_each_other():
    """Not even in functions, where the interpreter would accept it: nobody could read one file before the other."""
    graph = {name: MODULES.keys() & set(imports(name)) for name in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_its_own_framework_alone(folder):
    restricted = FRAMEWORKS | ALLOWED.keys() - {"common", folder}
    own = {name for name in MODULES if name.startswith(f"{folder}.")}
    assert own
    for name in own - EXCEPTIONS:
        found = {imported.partition(".")[0] for imported in imports(name)} & restricted
        assert found <= ALLOWED[folder], f"{name} imports {found}"


def test_no_part_of_compare_loads_a_framework_and_neither_its_help_nor_common_a_tool_of_the_comparison():
    """Not through other packages either. Each process of each run imports `common`."""
    tools = {"sklearn", "pandas", "matplotlib", "altair", "scipy", "jinja2"}
    common, comparison = ([name for name in MODULES if name.startswith(room)] for room in ("common.", "comparison."))
    for names, absent in (
        (comparison, FRAMEWORKS | {"sklearn"}),
        (["compare"], FRAMEWORKS | tools - {"scipy"}),  # of which only the parts are large
        (common, FRAMEWORKS | tools),
    ):
        loaded = run(sys.executable, "-c", f"import sys, {', '.join(names)}; print(*sys.modules)").stdout.split()
        assert not {name.partition(".")[0] for name in loaded} & absent


# Keras imports matplotlib, pandas and sklearn if they are installed. Lightning's torchmetrics imports matplotlib, scipy
# and torchvision.
UNUSED = {
    "tf": {"jax", "torch", "torchvision", "lightning"},
    "pt": {"jax", "tensorflow", "keras", "torchvision", "lightning", "scipy", "matplotlib", "pandas", "sklearn"},
    "ptl": {"jax", "tensorflow", "keras", "pandas", "sklearn"},
    "jax": {"tensorflow", "keras", "torch", "torchvision", "lightning", "matplotlib", "pandas", "sklearn"},
    "keras_torch": {"tensorflow", "jax", "lightning"},
}
PACKAGES = {"tf": "tensorflow", "pt": "torch", "ptl": "lightning", "jax": "jax", "keras_torch": "keras"}
# Runs a module as `python -m` does, and prints the loaded modules at the end.
PROGRAM = """
import os, runpy, sys
end = os._exit
def say(status):
    print("loaded:", *(name for name, module in sys.modules.items() if module), flush=True)
    end(status)
os._exit = say
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.quick("pt")
@pytest.mark.parametrize(
    ("implementation", "mode"),
    [*((name, "plain") for name in ("pt", "tf", "ptl", "jax")), ("ptl", "tutorial"), ("keras_torch", "tutorial")],
)
def test_a_run_imports_its_own_framework_and_nothing_for_others(tmp_path, implementation, mode):
    options = ("--max-steps", 1, "--devices", 1, *CPU, "--mode", mode, "--run-dir", tmp_path)
    words = ("-c", PROGRAM, folder_of(implementation), *options)
    output = run(interpreter_of(implementation), *words, **environment_of(implementation)).stdout
    packages = {name.split(".")[0] for name in output.partition("loaded: ")[2].split()}
    assert PACKAGES[implementation] in packages and not packages & UNUSED[implementation]
