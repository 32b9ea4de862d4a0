"""Rules of the code: what each file may import, nothing private of a framework, documents that name what exists."""

import ast
import importlib
import re
import sys

import pytest
from conftest import REPOSITORY, run
from pydantic import BaseModel

from common.platform.cli import option_name

FRAMEWORKS = {"tensorflow", "keras", "torch", "torchvision", "lightning", "pytorch_lightning", "jax", "flax", "optax"}
OWN_FRAMEWORKS = {"pt": {"torch"}, "tf": {"tensorflow", "keras"}, "jax": {"jax", "flax", "optax"}}
# Pattern of files -> the frameworks and folders that they may import. The first pattern that matches a file counts.
ALLOWED = {
    "common/**/*.py": set(),
    "comparison/**/*.py": {"comparison"},
    "benchmarks/loops/tf.py": {"benchmarks", "tensorflow", "keras", "tf_impl"},
    "benchmarks/loops/keras.py": {"benchmarks", "keras", "tf_impl"},
    "benchmarks/loops/ptl.py": {"benchmarks", "lightning", "torch", "pt_impl"},
    "benchmarks/loops/pt*.py": {"benchmarks", "torch", "torchvision", "pt_impl"},
    "benchmarks/loops/jax.py": {"benchmarks", "jax", "flax", "optax", "jax_impl"},
    "benchmarks/**/*.py": {"benchmarks", "comparison"},
    "networks/resnet/pt.py": {"torch", "torchvision"},
    **{f"networks/*/{name}.py": own for name, own in OWN_FRAMEWORKS.items()},
    "networks/**/*.py": set(),
    **{f"port/**/{name}.py": {"port", *own} for name, own in OWN_FRAMEWORKS.items()},
    "port/*.py": {"port"},
    "tf_impl/*.py": {"tensorflow", "keras", "tf_impl"},
    "pt_impl/*.py": {"torch", "torchvision", "pt_impl"},
    "ptl_impl/*.py": {"lightning", "torch", "ptl_impl", "pt_impl"},
    "keras_impl/on_one_device.py": {"keras", "keras_impl", "tf_impl", "torch", "pt_impl", "jax_impl"},
    "keras_impl/tutorial.py": {"keras", "keras_impl", "tf_impl"},
    "keras_impl/*.py": {"tensorflow", "keras", "keras_impl", "tf_impl"},
    "jax_impl/*.py": {"jax", "flax", "optax", "jax_impl"},
    "exercises/TF_*.py": {"exercises", "tensorflow", "keras"},
    "exercises/mirrored_strategy/*.py": {"exercises", "tensorflow", "keras"},
    "exercises/PTL_*.py": {"exercises", "lightning", "torch"},
    "exercises/to_lightning/*.py": {"exercises", "lightning", "torch"},
    "exercises/tracking/*.py": {"exercises", "lightning", "torch"},
    "exercises/PT_*.py": {"exercises", "torch"},
    "exercises/conftest.py": {"exercises", "torch"},
    "exercises/*/*.py": {"exercises", "torch"},
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
    assert not found & (FRAMEWORKS | {"tf_impl", "keras_impl", "pt_impl", "ptl_impl"})


def loaded_with(*modules):
    """Packages that an actual import of `modules` loads, directly or through other packages."""
    names = run(sys.executable, "-c", f"import sys, {', '.join(modules)}; print(*sys.modules)").stdout.split()
    return {name.partition(".")[0] for name in names}


def test_no_framework_is_loaded_behind_the_scenes():
    assert not loaded_with("compare") & {*FRAMEWORKS, "sklearn"}


def test_common_loads_no_framework_and_no_tool_of_the_comparison():
    """Each process of each run imports `common`, and would load them too."""
    files = (path.relative_to(REPOSITORY) for path in (REPOSITORY / "common").glob("**/*.py"))
    modules = [".".join(file.with_suffix("").parts) for file in files]
    assert not loaded_with(*modules) & {*FRAMEWORKS, "sklearn", "pandas", "matplotlib", "altair", "scipy", "jinja2"}


LOOPS, TRAINERS = ("tf_impl", "pt_impl", "jax_impl"), ("keras_impl", "ptl_impl")
# Attributes that users may set, according to the documentation of the frameworks.
DOCUMENTED_SETTINGS = {
    "sys.dont_write_bytecode",
    *("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"),
    *("network.conv1", "network.maxpool"),  # torchvision's networks are changed by setting their layers
    # Flax's modules are changed by setting their attributes (its guide "Model surgery").
    *(
        "module.dtype",
        "module.param_dtype",
        "setattr(module, name, max_pool)",
        "setattr(module, attribute, nnx.data(Watched(value, name, False)))",
    ),
    *("self.model.stop_training", "trainer.should_stop"),  # Keras's and Lightning's, for callbacks
    # tf.data.Options and jax.profiler.ProfileOptions
    *("options.autotune.enabled", "options.experimental_distribute.auto_shard_policy", "options.python_tracer_level"),
}
PUBLIC_WITH_UNDERSCORE = {
    *("__init__", "__name__", "__exit__", "__call__", "__context__", "__cause__", "__getitem__", "_replace"),
}


def private_names(path):
    """Private parts that a file uses: names with a leading underscore, `sys.modules`, attributes set from outside."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            special = node.attr in PUBLIC_WITH_UNDERSCORE
            if (node.attr.startswith("_") and not special) or name.startswith("sys.modules"):
                yield name
            of_itself = name.split(".")[0] in ("self", "cls") and name.count(".") == 1
            if isinstance(node.ctx, ast.Store) and not of_itself and name not in DOCUMENTED_SETTINGS:
                yield f"{name} = ..."
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "getattr", "object.__setattr__"):
            yield from {ast.unparse(node)} - DOCUMENTED_SETTINGS
        elif isinstance(node, ast.ImportFrom):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            yield from (name for name in names if name.startswith("_") or names[:2] == ["keras", "src"])
        elif isinstance(node, ast.FunctionDef) and node.name in ("__setattr__", "__getattr__", "__getattribute__"):
            yield node.name


@pytest.mark.parametrize("name", (*LOOPS, *TRAINERS))
def test_nothing_private_is_touched(name):
    for path in (REPOSITORY / name).glob("*.py"):
        assert set(private_names(path)) == set(), path


def test_that_test_sees_what_would_be_private(tmp_path):
    for line in ("trainer.fit_loop._broadcast = None", "trainer.fit = None", "object.__setattr__(module, name, value)"):
        (tmp_path / "tuning.py").write_text(line)
        assert set(private_names(tmp_path / "tuning.py")), line


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
    programs = ("compare", "common.data.image_folder", "common.trained", "port.__main__")
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
        folders = r"benchmarks|common|configs|comparison|docs|exercises|networks|tests|\w+_impl"
        for name in re.findall(rf"`((?:{folders})/[\w/.-]+)`", text):
            assert (REPOSITORY / name).exists() or "NAME" in name, f"{path.name} names {name}"


def test_every_promise_has_its_test():
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text()
    promises = re.findall(r"^\|.*\| `(test_\w+)` \|$", page, re.MULTILINE)
    tests = "".join(path.read_text() for path in REPOSITORY.glob("tests/**/test_*.py"))
    assert len(promises) > 20 and [name for name in promises if f"def {name}(" not in tests] == []
