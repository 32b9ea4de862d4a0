"""Helpers and fixtures of all tests.

The test process itself imports no framework, because two frameworks must never share a process.
"""

import csv
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import preloaded
import psutil
import pytest

from common import implementations
from common.record.results import StepLine, read_metrics

REPOSITORY = Path(__file__).resolve().parent.parent
ON_ONE_DEVICE = ("keras_torch", "keras_jax")  # they have one mode; tests/parity/test_tutorial.py
IMPLEMENTATIONS = tuple(name for name in implementations.IMPLEMENTATIONS if name not in ON_ONE_DEVICE)
MODES = ("plain", "tuned")


# One thread per device: tests run in parallel, and with more threads than cores they would take five times as long.
# On a machine with GPUs, only the tests about GPUs use one.
CPU = ("--accelerator", "cpu", "--threads-per-device", 1)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The cache holds proofs, the results of probes of this processor and the sockets of preloaded.py's servers. All
# processes of one test run share a cache, which is removed at the end of that test run.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cache-of-tests-")
preloaded.sockets = Path(os.environ["XDG_CACHE_HOME"])
# JAX takes three seconds to compile a short run's functions. Here it does so once for all runs of the same kind. Only a
# cache with a limit has a lock.
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": str(preloaded.sockets / "jax-compiled"),
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
# Tests start the programs hundreds of times. With stored bytecode, Python compiles them only once.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# With unbuffered output, Python writes a line's text and its newline separately, and lines of several processes mix.
os.environ.pop("PYTHONUNBUFFERED", None)
# Tests that run in the background may ignore SIGINT. The programs that they start must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
CODE = (
    "common",
    "networks",
    "comparison",
    "port",
    *{implementations.folder_of(name) for name in implementations.IMPLEMENTATIONS},
)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves slow tests out
def pytest_collection_modifyitems(config, items):
    unused, used = set(), set()
    for item in items:
        if quick := item.get_closest_marker("quick"):
            starts = {(item.originalname, start) for start in quick.args}
            found = {(name, start) for name, start in starts if f"{item.callspec.id}-".startswith(f"{start}-")}
            unused, used = unused | starts, used | found
            if not found:
                item.add_marker("slow")
    if config.args_source == config.ArgsSource.TESTPATHS and unused - used:
        raise pytest.UsageError(f"no variant of a test begins so: {unused - used}")


def pytest_unconfigure():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"])


def program_of(implementation):
    """The words that start an implementation's program."""
    return implementations.interpreter_of(implementation), "-m", implementations.folder_of(implementation)


def run(*command, cwd=REPOSITORY, expect=0, timeout=600, **environment):
    """Runs a command to its end and returns the completed process.

    Fails with the whole output if the exit status is not `expect`.
    """
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == expect, f"{command}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def compare(output, *options, **arguments):
    """As `run`, of compare.py; returns what it printed, and the rows of `results.csv`.

    It makes one round, in plain mode, unless the options say otherwise.
    """
    defaults = {"--repeats": 1, "--mode": "plain"}
    more = [word for name, value in defaults.items() if name not in options for word in (name, value)]
    done = run(sys.executable, "compare.py", "--output-dir", output, *options, *more, **arguments)
    return done.stdout, read_csv(output / "results.csv")


def start_process(command, cwd=REPOSITORY, stdout=subprocess.PIPE, **environment):
    """Starts a command in its own session, as a terminal would; returns the process."""
    return subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def run_program(implementation, *options, cwd=REPOSITORY, expect=0, timeout=600, **environment):
    """As `run`, of `python -m <implementation>_impl`, through preloaded.py."""
    done = preloaded.run_preloaded(implementation, options, cwd, timeout, **environment)
    assert done.returncode == expect, f"{done.args}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def train(implementation, run_dir, *options, **arguments):
    """Runs `python -m <implementation>_impl` to its end, as `run_program` does; returns the run folder."""
    run_program(implementation, "--run-dir", run_dir, *CPU, *options, **arguments)
    return Path(run_dir)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """(implementation, *options) -> run folder, as `train` returns it; each run is made once for all tests."""
    folder = tmp_path_factory.mktemp
    return functools.cache(lambda implementation, *options: train(implementation, folder(implementation), *options))


def steps_taken(run_dir):
    """The number of steps that the run has written so far; 0 before its folder exists."""
    return len(read_metrics(run_dir, StepLine))


