"""Facts about the machine: processor, cores, memory; and a digest of the code."""

import hashlib
import os
import platform
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from common.platform.control_groups import cpu_quota
from common.platform.errors import UserError
from common.platform.files import Count
from common.platform.processor import cpu_name as cpu_name

REPOSITORY = Path(__file__).resolve().parents[2]


class Machine(BaseModel):
    """The machine on which a run was made, described without any framework.

    Attributes:
      hostname: does not identify a machine. Containers on one machine have different names, and two machines may have
        the same name.
      cores: number of cores that the run may use; `all_cores` is the number of all cores.
      system: the operating system with its kernel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hostname: str
    processor: str
    cores: Count
    all_cores: Count
    memory_bytes: Count
    system: str

    def differences(self, other: "Machine") -> list[str]:
        """Lists the fields in which two machines differ: `cores: 2 and 4`. The hostname is not compared."""
        fields = [name for name in type(self).model_fields if name != "hostname"]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in fields}
        # The kernel reserves a slightly different amount of memory at each start.
        pairs["memory_bytes"] = round(self.memory_bytes / 2**30), round(other.memory_bytes / 2**30)
        return [
            f"{name.replace('memory_bytes', 'memory GiB').replace('_', ' ')}: {one} and {two}"
            for name, (one, two) in pairs.items()
            if one != two
        ]


def describe_machine() -> Machine:
    return Machine(
        hostname=platform.node() or "unknown",
        processor=cpu_name() or "unknown",
        cores=num_cores(),
        all_cores=os.cpu_count() or num_cores(),
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
    )


def num_cores() -> int:
    """Number of CPU cores this process may use: those of its CPU affinity, at most a container's limit; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def check_memory(num_bytes: int, what: str) -> None:
    """Raises UserError if `what` needs more memory than this machine has available."""
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise UserError(f"{what} need {num_bytes / 2**30:,.1f} GiB; this machine has {available / 2**30:,.1f} left")


def code_sha256() -> str:
    """Hex digest over the current Python files of all implementations and of `common`."""
    digest = hashlib.sha256()
    for path in sorted([*REPOSITORY.glob("common/**/*.py"), *REPOSITORY.glob("*_impl/**/*.py")]):
        digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
