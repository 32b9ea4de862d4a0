"""A network of the user's, of which no formulas are known: one of its files computes it in 64 bits, for audits.

A process of that file's framework (`port/run.py`) takes images and weights to the outputs, and back to the gradients.
The rest of a step is computed by `reference.py`, as of our networks.
"""

import pickle
import subprocess
import tempfile
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from common.implementations import IMPLEMENTATIONS
from common.platform.errors import UserError
from common.platform.files import Arrays
from common.spec.networks import NetworkSpec
from common.spec.own_network import NETWORK_FILES, Layout, Shape, prepared_files, read_layout
from port.check import start_file
from port.network import Probe

Array = NDArray[np.float64]
PRINTED_FILE = "printed"


@dataclass(frozen=True)
class RecomputedNetwork(NetworkSpec):
    """`framework`: a key of NETWORK_FILES, whose file computes it."""

    framework: str

    @classmethod
    def of(cls, network: NetworkSpec, implementation: str) -> Self:
        """For audits of an implementation: computed by another framework's file, if it is paired with this one."""
        own = IMPLEMENTATIONS[implementation].network_file
        known = prepared_files(network.name, network.image_shape, network.num_classes)
        framework = next((name for name in known if name != own), own)
        return cls(**{field.name: getattr(network, field.name) for field in fields(network)}, framework=framework)

    def output(self, weights: Arrays, images: Array, training: bool) -> Array:
        """The logits, float64 (n, classes), of images (n, height, width, channels). Raises UserError."""
        answer: Array = self._ask("output", self._layout().to_native(weights), images, training)
        return answer

    def losses(self, output: Array, labels: NDArray[np.int64]) -> tuple[Array, Array]:
        """The loss of each example, and the gradient of their sum by the output. Raises UserError."""
        answer: tuple[Array, Array] = self._ask("losses", output, labels)
        return answer

    def pass_back(self, weights: Arrays, images: Array, gradient: Array) -> Arrays:
        """The gradients of the trained parameters, and the running statistics after a pass in training.

        Args:
          gradient: of the loss by the logits.

        Raises:
          UserError: the file can't be run.
        """
        layout = self._layout()
        return layout.to_canonical(self._ask("pass_back", layout.to_native(weights), images, gradient))

    def _layout(self) -> Layout:
        layout: Layout = read_layout(self.name, self.image_shape, self.num_classes, self.framework, "layers")
        return layout

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What a method of `port.network.Network` returns."""
        process, place = _process(self.name, self.image_shape, self.num_classes, self.framework)
        assert process.stdin and process.stdout
        try:
            pickle.dump((method, *arguments), process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)  # noqa: S301 - from this program's own process
        except (EOFError, OSError):
            _process.cache_clear()  # another audit starts it again
            lines = Path(place.name, PRINTED_FILE).read_text(errors="replace").strip().splitlines()
            raise UserError(lines[-1] if lines else f"{NETWORK_FILES[self.framework]}: has ended") from None


@cache
def _process(
    model: str, image_shape: Shape, num_classes: int, framework: str
) -> tuple["subprocess.Popen[bytes]", "tempfile.TemporaryDirectory[str]"]:
    """The process that answers, which ends with this one, and the folder with what it has printed."""
    place = tempfile.TemporaryDirectory()
    probe = Probe(np.zeros((1, *image_shape)), np.zeros(1, np.int64), num_classes)
    path = Path(place.name, "probe")
    path.write_bytes(pickle.dumps(probe))
    with Path(place.name, PRINTED_FILE).open("wb") as printed:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": printed}
        process = start_file(framework, Path(model), "--probe", str(path), **pipes)
    return process, place
