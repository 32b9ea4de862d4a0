"""Runs a module beside busy loops, which run only while it has its turn; see benchmarks.noise.

python -m benchmarks.loops.beside_busy NUMBER MODULE ...: with the options of a run on one device.
"""

import os
import runpy
import subprocess
import sys

from common.record import recorder
from common.record.turns import Turn, Turns

BUSY_LOOP = ("sh", "-c", "while :; do :; done")  # starts at once


class BesideBusyLoops(Turns):
    loops: "list[subprocess.Popen[bytes]]"

    def __init__(self) -> None:
        super().__init__()
        self.loops = []

    def wait(self, done: int, seconds_per_step: float | None, steps_per_call: int) -> Turn | None:
        self.end_loops()
        turn = super().wait(done, seconds_per_step, steps_per_call)
        self.loops = [subprocess.Popen(BUSY_LOOP) for _ in range(number)]
        for loop in self.loops:
            os.sched_setaffinity(loop.pid, range(os.cpu_count() or 1))  # any core, even if this program has its own
        return turn

    def end_loops(self) -> None:
        for loop in self.loops:
            loop.kill()
            loop.wait()
        self.loops = []

    def close(self) -> None:
        self.end_loops()
        super().close()


if __name__ == "__main__":
    number, module = int(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    recorder.Turns = BesideBusyLoops  # type: ignore[attr-defined]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
