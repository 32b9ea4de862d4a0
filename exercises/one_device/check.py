"""Checks of one_device."""

import threading
import time
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from exercises.checking import check, expect, largest_difference


def make_batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(size, 2, 2, 1, generator=generator, dtype=torch.float64) for size in sizes]
    return [(image, torch.randint(3, (len(image),), generator=generator)) for image in images]


def make_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(4, 3)).double()


@check(
    "the weights after three steps are the right ones",
    "step by step with one batch: the mean loss, its gradients alone, the step",
)
def steps(work: ModuleType) -> object:
    model = make_model()
    work.train_epoch(model, make_batches(5, 5, 3), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return list(model.parameters())


@steps.judge
def _(weights: Any) -> None:
    wanted = make_model()
    velocities = [torch.zeros_like(parameter) for parameter in wanted.parameters()]
    for images, labels in make_batches(5, 5, 3):
        gradients = torch.autograd.grad(F.cross_entropy(wanted(images), labels), list(wanted.parameters()))
        with torch.no_grad():
            for parameter, velocity, gradient in zip(wanted.parameters(), velocities, gradients, strict=True):
                velocity.mul_(0.9).add_(gradient)
                parameter -= 0.1 * velocity
    difference = largest_difference(weights, wanted.parameters())
    expect(difference < 1e-12, f"a weight is {difference:.1e} from where gradient descent with momentum takes it")


class Behind:
    """Imitates a GPU: `start` gives it work, and returns before the work is done."""

    def __init__(self) -> None:
        self.work: threading.Thread | None = None

    def start(self, seconds: float) -> None:
        self.work = threading.Thread(target=time.sleep, args=(seconds,))
        self.work.start()

    def synchronize(self, device: object = None) -> None:
        if self.work:
            self.work.join()


@check(
    "work that the device does late is timed whole",
    "when does perf_counter() run: before the device is done, or after?",
)
def late_work(work: ModuleType) -> object:
    gpu, device = Behind(), torch.device("cuda")
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.accelerator.is_available", return_value=True),
        mock.patch("torch.cuda.device"),
        mock.patch("torch.cuda.current_stream", return_value=gpu),
        mock.patch("torch.cuda.synchronize", gpu.synchronize),
        mock.patch("torch.accelerator.synchronize", gpu.synchronize),
    ):
        start = work.clock(device)
        gpu.start(0.3)
        given_after = work.clock(device) - start
        gpu.start(0.3)
        start = work.clock(device)
        return given_after, work.clock(device) - start


@late_work.judge
def _(seen: Any) -> None:
    after, before = seen
    expect(0.29 <= after < 30, f"0.3 s of work were timed as {after:.3f} s")
    expect(before < 0.1, f"{before:.3f} s were timed of work that was given before the first reading")


@check("the clock also runs on a machine without a GPU", "torch.cuda.synchronize is for CUDA devices")
def no_gpu(work: ModuleType) -> object:
    with mock.patch("torch.cuda.is_available", return_value=False):
        return [work.clock(torch.device("cpu")) for _ in range(2)]


@no_gpu.judge
def _(readings: Any) -> None:
    first, second = readings
    expect(0 <= second - first < 1, f"two readings in a row are {second - first:.3f} s apart")


@check("setting the machine's clock changes no time", "which of Python's clocks can be set while they run?")
def set_clock(work: ModuleType) -> object:
    with (
        mock.patch("time.time", side_effect=[5e3, 2e3]),
        mock.patch("time.time_ns", side_effect=[5 * 10**12, 2 * 10**12]),
    ):
        return [work.clock(torch.device("cpu")) for _ in range(2)]


@set_clock.judge
def _(readings: Any) -> None:
    first, second = readings
    expect(0 <= second - first < 1, f"the clock was set, and two readings in a row are {second - first:.0f} s apart")


@check("every test example counts the same", "the last batch is smaller: is the mean of means the mean?")
def uneven_batches(work: ModuleType) -> object:
    return float(work.evaluate(make_model(), make_batches(8, 8, 3)))


@uneven_batches.judge
def _(found: Any) -> None:
    images, labels = (torch.cat(parts) for parts in zip(*make_batches(8, 8, 3), strict=True))
    wanted = (make_model()(images).argmax(dim=1) == labels).sum().item() / 19
    expect(abs(found - wanted) < 1e-6, f"{wanted * 19:.0f} of 19 are right, and the accuracy was told as {found:.4f}")


@check(
    "evaluation sees the whole network, training a thinned one", "what is different in Dropout between the two modes?"
)
def modes(work: ModuleType) -> object:
    model, seen = make_model(dropout=0.5), []
    model[1].register_forward_hook(lambda layer, *_: seen.append(layer.training))
    work.evaluate(model, make_batches(4, 2))
    evaluated = seen.copy()
    seen.clear()
    work.train_epoch(model, make_batches(4), torch.optim.SGD(model.parameters(), lr=0.1))
    return evaluated, seen


@modes.judge
def _(seen: Any) -> None:
    evaluated, trained = seen
    expect(evaluated == [False, False], "the model was evaluated in training mode")
    expect(trained == [True], "the model was trained in evaluation mode, or its step ran it more than once")
