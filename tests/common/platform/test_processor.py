"""Half precision on a made-up processor, whose probes end as the test says."""

import importlib.metadata
import os
from signal import SIGILL, SIGKILL

import pytest
from conftest import CPU, REPOSITORY, program_of, run

from common.platform import processor
from common.platform.processor import ISA_WITHOUT_AMX, LIMIT_VARIABLE, processor_note
from common.record.results import read_result
from common.resolve import prepare_processor
from common.spec.options import TrainConfig

CPUINFO = "model name\t: Made-up Xeon\nflags\t\t: fpu avx2 avx512_bf16 amx_bf16 amx_tile\nbugs\t\t: amx_fp16\n"


class Machine:
    """The processor: `status` is how its probes end, `probes` their number so far."""

    status, probes = 0, 0

    def probe(self, command, **options):
        self.probes += 1
        return self.status

    def prepare(self, precision="bf16-mixed", limit=""):
        """The start of a run, in an environment with this limit; returns the limit that is set."""
        os.environ[LIMIT_VARIABLE] = limit
        prepare_processor(TrainConfig(precision=precision), "torch", "pt_impl.precision")
        return os.environ[LIMIT_VARIABLE] or None


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "")  # so that pytest restores the variable at the end
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine = Machine()
    monkeypatch.setattr("subprocess.call", machine.probe)
    return machine


@pytest.mark.parametrize(
    ("cpuinfo", "has_bf16"),
    [
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),  # Arm
        ("model name\t: Old\nflags\t\t: fpu sse2 avx2\n", False),
        ("", False),  # not Linux
    ],
)
def test_a_processor_that_announces_no_such_instructions_is_not_probed(machine, cpuinfo, has_bf16):
    processor.CPUINFO.write_text(cpuinfo)
    assert processor.cpu_has_bf16() == has_bf16 and processor.cpu_name()
    assert machine.prepare() is None and machine.probes == 0


@pytest.mark.parametrize(
    ("status", "limit", "probes"), [(0, None, 1), (-SIGILL, ISA_WITHOUT_AMX, 1), (-SIGKILL, None, 2)]
)
def test_a_processor_is_limited_if_it_crashes_and_is_probed_once(machine, status, limit, probes, capsys):
    """A failure of another cause is no finding, and is not stored."""
    machine.status = status
    for first in (True, False):
        assert machine.prepare() == limit
        note, out = processor_note(), capsys.readouterr().out
        assert ("trying out bf16-mixed on this processor, once for torch" in out) == (first or probes == 2)
        assert (f"note: {note}\n" in out) == bool(note) == bool(limit)
    assert machine.probes == probes


def test_another_version_or_precision_is_tried_again_and_not_where_the_user_sets_a_limit(machine, monkeypatch):
    for precision in ("bf16-mixed", "16-mixed", "16-mixed"):
        machine.prepare(precision)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1000.0")
    machine.prepare()
    assert machine.prepare(limit="AVX512_CORE") == "AVX512_CORE" and machine.probes == 3
    assert processor_note() == "instructions up to AVX512_CORE (ONEDNN_MAX_CPU_ISA), as set in the environment"


# Python runs this file at the start of each process.
SITECUSTOMIZE = """
import os, sys
from pathlib import Path
from common.platform import processor
processor.CPUINFO = Path(__file__).with_name("cpuinfo")
if any(word.endswith("_impl.precision") for word in sys.orig_argv):
    os.kill(os.getpid(), 4)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "devices"), [("tf", 1), ("pt", 2), ("ptl", 2)])
def test_a_run_uses_the_instructions_that_work(tmp_path, implementation, devices):
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    size = ("--max-steps", 2, "--train-size", 64, "--batch-size", 16, "--run-dir", tmp_path / "run")
    options = ("--precision", "bf16-mixed", "--devices", devices)
    done, result = run(*program_of(implementation), *CPU, *size, *options, **paths), read_result(tmp_path / "run")
    assert result.config.precision == "bf16-mixed"
    assert result.processor_note == (
        "instructions up to AVX512_CORE_FP16 (ONEDNN_MAX_CPU_ISA), since half precision crashes (SIGILL) on others that"
        " this processor claims to have"
    )
    assert done.stdout.count(f"note: {result.processor_note}") == done.stdout.count("trying out bf16-mixed") == 1
