"""What the processor is called, and what it announces that it can do. Whether that is true: probing.py."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # Linux only; elsewhere nothing is known to be announced
# x86 instructions for bfloat16 and float16, as Linux names them. oneDNN can be held back from using them, see
# `common.platform.probing`; from Arm's it can't.
HALF_PRECISION_FLAGS = {"amx_bf16", "amx_fp16", "avx512_bf16", "avx512_fp16", "avx_ne_convert"}


def _lines(*names: str) -> dict[str, str]:
    """The first line of each of these names in /proc/cpuinfo; those of other processors are the same."""
    found: dict[str, str] = {}
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else []:
        name, _, value = line.partition(":")
        if name.strip() in names:
            found.setdefault(name.strip(), value.strip())
    return found


def cpu_flags() -> frozenset[str]:
    """What the processor announces, in Linux's names; empty where the system doesn't tell."""
    lines = _lines("flags", "Features")  # "Features" on Arm
    return frozenset(" ".join(lines.values()).split())


def cpu_has_bf16() -> bool:
    """Whether the processor announces that it multiplies bfloat16 by itself, which is then faster than float32."""
    return not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})  # "bf16" on Arm


def announced() -> list[str]:
    """The instruction sets for half precision that the processor announces: `["amx_bf16", "avx512_bf16"]`."""
    return sorted(cpu_flags() & HALF_PRECISION_FLAGS)


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    return _lines("model name").get("model name") or platform.processor() or platform.machine()
