"""The processor's name and the instruction sets that it announces. probing.py tests whether they work."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # Linux only; elsewhere the announced instruction sets are unknown
# x86 instruction sets for bfloat16 and float16, with Linux's names. oneDNN can be kept from using them, see
# `common.platform.probing`. It can't be kept from using Arm's.
HALF_PRECISION_FLAGS = {"amx_bf16", "amx_fp16", "avx512_bf16", "avx512_fp16", "avx_ne_convert"}


def _lines(*names: str) -> dict[str, str]:
    """The first value of each of these names in /proc/cpuinfo; all processors listed there have the same values."""
    found: dict[str, str] = {}
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else []:
        name, _, value = line.partition(":")
        if name.strip() in names:
            found.setdefault(name.strip(), value.strip())
    return found


def cpu_flags() -> frozenset[str]:
    """The features that the processor announces, with Linux's names; empty if they are unknown."""
    lines = _lines("flags", "Features")  # "Features" on Arm
    return frozenset(" ".join(lines.values()).split())


def cpu_has_bf16() -> bool:
    """Whether the processor announces instructions for bfloat16 products; these are then faster than float32."""
    return not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # "bf16" on Arm


def announced() -> list[str]:
    """The instruction sets for half precision that the processor announces: `["amx_bf16", "avx512_bf16"]`."""
    return sorted(cpu_flags() & HALF_PRECISION_FLAGS)


def cpu_name() -> str:
    """The processor's name as the system reports it."""
    return _lines("model name").get("model name") or platform.processor() or platform.machine()
