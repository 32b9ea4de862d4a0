"""JAX's profiler, for `--profile`: https://docs.jax.dev/en/latest/profiling.html."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax
from jax.profiler import ProfileData, ProfileOptions

from common.record.profile import TRACE_FILE, ProfiledOperation


class JaxProfiler:
    """Profiles this process and its devices."""

    def start(self, folder: Path) -> None:
        self.folder = folder
        options = ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(str(folder), create_perfetto_trace=True, profiler_options=options)

    def stop(self) -> Sequence[ProfiledOperation]:
        jax.profiler.stop_trace()
        (trace,) = self.folder.glob("plugins/profile/*/perfetto_trace.json.gz")
        trace.rename(self.folder / TRACE_FILE)
        (path,) = self.folder.glob("plugins/profile/*/*.xplane.pb")
        calls: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        for plane in ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    if any(name == "hlo_op" for name, _ in event.stats):  # an operation of the compiled step
                        calls[event.name] += 1
                        seconds[event.name] += event.duration_ns / 1e9
        return [ProfiledOperation(name=name, calls=calls[name], seconds=seconds[name]) for name in calls]
