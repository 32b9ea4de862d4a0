"""The implementations: a line here each, and a folder `NAME_impl`, which Keras's backends share."""

import sys
from dataclasses import dataclass
from pathlib import Path

from common.spec.options import MODES, Mode

# Package -> the module that tries out half precision with it, see `common.platform.processor.try_out`.
PRECISION_MODULES = {"tensorflow": "tf_impl.precision", "torch": "pt_impl.precision", "jax": "jax_impl.precision"}


@dataclass(frozen=True)
class Implementation:
    """What is known of an implementation without its framework.

    Attributes:
      title: name of the framework, for tables and messages.
      about: how it trains, for its `--help`.
      package: the package that computes; its version decides whether half precision is tried out again.
      tutorial: what its `--mode tutorial` does that plain mode leaves out.
      keras_backend: the value of KERAS_BACKEND for an implementation in `keras_impl`; "" elsewhere.
      backend: the module in its folder that has its `BACKEND`.
      modes: the modes that it has.
    """

    title: str
    about: str
    package: str
    tutorial: str = ""
    keras_backend: str = ""
    backend: str = "backend"
    modes: tuple[Mode, ...] = MODES

    @property
    def network_file(self) -> str:
        """The file of a network's folder that it uses, without `.py`."""
        return "tf" if self.keras_backend else {"tensorflow": "tf", "torch": "pt"}.get(self.package, self.package)


IMPLEMENTATIONS = {
    "tf": Implementation(
        "TensorFlow", "loop written out; MirroredStrategy", "tensorflow", "images that are batched one by one"
    ),
    "keras": Implementation(
        "Keras",
        "compile and fit; MirroredStrategy",
        "tensorflow",
        "fit's own step, metrics and progress bar",
        keras_backend="tensorflow",
    ),
    "pt": Implementation(
        "PyTorch", "loop written out; DistributedDataParallel, FSDP", "torch", "images that are transformed one by one"
    ),
    "ptl": Implementation(
        "Lightning",
        "Trainer and its strategies",
        "torch",
        "images that are transformed one by one, logging, and the progress bar",
    ),
    "jax": Implementation(
        "JAX", "Flax NNX, optax; arrays divided over a mesh of devices", "jax", "images that are converted one by one"
    ),
    "keras_torch": Implementation(
        "Keras-torch",
        "compile and fit on PyTorch; one device",
        "torch",
        keras_backend="torch",
        backend="on_one_device",
        modes=("tutorial",),
    ),
    "keras_jax": Implementation(
        "Keras-JAX",
        "compile and fit on JAX; one device",
        "jax",
        keras_backend="jax",
        backend="on_one_device",
        modes=("tutorial",),
    ),
}


def implementation_title(name: str) -> str:
    """The title of an implementation; its name if it has no line here."""
    return IMPLEMENTATIONS[name].title if name in IMPLEMENTATIONS else name


def modes_of(name: str) -> tuple[Mode, ...]:
    """The modes of an implementation; all if it has no line here."""
    return IMPLEMENTATIONS[name].modes if name in IMPLEMENTATIONS else MODES


def folder_of(name: str) -> str:
    """The folder of an implementation, which is its package."""
    return "keras_impl" if name in IMPLEMENTATIONS and IMPLEMENTATIONS[name].keras_backend else f"{name}_impl"


def backend_of(name: str) -> str:
    """The module in an implementation's folder that has its `BACKEND`."""
    return IMPLEMENTATIONS[name].backend if name in IMPLEMENTATIONS else "backend"


def environment_of(name: str) -> dict[str, str]:
    """The environment variables with which an implementation is started."""
    backend = IMPLEMENTATIONS[name].keras_backend if name in IMPLEMENTATIONS else ""
    return {"KERAS_BACKEND": backend} if backend else {}


def interpreter_of(name: str) -> str:
    """Path of the Python in whose environment an implementation runs.

    It is this one, unless the framework has an environment beside this one: `.venv-tensorflow` beside `.venv`. CUDA's
    libraries for PyTorch and for TensorFlow can't be installed in the same environment.
    """
    if name not in IMPLEMENTATIONS:
        return sys.executable
    packages = {implementation.package for implementation in IMPLEMENTATIONS.values()}
    base = next((sys.prefix.removesuffix(f"-{of}") for of in packages if sys.prefix.endswith(f"-{of}")), sys.prefix)
    places = (Path(prefix, "bin", "python") for prefix in (f"{base}-{IMPLEMENTATIONS[name].package}", base))
    return next((str(python) for python in places if python.exists()), sys.executable)
