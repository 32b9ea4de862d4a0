"""Half precision on processors that announce more than they execute, with a made-up probe that a signal ends."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from common.platform import probing, processor
from common.platform.errors import UserError
from common.platform.probing import FINDING_VARIABLE, LIMITS, Finding, limit_in_force, processor_note
from common.resolve import Settings, prepare_processor, resolve_settings
from common.spec.options import TrainConfig

AMX = "model name\t: Made-up Xeon\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
# Records its start, and ends with the status in PROBE_END for the limit in its environment; 0 if none is given.
PROBE = """
import json, os, sys
limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "none")
with open(os.environ["PROBE_STARTS"], "a") as file:
    print(limit, *sys.argv[1:], file=file)
status = json.loads(os.environ["PROBE_END"]).get(limit, 0)
os.kill(os.getpid(), -status) if status < 0 else sys.exit(status)
"""
# Names of the limits, as the probe writes them.
NAMES = [limit or "none" for limit in LIMITS]


class Machine:
    """A made-up processor, and the probes that were started on it."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.starts_file = folder / "starts"
        (folder / "made_up_probe.py").write_text(PROBE)
        monkeypatch.setattr(processor, "CPUINFO", folder / "cpuinfo")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setenv("PROBE_STARTS", str(self.starts_file))
        for name in (*probing.LIMIT_VARIABLES, FINDING_VARIABLE):
            monkeypatch.setenv(name, "")  # so that pytest restores the variable at the end
        self.announces(AMX)
        self.dies()

    def announces(self, cpuinfo):
        (self.folder / "cpuinfo").write_text(cpuinfo)

    def ends(self, **statuses):
        """The probe's exit status for each limit, below zero for a signal."""
        self.monkeypatch.setenv("PROBE_END", json.dumps(statuses))

    def dies(self, *limits, of=signal.SIGILL):
        self.ends(**dict.fromkeys(limits, -of))

    def prepare(self, **options):
        """Prepares the processor as at the start of another process; returns the limit that is set."""
        for name in (*probing.LIMIT_VARIABLES, FINDING_VARIABLE):
            os.environ.pop(name, None)
        prepare_processor(TrainConfig(**{"precision": "bf16-mixed", **options}), "pytest", "made_up_probe")
        return limit_in_force()

    @property
    def starts(self):
        """The limit and the precisions of each child process so far."""
        return self.starts_file.read_text().splitlines() if self.starts_file.exists() else []


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def resolved(**options):
    return resolve_settings(TrainConfig(accelerator="cpu", devices=1, **options), Settings("bf16-mixed"))


def test_a_processor_that_executes_what_it_announces_gets_no_limit(machine):
    assert machine.prepare() is None
    assert machine.starts == ["none bf16-mixed"]
    assert processor_note() is None and resolved(precision="bf16-mixed").precision == "bf16-mixed"


@pytest.mark.parametrize("number_dead", range(1, len(LIMITS)))
def test_where_it_dies_the_highest_limit_that_works_is_set(machine, number_dead, capfd):
    machine.dies(*NAMES[:number_dead])
    assert machine.prepare() == os.environ["ONEDNN_MAX_CPU_ISA"] == NAMES[number_dead]
    assert machine.starts == [f"{name} bf16-mixed" for name in NAMES[: number_dead + 1]]
    note = processor_note()
    assert note.startswith(
        f"instructions up to {NAMES[number_dead]} (ONEDNN_MAX_CPU_ISA), since the processor fails on instructions"
    )
    assert (
        note.endswith("without this limit half precision crashes (SIGILL)")
        and f"note: {note}" in capfd.readouterr().out
    )
    assert resolved(precision="bf16-mixed").precision == "bf16-mixed"


