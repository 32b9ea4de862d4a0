"""JAX, as `common.backend` sees it: one process with several devices, or one of those that a launcher has started."""

import jax
import numpy as np
from numpy.typing import NDArray

from common.backend import Backend
from common.experiment import Experiment
from common.platform.launch import Launch
from common.platform.machine import cpu_name
from common.record.recorder import Recorder
from common.resolve import AutoSettings, resolve_devices, resolve_settings, tuned_settings
from common.spec.options import TrainConfig
from jax_impl import replicas
from jax_impl.inspection import predict
from jax_impl.parallel import STRATEGIES
from jax_impl.parts import make_parts
from jax_impl.profiling import JaxProfiler
from jax_impl.train import train


class Jax(Backend):
    """Attributes:
    mesh: of the run's devices, once it has joined.
    """

    name, profiler = "jax", JaxProfiler()
    mesh: jax.sharding.Mesh

    def resolve(self, config: TrainConfig) -> TrainConfig:
        num_gpus = 0 if config.accelerator == "cpu" else replicas.count_gpus()
        config = resolve_devices(config, self.title, num_gpus, Launch.read(), STRATEGIES, replicas.cuda_version())
        return resolve_settings(config, tuned_settings(config) if config.accelerator == "gpu" else AutoSettings())

    def join(self, experiment: Experiment, launch: Launch) -> None:
        self.mesh = replicas.make_mesh(experiment.config, launch)

    def train(self, experiment: Experiment, recorder: Recorder) -> None:
        train(experiment, make_parts(experiment, self.mesh, recorder), recorder)

    def leave(self) -> None:
        replicas.sum_over_processes(np.zeros(1))

    def device_name(self, config: TrainConfig) -> str:
        """The processor's or the first GPU's name."""
        return cpu_name() if config.accelerator == "cpu" else str(jax.local_devices()[0].device_kind)

    def fetch(
        self, steps: list[tuple[jax.Array, jax.Array]], numbers: list[float]
    ) -> tuple[list[tuple[float, float]], list[float]]:
        """Losses and correct answers are of the whole batch already; `numbers` are summed here."""
        if numbers:
            numbers = replicas.sum_over_processes(np.array(numbers)).tolist()
        losses, correct = (
            np.concatenate([np.ravel(share) for share in column]).tolist()
            for column in zip(*jax.device_get(steps), strict=True)
        )
        return list(zip(losses, correct, strict=True)), numbers

    def synchronize(self) -> None:
        jax.block_until_ready(jax.live_arrays())

    def ran_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)

    def lost_another(self, error: Exception) -> bool:
        """JAX has no type for it."""
        message = str(error)
        return isinstance(error, jax.errors.JaxRuntimeError) and any(
            word in message for word in ("UNAVAILABLE", "by peer", "Broken pipe", "heartbeat")
        )

    def classify(self, experiment: Experiment) -> NDArray[np.floating]:
        replicas.setup_process(experiment.config)
        return predict(experiment, experiment.initial_weights)


BACKEND = Jax()
