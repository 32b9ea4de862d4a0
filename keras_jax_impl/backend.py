"""Keras on JAX, as `common.backend` sees it."""

from common.spec.options import TrainConfig
from jax_impl.backend import Jax
from jax_impl.replicas import count_gpus, cuda_version, setup_process
from keras_impl.backends.backend import KerasBackend


class KerasJax(KerasBackend):
    name, cuda = "keras_jax", cuda_version()

    def num_gpus(self) -> int:
        return count_gpus()

    def setup(self, config: TrainConfig) -> None:
        setup_process(config)

    device_name, ran_out_of_memory = Jax.device_name, Jax.ran_out_of_memory


BACKEND = KerasJax()
