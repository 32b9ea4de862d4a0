"""The layers of the code (`FLOORS`): each file imports only from its own layer and lower ones, without cycles."""

import ast
from graphlib import TopologicalSorter

import pytest
from conftest import CODE, REPOSITORY

# From the lowest to the highest.
COMMON = ("platform", "spec", "implementations", "data", "resolve", "experiment", "record", "trained")
COMPARISON = ("ratios", "lockstep", "numbers", "plan", "run", "prove", "measure", "show")
FLOORS = [
    *(f"common.{room}" for room in (*COMMON, "backend", "main")),
    *(f"comparison.{room}" for room in COMPARISON),
    "comparison",
]


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
