"""PyTorch's profiler, for `--profile`: https://docs.pytorch.org/docs/stable/profiler.html."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from common.record.profile import TRACE_FILE, ProfiledOperation


class TorchProfiler:
    """Profiles this process and its GPU, if there is one."""

    def start(self, folder: Path) -> None:
        self.folder = folder
        os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # otherwise it reports a missing GPU
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self.profile = profile(activities=activities)
        self.profile.start()

    def stop(self) -> Sequence[ProfiledOperation]:
        self.profile.stop()
        self.profile.export_chrome_trace(str(self.folder / TRACE_FILE))
        operations = []
        for event in self.profile.key_averages():
            # On a GPU the kernels' time counts: the CPU's time is only that of starting them.
            microseconds = event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total
            if microseconds > 0:
                operations.append(ProfiledOperation(name=event.key, calls=event.count, seconds=microseconds / 1e6))
        return operations
