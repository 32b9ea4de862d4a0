"""Half precision on a fake processor, whose probes end as the test says, and on the real one."""

import importlib.metadata
import os
from signal import SIGILL, SIGKILL

import pytest
from conftest import CPU, REPOSITORY, program_of, run

from common.platform import processor
from common.platform.processor import LIMIT, LIMIT_VARIABLE, processor_note
from common.record.results import read_result
from common.resolve import prepare_processor
from common.spec.options import TrainConfig

CPUINFO = "model name\t: Made-up Xeon\nflags\t\t: fpu avx2 avx512_bf16 amx_bf16 amx_tile\nbugs\t\t: amx_fp16\n"
# Python runs this file at the start of each process. It makes the processor fake, and ends a probe with the status in
# "ends"; a negative one is a signal.
SITECUSTOMIZE = """
import os, sys
from pathlib import Path
from common.platform import processor
folder = Path(__file__).parent
processor.CPUINFO = folder / "cpuinfo"
if any(word.endswith("_impl.precision") for word in sys.orig_argv):
    with open(folder / "probed", "a") as file:
        print("a probe", file=file)
    status = int((folder / "ends").read_text())
    os.kill(os.getpid(), -status) if status < 0 else os._exit(status)
"""


class Machine:
    """A fake processor: `prepare` is the start of a run on it, and `probes` the number of probes so far."""

    def __init__(self, folder):
        self.cpuinfo, self.ends_file, self.log = folder / "cpuinfo", folder / "ends", folder / "probed"
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        self.cpuinfo.write_text(CPUINFO)
        self.log.touch()
        self.ends(0)

    def ends(self, status):
        self.ends_file.write_text(str(int(status)))

    def prepare(self, **options):
        """Returns the limit that is set."""
        os.environ.pop(LIMIT_VARIABLE, None)
        prepare_processor(TrainConfig(**{"precision": "bf16-mixed", **options}), "torch", "pt_impl.precision")
        return os.environ.get(LIMIT_VARIABLE)

    @property
    def probes(self):
        return len(self.log.read_text().splitlines())


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "")  # so that pytest restores the variable at the end
    os.environ.pop(LIMIT_VARIABLE)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("cpuinfo", "has_bf16"),
    [
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),  # Arm
        ("model name\t: Old\nflags\t\t: fpu sse2 avx2\n", False),
        ("", False),  # not Linux
    ],
)
def test_a_processor_that_announces_no_such_instructions_is_not_probed(machine, cpuinfo, has_bf16):
    machine.cpuinfo.write_text(cpuinfo)
    assert processor.cpu_has_bf16() == has_bf16 and processor.cpu_name()
    assert machine.prepare() is None and machine.probes == 0


@pytest.mark.parametrize(("ends", "limit"), [(0, None), (-SIGILL, LIMIT)])
def test_a_processor_is_limited_if_it_crashes_and_is_probed_once(machine, ends, limit, capfd):
    machine.ends(ends)
    for first in (True, False):
        assert machine.prepare() == limit and machine.probes == 1
        note, out = processor_note(), capfd.readouterr().out
        assert ("trying out bf16-mixed on this processor, once for torch" in out) == first
        assert (f"note: {note}\n" in out) == bool(note) == bool(limit)


def test_a_failure_of_another_cause_is_no_finding_and_is_not_stored(machine):
    machine.ends(-SIGKILL)
    for starts in (1, 2):
        assert machine.prepare() is None and machine.probes == starts and processor_note() is None


def test_another_version_precision_or_machine_is_tried_again(machine, monkeypatch):
    machine.prepare()
    machine.prepare(precision="16-mixed")
    monkeypatch.setattr(processor.platform, "node", lambda: "another")
    machine.prepare()
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "1000.0")
    machine.prepare()
    machine.prepare()
    assert machine.probes == 4


def test_a_limit_set_by_the_user_is_kept(machine, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, "AVX512_CORE")
    prepare_processor(TrainConfig(precision="bf16-mixed"), "torch", "pt_impl.precision")
    assert machine.probes == 0
    assert processor_note() == "instructions up to AVX512_CORE (ONEDNN_MAX_CPU_ISA), as set in the environment"


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "devices"), [("tf", 1), ("pt", 2), ("ptl", 2)])
def test_a_run_uses_the_instructions_that_work(machine, tmp_path, implementation, devices):
    machine.ends(-SIGILL)
    options = (*CPU, "--max-steps", 2, "--train-size", 64, "--batch-size", 16, "--run-dir", tmp_path / "run")
    done = run(*program_of(implementation), *options, "--precision", "bf16-mixed", "--devices", devices)
    result = read_result(tmp_path / "run")
    assert result.config.precision == "bf16-mixed"
    assert result.processor_note == (
        "instructions up to AVX512_CORE_FP16 (ONEDNN_MAX_CPU_ISA), since half precision crashes (SIGILL) on others that"
        " this processor claims to have"
    )
    assert done.stdout.count(f"note: {result.processor_note}") == 1 and machine.probes == 1
