"""TensorFlow's profiler, for `--profile`: https://www.tensorflow.org/api_docs/python/tf/profiler/experimental.

The profiler writes its own format, which TensorBoard's plugin xprof opens. This module converts it for Perfetto.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from common.record.profile import TRACE_FILE, ProfiledOperation


class TensorFlowProfiler:
    """Profiles this process and its devices."""

    def start(self, folder: Path) -> None:
        self.folder = folder
        tf.profiler.experimental.start(str(folder))

    def stop(self) -> Sequence[ProfiledOperation]:
        tf.profiler.experimental.stop()
        (path,) = self.folder.glob("plugins/profile/*/*.xplane.pb")
        planes = xplane_pb2.XSpace.FromString(path.read_bytes()).planes
        with gzip.open(self.folder / TRACE_FILE, "wt") as file:
            json.dump({"traceEvents": list(trace_events(planes))}, file)
        on_gpu = [plane for plane in planes if "/device:GPU" in plane.name]
        calls: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        # On a GPU the kernels' time counts: the CPU's time is only that of starting them.
        for plane in on_gpu or planes:
            for line in plane.lines:
                for name, own_seconds in own_times(plane, line, all_events=bool(on_gpu)):
                    calls[name] += 1
                    seconds[name] += own_seconds
        return [ProfiledOperation(name=name, calls=calls[name], seconds=seconds[name]) for name in calls]


def own_times(plane: Any, line: Any, all_events: bool) -> Iterator[tuple[str, float]]:
    """Operations of a line of an XPlane, and their seconds without those of nested operations.

    On the CPU only operations have a display name; other events belong to the runtime.
    """
    events = []
    for event in line.events:
        metadata = plane.event_metadata[event.metadata_id]
        if name := metadata.display_name or (metadata.name if all_events else ""):
            events.append((event.offset_ps, -event.duration_ps, name))
    around: list[tuple[int, str, list[int]]] = []  # end, name, own picoseconds: of events not over
    for offset, negative, name in sorted(events):
        while around and around[-1][0] <= offset:
            _, ended, own = around.pop()
            yield ended, own[0] / 1e12
        if around:
            around[-1][2][0] += negative
        around.append((offset - negative, name, [-negative]))
    for _, ended, own in around:
        yield ended, max(0, own[0]) / 1e12


def trace_events(planes: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Events in Chrome's trace format: a process for each plane, a thread for each line, times in microseconds."""
    for process, plane in enumerate(planes, 1):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines, 1):
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": line.name}}
            for event in line.events:
                yield {
                    "ph": "X",
                    "name": plane.event_metadata[event.metadata_id].name,
                    "pid": process,
                    "tid": thread,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                }
