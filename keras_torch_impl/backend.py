"""Keras on PyTorch, as `common.backend` sees it."""

import torch

from common.platform.machine import cpu_name
from common.spec.options import TrainConfig
from keras_impl.backends.backend import KerasBackend
from pt_impl.replicas import setup_replica_process


class KerasTorch(KerasBackend):
    name, cuda = "keras_torch", torch.version.cuda

    def num_gpus(self) -> int:
        return torch.cuda.device_count()

    def setup(self, config: TrainConfig) -> None:
        setup_replica_process(config)
        torch.set_default_device("cuda" if config.accelerator == "gpu" else "cpu")

    def device_name(self, config: TrainConfig) -> str:
        return cpu_name() if config.accelerator == "cpu" else torch.cuda.get_device_name(0)

    def ran_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, torch.OutOfMemoryError | MemoryError)


BACKEND = KerasTorch()
