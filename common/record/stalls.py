"""Ends a run whose processes wait for each other forever, and says where each of them waits.

It happens when a replica skips a collective operation, such as a sum over all replicas, in which the others wait for
it.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from common.platform.machine import REPOSITORY

# A training has stalled if it takes no step for as many seconds, for STARTS times as long as it took until the first
# step, and for STEPS times as long as its longest step so far.
STALL_SECONDS, STARTS, STEPS = 45.0, 3, 20
LOOK_SECONDS = 1.0  # between two looks; a process that was stopped meanwhile has lost no more than this
TELL_SECONDS = 3.0  # for the other processes to say where they wait
STALLS_DIR = "stalls"


class StallWatch:
    """A thread that looks whether the training goes on; for each process of a run that has several.

    The first process ends the run. The others only say where they wait: what they wait for may be the first one, which
    writes a checkpoint.

    Attributes:
      steps_done: gives the number of steps taken while the process trains; None while it does anything else.
    """

    def __init__(self, rank: int, run_dir: Path | None, steps_done: Callable[[], int | None]) -> None:
        """`run_dir`: the run's folder, if the processes share it."""
        self.rank, self.steps_done = rank, steps_done
        self._folder = run_dir / STALLS_DIR if run_dir else None
        self._main = threading.main_thread().ident
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        last, seconds, least, has_begun = None, 0.0, STALL_SECONDS, False
        while not self._ended.wait(LOOK_SECONDS):
            now = self.steps_done()
            if now == last:
                seconds += LOOK_SECONDS
                if now is not None and (seconds >= least or (self._others_wait() and seconds >= TELL_SECONDS)):
                    self._tell(now, seconds)
                continue
            if self._folder is not None and last is not None and seconds >= TELL_SECONDS:
                (self._folder / str(self.rank)).unlink(missing_ok=True)
            if last is not None:
                least = max(least, STEPS * seconds)
            elif not has_begun:
                least, has_begun = max(least, STARTS * seconds), True
            last, seconds = now, 0.0

    def _others_wait(self) -> bool:
        return self.rank == 0 and self._folder is not None and any(self._folder.glob("*"))

    def _tell(self, steps: int, seconds: float) -> None:
        """Says where this process waits. The first one collects what all say, and ends itself and so the run."""
        places = {self.rank: f"replica {self.rank} has taken {steps} steps and is in {self._place()}"}
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)
            (self._folder / str(self.rank)).write_text(places[self.rank])
        if self.rank > 0:
            return
        time.sleep(TELL_SECONDS)
        if self.steps_done() != steps:
            return
        if self._folder is not None:
            places = {int(path.name): path.read_text() for path in self._folder.iterdir()}
        told = "; ".join(places[rank] for rank in sorted(places))
        text = f"no step for {seconds:.0f} seconds: did a replica skip what the others wait for? {told}"
        os.write(2, f"error: {text}\n".encode())
        os._exit(1)  # the main thread may wait forever

    def _place(self) -> str:
        """The innermost line of this project that the main thread is in: `pt_impl/train.py:64 (forward_backward)`."""
        frame = sys._current_frames().get(self._main or 0)
        lines = traceback.extract_stack(frame) if frame else []
        own = [
            line for line in lines if Path(line.filename).is_relative_to(REPOSITORY) and ".venv" not in line.filename
        ]
        if not own:
            return "an unknown place"
        return f"{Path(own[-1].filename).relative_to(REPOSITORY)}:{own[-1].lineno} ({own[-1].name})"
