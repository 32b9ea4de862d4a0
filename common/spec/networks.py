"""A network: its folder in networks/, its initial weights, and properties that depend on the images' shape.

Each implementation makes it with the folder's file for its framework, and converts weights to and from the canonical
layout (layers.py).
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from common.platform.errors import UserError
from common.platform.files import Arrays, read_safetensors
from common.platform.machine import REPOSITORY
from common.spec import own_network
from common.spec.layers import Block, Flatten, Layer, Parameter, Shape, Trace, named_layers
from common.spec.randomness import STREAM_WEIGHTS, random_bits

Weights = Arrays  # canonical name -> array of floats


NETWORK_FOLDERS = {
    name: f"networks.{path.parent.name}"
    for path in sorted(REPOSITORY.glob("networks/*/spec.py"))
    for name in importlib.import_module(f"networks.{path.parent.name}.spec").NETWORKS
}  # --model -> its folder, which variants of a network share


def layers_of(model: str) -> tuple[Layer, ...]:
    """The network's layers as data; none of a network of the user's."""
    if own_network.is_folder(model):
        return ()
    layers: tuple[Layer, ...] = importlib.import_module(f"{NETWORK_FOLDERS[model]}.spec").NETWORKS[model]
    return layers


@dataclass(frozen=True)
class NetworkSpec:
    """A network for images of a given shape.

    Attributes:
      image_shape: (height, width, channels).
      parameters: in the order of the layers.
      layers: as data.
      activations, flattened, dropout_rates: see `Trace`; the last activations are the logits.
      flops_per_image: floating-point operations of one forward pass over one image; `flops_until`: up to each layer.
      prepared: what is known of a network of the user's, of which the layers are not known as data; None of ours.
    """

    name: str
    image_shape: tuple[int, int, int]
    num_classes: int
    layers: tuple[Layer, ...]
    parameters: tuple[Parameter, ...]
    activations: dict[str, Shape]
    flattened: dict[str, Shape]
    dropout_rates: tuple[float, ...]
    flops_until: dict[str, int]
    flops_per_image: int
    prepared: own_network.Prepared | None

    @classmethod
    def make(cls, name: str, image_shape: tuple[int, int, int], num_classes: int) -> "NetworkSpec":
        """Raises UserError where the images are too small for the network, or where the user's own can't be made."""
        if own_network.is_folder(name):
            prepared = own_network.read_prepared(own_network.prepare_network(name, image_shape, num_classes))
            parameters = tuple(
                Parameter(name, shape, name.rpartition(".")[2]) for name, shape in prepared.parameters.items()
            )
            flops = prepared.flops_per_image
            return cls(name, image_shape, num_classes, (), parameters, {}, {}, (), {}, flops, prepared)
        layers, trace = layers_of(name), Trace(num_classes)
        trace.follow(layers, image_shape)
        # Each normalised channel needs more than one value, even for a single image.
        normalised = {one.name.removesuffix(".mean") for one in trace.parameters if one.kind == "mean"}
        for layer, shape in trace.activations.items():
            if len(shape) == 3 and (min(shape[:2]) < 1 or (layer in normalised and shape[0] * shape[1] < 2)):
                height, width, _ = image_shape
                left = "nothing" if min(shape[:2]) < 1 else "a single pixel, which can't be normalised,"
                raise UserError(
                    f"--model {name}: images of {height} x {width} are too small: {left} would be left after {layer}"
                    " (--dataset, --image-shape)"
                )
        parameters, rates = tuple(trace.parameters), tuple(trace.dropout_rates)
        of_shape = trace.activations, trace.flattened, rates, trace.flops_until, trace.flops
        return cls(name, image_shape, num_classes, layers, parameters, *of_shape, None)

    def make_in(self, framework: str) -> Any:
        """The network in its framework's own classes.

        Args:
          framework: the file of the network's folder: `pt`, `tf` (Keras) or `jax` (Flax NNX).

        Raises:
          UserError: the folder has no such file.
        """
        if self.is_own:
            return self._module_of_user(framework).make_network(self.image_shape, self.num_classes)
        module = f"{NETWORK_FOLDERS[self.name]}.{framework}"
        if importlib.util.find_spec(module) is None:
            raise UserError(f"--model {self.name}: there is no {module.replace('.', '/')}.py")
        size = re.search(r"\d+$", self.name)  # of one of several variants: `resnet18`
        variants = list(NETWORK_FOLDERS.values()).count(NETWORK_FOLDERS[self.name])
        options = {"size": int(size[0])} if size and variants > 1 else {}
        return importlib.import_module(module).make_network(self.image_shape, self.num_classes, **options)

    def loss_in(self, framework: str) -> Callable[[Any, Any], Any] | None:
        """The `loss` of a user's file: from outputs and labels to losses (n,). None: it is the cross-entropy."""
        return vars(self._module_of_user(framework)).get("loss") if self.is_own else None

    def _module_of_user(self, framework: str) -> ModuleType:
        own_network.check_file(self.name, framework)
        return load_module(Path(self.name) / own_network.NETWORK_FILES[framework])

    @property
    def has_own_loss(self) -> bool:
        """Whether the files of a user's network have a loss of their own."""
        return self.prepared is not None and self.prepared.has_loss

    @property
    def scores_classes(self) -> bool:
        """Whether there is an output for each class, its score; without them nobody can say what an accuracy is."""
        return self.prepared is None or self.prepared.num_outputs == self.num_classes

    @property
    def is_own(self) -> bool:
        """Whether it is a network of the user's."""
        return self.prepared is not None

    def layout_in(self, framework: str) -> own_network.Layout | None:
        """Where the framework, see `make_in`, keeps canonical values; None for our networks, which say it by name."""
        if not self.is_own:
            return None
        return own_network.read_layout(self.name, self.image_shape, self.num_classes, framework)

    @property
    def drops_by_itself(self) -> bool:
        """Whether it has dropout for which each framework draws random numbers of its own."""
        return self.prepared is not None and self.prepared.drops

    @property
    def normalises(self) -> bool:
        """Whether the network has batch normalisation, and so running statistics, which are not trained."""
        return not all(parameter.trainable for parameter in self.parameters)

    @property
    def drops(self) -> bool:
        """Whether the network has dropout in lockstep, and so needs to know which examples it gets."""
        return bool(self.dropout_rates)

    @property
    def end_of_first_stage(self) -> str:
        """The layer after which `--strategy pipeline` cuts.

        It is the last one before the features are flattened: most work is in the convolutions before it, and most
        weights are behind it. Where nothing is flattened, as in a residual network, both stages have about the same
        work.
        """
        if self.is_own:
            raise UserError(f"--strategy pipeline: does not cut a network of one's own, --model {self.name}")
        names = list(self.activations)
        for layer in self.layers:
            if isinstance(layer, Flatten):
                return names[names.index(layer.name) - 1]
        ends = [[*dict(named_layers((layer,)))][-1] for layer in self.layers if isinstance(layer, Block)]
        return min(ends, key=lambda layer: abs(self.flops_until[layer] - self.flops_per_image / 2))

    @property
    def trained(self) -> list[str]:
        """Canonical names of the trained parameters, in the order of the layers."""
        return [parameter.name for parameter in self.parameters if parameter.trainable]

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.size for parameter in self.parameters if parameter.trainable)

    def initial_weights(self, seed: int) -> Weights:
        """Canonical name -> float64 array.

        It is the same on every machine, since only sums, products and roots are used; those of a network of the user's
        are its framework's.
        """
        if self.is_own:
            place = own_network.prepare_network(self.name, self.image_shape, self.num_classes, seed=seed)
            return read_safetensors(place / own_network.weights_file(seed))
        weights: Weights = {}
        for index, parameter in enumerate(self.parameters):
            bits = random_bits(parameter.size, seed, STREAM_WEIGHTS, index)
            uniform = (bits >> np.uint64(11)) * 2.0**-53  # float64 in [0, 1)
            weights[parameter.name] = (parameter.bound * (2 * uniform - 1)).reshape(parameter.shape)
            if parameter.kind in ("scale", "variance"):
                weights[parameter.name] += 1
        return weights

    def check(self, weights: Weights, source: str) -> Weights:
        """Returns `weights`.

        Raises:
          UserError: a name is missing or unexpected, a shape is wrong, or a value is not a finite number.
        """
        expected = {parameter.name: parameter.shape for parameter in self.parameters}
        for name, array in weights.items():
            if array.dtype.kind != "f":
                raise UserError(f"{source}: {name} is of type {array.dtype}; should be floating-point numbers")
        converts = "pt_impl.weights.get_weights converts PyTorch's (docs/training.md)"
        check_arrays(weights, expected, source, f"--model {self.name} has other names; {converts}")
        return weights


