"""PyTorch's profiler, which Lightning's PyTorchProfiler starts too."""

from pt_impl.profiling import TorchProfiler as TorchProfiler
