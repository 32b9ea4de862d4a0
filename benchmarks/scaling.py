"""Predictions of the model of a step's time (benchmarks/step_model.py) for 8 to 1,024 devices and each of our networks.

Weak scaling: each device has as many examples as one device alone. Strong scaling: all devices together have as many
examples as one device alone.

    python -m benchmarks.scaling --flops-per-second 20e12 --bytes-per-second 3e9 --latency-seconds 1e-5
"""

from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from pydantic import Field
from rich.console import Console

from benchmarks.paired import FolderConfig, make_folder, make_table, write_document
from benchmarks.step_model import Computation, Network, efficiency
from common.platform.cli import parse_options
from common.platform.ending import as_program
from common.spec.networks import NetworkSpec
from common.spec.options import ModelName

DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHOWN = (8, 64, 256, 1024)
PASSES = 3  # a forward pass, and a backward one that costs twice as much
# Each network with the shape of the images that it is made for.
NETWORKS: dict[ModelName, tuple[int, int, int]] = {
    "cnn": (8, 8, 1),
    "lenet": (28, 28, 1),
    "mnist_dropout": (28, 28, 1),
    "resnet8": (32, 32, 3),
    "resnet18": (32, 32, 3),
    "resnet50": (224, 224, 3),
}


@dataclass(frozen=True)
class Published:
    """A published measurement of weak scaling, and what the model needs to predict it.

    Attributes:
      alone: images per second of one GPU; a P100, by TensorFlow's benchmarks of 2017 (guide/performance/benchmarks of
        TensorFlow 1), synthetic data.
      examples: examples per step of each GPU.
      parameters: number of parameters, by torchvision's documentation.
      card_bits: bits that a server's network card sends in a second; a ring passes each server once.
      efficiency: the measured efficiency.
    """

    name: str
    devices: int
    alone: float
    examples: int
    parameters: float
    card_bits: float
    efficiency: float

    def predicted(self, latency_seconds: float) -> float:
        network = Network(latency_seconds, self.card_bits / 8)
        computation = Computation(0.0, 1 / self.alone)
        return efficiency(computation, self.examples, 4 * self.parameters, self.devices, network, strong=False)


# Sources: Horovod's documentation (docs/benchmarks.rst), 128 servers with four GPUs each; Goyal et al. 2017, "Accurate,
# Large Minibatch SGD", 32 servers with eight GPUs each, where the efficiency is relative to one server.
PUBLISHED = (
    Published("Inception V3, Horovod", 512, 142, 64, 23.8e6, 25e9, 0.90),
    Published("VGG-16, Horovod", 512, 154, 64, 138.4e6, 25e9, 0.68),
    Published("ResNet-50, Goyal et al.", 256, 195, 32, 25.6e6, 50e9, 0.90),
)


class ScalingConfig(FolderConfig):
    """`python -m benchmarks.scaling --help` prints all options."""

    flops_per_second: float = Field(
        20e12, gt=0, description="operations per second of a device in training, with 32-bit or mixed floats"
    )
    step_seconds: float = Field(0.002, ge=0, description="seconds of a step that don't depend on its examples")
    bytes_per_second: float = Field(3e9, gt=0, description="that each device can send; benchmarks.network measures it")
    latency_seconds: float = Field(
        1e-5, ge=0, description="that a message takes at least; benchmarks.network measures it"
    )
    weak_examples: int = Field(32, gt=0, description="examples per step of each device, in weak scaling")
    strong_examples: int = Field(1024, gt=0, description="examples per step of all devices, in strong scaling")


def main() -> None:
    options = parse_options(ScalingConfig, "python -m benchmarks.scaling", "Predicts how training scales.")
    console = Console(highlight=False)
    folder = make_folder(options, "scaling")
    network = Network(options.latency_seconds, options.bytes_per_second)
    table = make_table("efficiency, weak | strong", "", "MB", "GFLOP", *(f"{count:,}" for count in SHOWN))
    speeds: dict[str, dict[str, list[float]]] = {}
    for name, shape in NETWORKS.items():
        spec = NetworkSpec.make(name, shape, 1000 if name == "resnet50" else 10)
        flops, gradient_bytes = PASSES * spec.flops_per_image, 4 * spec.num_parameters
        computation = Computation(options.step_seconds, flops / options.flops_per_second)
        ways = {"weak": options.weak_examples, "strong": options.strong_examples}
        speeds[name] = {
            way: [
                efficiency(computation, examples, gradient_bytes, count, network, way == "strong") for count in DEVICES
            ]
            for way, examples in ways.items()
        }
        cells = [
            " | ".join(f"{speeds[name][way][DEVICES.index(count)]:.0%}" for way in ("weak", "strong"))
            for count in SHOWN
        ]
        table.add_row(name, f"{gradient_bytes / 1e6:.2f}", f"{flops / 1e9:.3g}", *cells)
    console.print(table)
    others = make_table("efficiency, published and predicted", "", "devices", "published", "predicted")
    for published in PUBLISHED:
        predicted = published.predicted(options.latency_seconds)
        others.add_row(published.name, str(published.devices), f"{published.efficiency:.0%}", f"{predicted:.0%}")
    console.print(others)
    draw(speeds, folder / "scaling.svg")
    write_document(
        "scaling",
        folder,
        console,
        {"devices": DEVICES, "efficiency": speeds, "options": options.model_dump(mode="json")},
    )


def draw(speeds: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Plots efficiency over devices: weak scaling on the left, strong scaling on the right."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for place, way in enumerate(("weak", "strong"), start=1):
        axes = figure.add_subplot(1, 2, place)
        for name, values in speeds.items():
            axes.plot(DEVICES, values[way], marker=".", label=name)
        axes.set_xscale("log", base=2)
        axes.set(title=f"{way} scaling", xlabel="devices", ylabel="efficiency", ylim=(0, 1.05))
        axes.set_xticks(DEVICES[::2], [f"{count:,}" for count in DEVICES[::2]])
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "scaling"}):  # text as text, and the same file each time
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    with as_program("python -m benchmarks.scaling"):
        main()
