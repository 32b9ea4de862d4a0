"""Notices that this process was stopped for a while, as by Ctrl-Z or SIGSTOP; that time is no time of the run.

The signal SIGCONT tells that the process goes on, and a thread that wakes up ten times a second knows since when it was
stopped. A suspended machine needs nothing: its monotonic clock stands still meanwhile (clock_gettime(2)).
"""

import signal
import threading
import time
from types import FrameType

BEAT_SECONDS = 0.1
LEAST_SECONDS = 3 * BEAT_SECONDS  # without a beat; the thread may also wait for the interpreter's lock


class Stops:
    """Counts from its creation on. Only the main thread may make one, since it handles a signal.

    Attributes:
      seconds: time in which the process was stopped.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._beat, self._gap = time.perf_counter(), 0.0
        signal.signal(signal.SIGCONT, self._goes_on)
        threading.Thread(target=self._beats, daemon=True).start()

    def _beats(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._look()

    def _goes_on(self, number: int, frame: FrameType | None) -> None:
        self._look()
        self.seconds += self._gap
        self._gap = 0.0

    def _look(self) -> None:
        """Notes the latest gap between two beats; called by whichever of both runs first."""
        now = time.perf_counter()
        if now - self._beat > LEAST_SECONDS:
            self._gap = now - self._beat - BEAT_SECONDS / 2
        self._beat = now
