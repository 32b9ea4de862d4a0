import pytest

from common.platform import processor

XEON = """processor\t: 0
model name\t: Made-up Xeon
flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_tile
bugs\t\t: spectre_v1 amx_fp16

processor\t: 1
model name\t: Made-up Xeon
flags\t\t: fpu
"""


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Replaces the file in which Linux describes the processor."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", path)
    return path


def test_what_a_processor_announces_stands_in_its_flags_and_nowhere_else(cpuinfo):
    cpuinfo.write_text(XEON)
    assert processor.cpu_name() == "Made-up Xeon"
    assert processor.announced() == ["amx_bf16", "avx512_bf16", "avx512_fp16"]
    assert processor.cpu_has_bf16() and "avx512f" in processor.cpu_flags()


def test_an_arm_has_bf16_and_nothing_that_could_be_limited(cpuinfo):
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n")
    assert processor.cpu_has_bf16() and processor.announced() == []


@pytest.mark.parametrize("text", ["model name\t: Old\nflags\t\t: fpu sse2 avx2\n", "", None])
def test_an_old_processor_or_another_system_announces_nothing(cpuinfo, text):
    if text is not None:
        cpuinfo.write_text(text)
    assert processor.announced() == [] and not processor.cpu_has_bf16()
    assert processor.cpu_name()
