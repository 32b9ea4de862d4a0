"""Whole runs on a fake processor that reports AMX instructions, on which the probes end by SIGILL."""

import sys

import pytest
from conftest import CPU, REPOSITORY, changed_code, run

from common.platform.probing import LIMIT_VARIABLES, _probe
from common.record.results import read_result

AMX = "model name\t: Made-up Xeon\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
# Replaces a framework's probe: ends by SIGILL unless the limit on instructions is one of WORKING.
PROBE = """
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA", "none") not in os.environ["WORKING"].split():
    os.kill(os.getpid(), signal.SIGILL)
"""
SLOW = pytest.mark.slow
SHORT = (*CPU, "--precision", "bf16-mixed", "--max-steps", 2, "--train-size", 64, "--batch-size", 16)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project's code that sees the fake processor and has the fake probes."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "cpuinfo").write_text(AMX)
    file, where = "common/platform/processor.py", '"/proc/cpuinfo"'
    assert (REPOSITORY / file).read_text().count(where) == 1
    changed_code(folder, file, where, repr(str(folder / "cpuinfo")))
    for name in ("tf_impl", "pt_impl"):
        assert (folder / name / "probe.py").exists()
        (folder / name / "probe.py").write_text(PROBE)
    return folder


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """Removes limits on instructions that are set for this machine: the fake processor starts without one."""
    for name in LIMIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def start(project, implementation, folder, working, *options, expect=0):
    command = (sys.executable, "-m", f"{implementation}_impl", *SHORT, *options, "--run-dir", folder / "r")
    environment = {"WORKING": working, "XDG_CACHE_HOME": str(folder / "cache"), "MPLCONFIGDIR": str(folder)}
    return run(*command, cwd=project, expect=expect, **environment)


@pytest.mark.parametrize(
    ("implementation", "devices"), [("tf", 1), ("keras", 1), ("pt", 1), ("pt", 2), pytest.param("ptl", 2, marks=SLOW)]
)
def test_the_run_goes_on_with_the_highest_instructions_that_work(project, tmp_path, implementation, devices):
    done = start(project, implementation, tmp_path, "AVX512_CORE_BF16 AVX512_CORE", "--devices", devices)
    result = read_result(tmp_path / "r")
    assert result.config.precision == "bf16-mixed" and result.cpu_instructions == "AVX512_CORE_BF16"
    assert result.processor_note.startswith("instructions up to AVX512_CORE_BF16 (ONEDNN_MAX_CPU_ISA), since the proc")
    assert done.stdout.count(f"note: {result.processor_note}") == 1 and "Made-up Xeon" in done.stdout


@pytest.mark.parametrize("implementation", ["tf", "pt", *(pytest.param(one, marks=SLOW) for one in ("keras", "ptl"))])
def test_where_none_work_there_is_one_line(project, tmp_path, fault, implementation):
    error = start(project, implementation, tmp_path, "", expect=2).stderr.splitlines()[-1]
    assert error.startswith(
        f"python -m {implementation}_impl: error: --precision bf16-mixed: this processor (Made-up Xe"
    )
    assert "SIGILL" in error and error.endswith("use --precision 32") and not (tmp_path / "r" / "result.json").exists()
    fault("instruction", implementation, 2, error, "what the processor can do is tried in a process of its own first")


def test_a_processor_that_works_gets_no_limit_and_no_note(project, tmp_path):
    start(project, "pt", tmp_path, "none")
    result = read_result(tmp_path / "r")
    assert (result.cpu_instructions, result.processor_note) == (None, None)


def test_a_limit_of_the_users_own_is_kept_and_told(project, tmp_path, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    start(project, "pt", tmp_path, "", "--precision", "32")
    result = read_result(tmp_path / "r")
    assert result.cpu_instructions == "AVX512_CORE" and result.processor_note.endswith("as set in the environment")


@pytest.mark.parametrize("implementation", ["tf", "pt"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_the_real_probes_compute_here(implementation, precision):
    """On any machine the probes succeed, with some limit on the instructions or with none."""
    finding = _probe((precision,), f"{implementation}_impl.probe")
    assert finding and finding.works