def test_the_finding_is_kept_and_a_second_run_starts_no_child(machine, capfd):
    machine.dies("none", "AVX512_CORE_AMX")
    assert machine.prepare() == "AVX512_CORE_FP16"
    assert "trying out bf16-mixed on this processor, once for pytest" in capfd.readouterr().out
    assert machine.prepare() == "AVX512_CORE_FP16" and len(machine.starts) == 3
    out = capfd.readouterr().out
    assert "trying out" not in out and "note: instructions up to AVX512_CORE_FP16" in out


@pytest.mark.parametrize("what", ["version", "precision", "processor", "host"])
def test_another_version_precision_or_machine_is_tried_out_anew(machine, monkeypatch, what):
    machine.prepare()
    if what == "version":
        monkeypatch.setattr(importlib.metadata, "version", lambda package: "1000.0")
    elif what == "processor":
        machine.announces(AMX.replace("fpu", "fpu amx_fp16"))
    elif what == "host":
        monkeypatch.setattr(probing.platform, "node", lambda: "another")
    machine.prepare(precision="16-mixed" if what == "precision" else "bf16-mixed")
    assert len(machine.starts) == 2


def test_where_nothing_works_it_is_refused_in_a_line_that_says_why(machine):
    machine.dies(*NAMES)
    assert machine.prepare() is None and len(machine.starts) == len(LIMITS)
    with pytest.raises(UserError) as error:
        resolved(precision="bf16-mixed")
    told = str(error.value)
    assert told.startswith(
        "--precision bf16-mixed: this processor (Made-up Xeon) claims to have amx_bf16, avx512_bf16, but"
    )
    assert "SIGILL" in told and told.endswith("use --precision 32") and "\n" not in told
    assert machine.prepare() is None and len(machine.starts) == len(LIMITS)  # this finding is stored too
    with pytest.raises(UserError):
        resolved(precision="bf16-mixed")
    assert resolved(precision="64").precision == "64"


def test_where_nothing_works_the_faster_mode_takes_32_bits_and_says_so(machine, capfd):
    machine.dies(*NAMES)
    machine.prepare(precision="auto", mode="tuned", dataset="mnist")
    assert resolved(mode="tuned").precision == "32"
    assert "note: 32-bit: no half precision, since the processor fails on instructions" in capfd.readouterr().out
    assert processor_note().startswith("no half precision, since the processor fails on instructions")


def test_a_gpu_needs_no_processor_that_can_do_it(machine):
    machine.dies(*NAMES)
    machine.prepare()  # it is not known yet whether there is a GPU
    gpu = resolve_settings(TrainConfig(accelerator="gpu", devices=1, precision="bf16-mixed"), Settings("bf16-mixed"))
    assert gpu.precision == "bf16-mixed"


def test_a_limit_under_which_the_framework_fails_does_not_work(machine):
    """TensorFlow's bfloat16 needs AVX-512: with a lower limit TensorFlow aborts."""
    machine.ends(none=-signal.SIGILL, AVX512_CORE_AMX=-signal.SIGABRT, AVX512_CORE_FP16=1)
    assert machine.prepare() == "AVX512_CORE_BF16"
    assert Finding.current() == Finding(works=True, limit="AVX512_CORE_BF16", died_of=signal.SIGILL)


@pytest.mark.parametrize("status", [1, 139, -signal.SIGKILL, -signal.SIGTERM], ids=str)
def test_a_probe_that_fails_otherwise_is_not_taken_for_a_bad_processor(machine, status):
    machine.ends(none=status)
    assert machine.prepare() is None and machine.starts == ["none bf16-mixed"]
    assert Finding.current() is None and resolved(precision="bf16-mixed").precision == "bf16-mixed"
    assert machine.prepare() is None and len(machine.starts) == 2  # the result was not stored