@pytest.fixture
def training(tmp_path):
    """A function that starts a run in `tmp_path / "r"`, waits for a step of it, and returns its process.

    Whatever is left of it at the end of the test is killed.
    """
    started = []

    def start(implementation, steps, *options, **environment):
        command = (*program_of(implementation), *CPU, *options, "--run-dir", tmp_path / "r")
        process = start_process(command, stdout=subprocess.DEVNULL, **environment)
        started.append(process)
        wait_for(lambda: process.poll() is not None or steps_taken(tmp_path / "r") >= steps, 400)
        assert process.poll() is None, process.communicate()
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


def family_of(process):
    """The process and what it has started."""
    first = psutil.Process(process.pid)
    return [first, *first.children(recursive=True)]


def read_csv(path):
    """The rows of a table that compare.py has written, such as `results.csv`: one dictionary per row."""
    with open(path) as file:
        return list(csv.DictReader(file))


def copy_code(folder):
    """Copies the project's code into `folder`, where a test can change it; returns the folder."""
    for name in CODE:
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "compare.py", folder)
    return folder


def replace_in(path, before, after):
    source = path.read_text()
    assert before in source, f"{path}: {before}"
    path.write_text(source.replace(before, after))


def changed_code(folder, file, before, after):
    """Copies the code as `copy_code` does and replaces `before` by `after` in one file; returns the folder."""
    replace_in(copy_code(folder) / file, before, after)
    return folder


def each_mistake(mistakes, is_quick):
    """Parametrizes a test by names of mistakes; those that are not quick are marked as slow.

    Args:
      mistakes: name -> a tuple that contains a file, a text in it and what replaces it. All are checked when tests are
        collected, since a slow test would notice only later that a text is no longer in its file.
      is_quick: name -> whether.
    """
    for name, parts in mistakes.items():
        place = next(place for place, part in enumerate(parts) if str(part).endswith(".py"))
        assert parts[place + 1] in (REPOSITORY / parts[place]).read_text(), f"{name}: not in {parts[place]} any more"
    cases = [pytest.param(name, marks=() if is_quick(name) else pytest.mark.slow) for name in mistakes]
    return pytest.mark.parametrize("mutation", cases)


# Name -> the program of a fake implementation, see tests/fakes/fake_training.py.
FAKES = {
    "one": "run('one')",
    "two": "run('two')",
    "alias": "run('one')  # a copy in which one has forgotten to change the name",
    "busy": "run('busy', others=lambda config: 0.5 * (config.run_dir.parent.name == 'round-1'))",
    "hang": "run('hang', at_step=(30, hang))",
    "dying": "run('dying', at_step=(30, lambda: os.kill(os.getpid(), signal.SIGKILL)))",
    "crash": "sys.exit('the reason of the crash')",
    "illegal": "os.kill(os.getpid(), signal.SIGILL)",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the project's code, and the fake implementations beside the real ones."""
    folder = copy_code(tmp_path_factory.mktemp("project"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "tests" / "fakes", folder, dirs_exist_ok=True, ignore=ignored)
    for name, program in FAKES.items():
        (folder / f"{name}_impl").mkdir()
        imports = "import os, signal, sys\nfrom fake_training import hang, run\n"
        (folder / f"{name}_impl" / "__main__.py").write_text(imports + program)
    return folder


MISSING = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
LACKS_SLURM = bool(MISSING) or os.geteuid() != 0
needs_slurm = pytest.mark.skipif(LACKS_SLURM, reason=f"a Slurm cluster needs {', '.join(MISSING) or 'root'}")
SLURM_CLUSTER = REPOSITORY / "tests" / "engines" / "slurm_cluster.py"


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """Environment variables with which sbatch and srun use a cluster of two nodes, n1 and n2; both are this machine."""
    folder = tmp_path_factory.mktemp("slurm")
    run(sys.executable, SLURM_CLUSTER, "start", folder)
    yield {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder / "slurm.conf")}
    run(sys.executable, SLURM_CLUSTER, "stop", folder)


def wait_for(condition, seconds=30):
    """Waits until `condition()` is true and returns its value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def gone(pids):
    """Whether these processes have all ended."""
    return all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of the given size in bytes and returns its folder."""
    made = []

    def make(size):
        folder = tmp_path / f"disk-{len(made)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip("only root can make a disk of its own")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder, option):
    """Remounts a `small_disk` with another option, such as `size=100M` or `ro`."""
    subprocess.run(["mount", "-o", f"remount,{option}", folder], check=True)


@pytest.fixture(scope="session")
def data_dir():
    """A folder with real MNIST in torchvision's layout, from the environment variable TEST_DATA_DIR."""
    folder = os.environ.get("TEST_DATA_DIR")
    if not folder:
        pytest.skip("TEST_DATA_DIR names no folder with real data")
    path = Path(folder)
    assert (path / "MNIST" / "raw").is_dir(), f"TEST_DATA_DIR {path} holds no MNIST/raw"
    return path
