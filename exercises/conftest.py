"""What the checks of all activities use: the work that is checked, processes for its ranks, and what a student reads.

    pytest exercises/sampler                      checks exercises/sampler/work.py, the solution
    pytest exercises/sampler --work sampler.py    checks another file

`python -m exercises check` runs the same with `--brief`: a line for each check, and what it has seen if it failed.
"""

import importlib.util
import linecache
import os
import pickle
import re
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from exercises.course import load_factor

# The checks need several devices, and use processes on the CPU. Processes that share the cores take one thread each.
os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3")
GAP = re.compile(r"gap \d+")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--work", type=Path, help="the file to be checked, instead of the solution")
    parser.addoption("--brief", action="store_true", help="print a line for each check, and what it has seen")


# --- The work ---
@pytest.fixture
def work(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that is checked, loaded afresh for each check, which runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = work_file(request.config, request.path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def work_file(config: pytest.Config, checks: Path) -> Path:
    given = config.getoption("--work")
    return (config.invocation_params.dir / given).resolve() if given else checks.with_name("work.py")


@pytest.fixture
def ranks(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """`ranks(function, world_size, seconds=10)`: what `function()` returns in each of so many processes, by rank.

    The processes are forked by torch.multiprocessing, in one folder, with the environment variables of torchrun. They
    are one process group, and each is the first process of its node. With `group=False` they are on one node, and have
    no group yet. On a machine with other load they get more time. If some ranks fail, so does the check, with the first
    error.
    """
    import torch._dynamo  # noqa: F401 - else the first optimizer of each process would import it
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    from torch.distributed.elastic.utils.distributed import get_free_port

    file = str(work_file(request.config, request.path))

    def run(function: Callable[[], Any], world_size: int, seconds: float = 10, group: bool = True) -> list[Any]:
        port = get_free_port()
        folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=tmp_path.parent))

        def start(rank: int) -> None:
            local_rank, here = (0, 1) if group else (rank, world_size)
            places = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": here}
            # With the last one, which torchrun sets too, Lightning does not look for MPI.
            others = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "check"}
            os.environ.update({name: str(value) for name, value in (places | others).items()})
            try:
                if group:  # by a file: a server in rank 0 would be gone when rank 0 is the first to end
                    store = dist.FileStore(str(folder / "store"), world_size)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
                (folder / f"{rank}.result").write_bytes(pickle.dumps(function()))
            except BaseException as error:  # noqa: BLE001 - whatever ends a rank is told
                (folder / f"{rank}.error").write_text(f"rank {rank}: {described(error, file)}", encoding="utf-8")
                sys.exit(1)

        processes = multiprocessing.start_processes(start, (), world_size, join=False, start_method="fork")
        limit = seconds * load_factor()
        end = time.monotonic() + limit
        try:
            while not processes.join(max(0.0, end - time.monotonic()), grace_period=1):
                if time.monotonic() > end:
                    pytest.fail(f"not done after {limit:.0f} s: one process waits for another", pytrace=False)
        except multiprocessing.ProcessExitedException as error:
            failed = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
            seen = failed[0].read_text(encoding="utf-8") if failed else f"rank {error.error_index}: {error}"
            pytest.fail(seen, pytrace=False)
        finally:
            for process in processes.processes:
                process.kill()
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(world_size)]

    return run


# --- What several activities check ---
def check_near(what: str, found: Iterable[Any], wanted: Iterable[Any], hint: str, limit: float = 1e-12) -> None:
    """Checks that two lists have arrays or tensors of the same shapes, whose numbers differ by `limit` at most."""
    for one, other in zip(found, wanted, strict=True):
        numbers, right = (np.asarray(array.tolist(), np.float64) for array in (one, other))
        assert numbers.shape == right.shape, f"the shape of {what}"
        assert np.isfinite(numbers).all(), f"{what} is not finite: there is nan or inf among the numbers"
        away = float(np.abs(numbers - right).max(initial=0.0))
        assert away <= limit, f"{what} is {away:.1e} from where it should be: {hint}"


def make_linear(inputs: int = 4, seed: int = 1) -> Any:
    """A linear layer with three outputs, in float64: rounding is then far smaller than any mistake."""
    import torch

    torch.manual_seed(seed)
    return torch.nn.Linear(inputs, 3).double()


def make_batch(count: int, inputs: int = 4, seed: int = 0) -> Any:
    """Images (count, inputs) and labels from 0 to 2 (count,): the same whenever they are made, in any process."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, inputs, generator=generator, dtype=torch.float64)
    return images, torch.randint(3, (count,), generator=generator)


def train_alone(model: Any, optimizer: Any, batches: Iterable[tuple[Any, Any]]) -> None:
    """Trains in one process on whole batches: what the checks compare with."""
    from torch.nn.functional import cross_entropy

    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


# --- What a student reads ---
def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    def shown(value: object) -> str:
        text = " ".join(repr(value).split())
        return text if len(text) <= 160 else f"{text[:78]} ... {text[-78:]}"

    return [f"yours {shown(left)}, wanted {shown(right)}"] if op == "==" else None


def described(error: BaseException, file: str) -> str:
    """An error in a few words: what an assertion compared and its message, or the error and its line in the work."""
    if isinstance(error, AssertionError) and (str(error).startswith("assert ") or "\nassert " in str(error)):
        message, _, compared = f"\n{error}".rpartition("\nassert ")
        compared = compared.partition("\n")[0]
        return "\n".join(filter(None, (compared if compared.startswith("yours ") else "", message.strip()))) or compared
    if isinstance(error, NotImplementedError) and (gap := GAP.search(str(error))):  # TensorFlow tells more around it
        return f"NotImplementedError: {gap[0]}"
    if isinstance(error, pytest.fail.Exception):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"the file is not valid Python: line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"line {lines[-1]}, `{linecache.getline(file, lines[-1]).strip()}`: " if lines else ""
    return f"{where}{type(error).__name__}: {str(error).strip()[:300]}".rstrip(": ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    report.title = " ".join((item.obj.__doc__ or item.name).split())
    report.seen = described(call.excinfo.value, str(work_file(item.config, item.path))) if call.excinfo else ""
    return report


def pytest_report_teststatus(report: Any, config: pytest.Config) -> tuple[str, str, str] | None:
    if not config.getoption("--brief") or not (report.when == "call" or report.failed):
        return None
    gap = GAP.search(report.seen) if "NotImplementedError" in report.seen else None
    status = "passed" if report.passed else "open" if gap else "FAILED"
    lines = [f"  {status:<6}  {report.title}{f': {gap[0]} is not filled' if gap else ''}"]
    if status == "FAILED":
        lines += [f"          {line}" for line in report.seen.splitlines()]
    text = "".join(f"{textwrap.fill(line, 80, subsequent_indent=' ' * 12, break_on_hyphens=False)}\n" for line in lines)
    return "brief", text, status  # in no summary