def test_nor_is_one_that_does_not_end(machine, monkeypatch):
    (machine.folder / "made_up_probe.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(probing, "TIMEOUT_SECONDS", 0.5)
    assert machine.prepare() is None and Finding.current() is None


def test_a_framework_that_is_not_installed_is_not_tried_out(machine):
    prepare_processor(TrainConfig(precision="bf16-mixed"), "no-such-package", "made_up_probe")
    assert machine.starts == []


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "32"},
        {"precision": "64", "mode": "tuned"},
        {"precision": "auto"},
        {"accelerator": "gpu"},
        {"accelerator": "gpu", "precision": "auto", "mode": "tuned"},
        {"precision": "auto", "mode": "tuned", "dataset": "digits"},
    ],
)
def test_nothing_is_tried_out_where_half_precision_is_not_used(machine, options):
    assert machine.prepare(**options) is None and machine.starts == []


def test_the_faster_mode_may_use_half_precision(machine):
    machine.prepare(precision="auto", mode="tuned", dataset="mnist")
    assert machine.starts == ["none bf16-mixed"]


def test_nothing_is_tried_out_where_nothing_is_announced(machine):
    machine.announces("flags\t\t: fpu avx2 avx512f amx_tile\n")
    assert machine.prepare() is None and machine.starts == []


@pytest.mark.parametrize("name", probing.LIMIT_VARIABLES)
def test_what_the_user_has_set_is_left_as_it_is(machine, monkeypatch, name):
    monkeypatch.setenv(name, "AVX2")
    prepare_processor(TrainConfig(precision="bf16-mixed"), "pytest", "made_up_probe")
    assert machine.starts == [] and limit_in_force() == "AVX2"
    assert processor_note() == "instructions up to AVX2 (ONEDNN_MAX_CPU_ISA), as set in the environment"


def test_a_process_that_this_one_starts_tries_out_nothing_again(machine):
    machine.dies(*NAMES)
    machine.prepare()
    for file in (machine.folder / "cache").rglob("*.json"):
        file.unlink()
    prepare_processor(TrainConfig(precision="bf16-mixed"), "pytest", "made_up_probe")  # as in Lightning's second rank
    assert len(machine.starts) == len(LIMITS)


@pytest.mark.parametrize("text", ["", "junk", '{"works": 1, "other": 2}', b"\xff\xfe"])
def test_a_damaged_cache_means_trying_out_again(machine, text):
    machine.dies("none")
    machine.prepare()
    (file,) = (machine.folder / "cache").rglob("*.json")
    assert file.name.startswith(f"pytest-{importlib.metadata.version('pytest')}-")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert machine.prepare() == "AVX512_CORE_AMX" and len(machine.starts) == 4
    assert machine.prepare() == "AVX512_CORE_AMX" and len(machine.starts) == 4  # the file was repaired


def test_a_cache_that_cannot_be_written_costs_no_run(machine):
    (machine.folder / "cache").write_text("a file where its folder should be")
    machine.dies("none")
    assert machine.prepare() == "AVX512_CORE_AMX"
    assert machine.prepare() == "AVX512_CORE_AMX" and len(machine.starts) == 4


def test_several_processes_at_once_are_harmless(machine):
    """As under torchrun, where each rank tries out the processor independently."""
    code = (
        "from common.platform import processor, probing; from pathlib import Path;"
        f"processor.CPUINFO = Path({str(machine.folder / 'cpuinfo')!r});"
        "probing.try_out(('bf16-mixed',), 'pytest', 'made_up_probe'); print(probing.limit_in_force())"
    )
    machine.dies("none")
    for name in (*probing.LIMIT_VARIABLES, FINDING_VARIABLE):
        os.environ.pop(name, None)
    environment = {**os.environ, "PYTHONPATH": f"{machine.folder}{os.pathsep}{REPOSITORY}"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [rank.communicate()[0].splitlines()[-1] for rank in ranks] == ["AVX512_CORE_AMX"] * 4
    assert [rank.returncode for rank in ranks] == [0] * 4
    (file,) = [path for path in (machine.folder / "cache").rglob("*") if path.is_file()]
    assert Finding.model_validate_json(file.read_text()).limit == "AVX512_CORE_AMX"