@cache
def load_module(path: Path) -> ModuleType:
    """Runs a file of the user's, once. Its folder is importable: the files of a network may share others."""
    sys.path.append(str(path.parent))  # last: its jax.py must not hide the package of that name
    spec = importlib.util.spec_from_file_location(f"network_in_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHOWN_NAMES = 4  # names in a message


def check_arrays(arrays: Weights, shapes: dict[str, tuple[int, ...]], source: str, about: str = "") -> None:
    """Raises UserError unless `arrays` has exactly these names and shapes, with finite numbers.

    Args:
      source: what the message begins with.
      about: what the message says of the names where some are missing or unexpected.
    """
    wrong = {
        "missing": [name for name in shapes if name not in arrays],
        "unexpected": [name for name in arrays if name not in shapes],
    }
    if any(wrong.values()):
        lists = {
            what: ", ".join([*names[:SHOWN_NAMES], *["..."] * bool(names[SHOWN_NAMES:])])
            for what, names in wrong.items()
        }
        found = "; ".join(f"{what}: {names}" for what, names in lists.items() if names)
        raise UserError(f"{source}: {found}{f'; {about}' if about else ''}")
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise UserError(f"{source}: {name} has shape {array.shape}, should have {shapes[name]}")
        if not np.isfinite(array).all():
            raise UserError(f"{source}: {name} contains NaN or infinity")
