"""Checks of one_device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from exercises.checking import check, expect, largest_difference


def make_batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    images = [4 * torch.randn(size, 2, 2, 1, generator=generator, dtype=torch.float64) for size in sizes]
    return [(image, torch.randint(3, (len(image),), generator=generator)) for image in images]


def make_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.Linear(4, 3)).double()


@check(
    "the weights after three steps are the right ones",
    "step by step with one batch: the mean loss of the logits, its gradients, the optimizer's step",
)
def steps(work: ModuleType) -> object:
    weights = []
    for number in (1, 2, 3):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        work.train_epoch(model, make_batches(5, 5, 3)[:number], optimizer)
        weights.append(list(model.parameters()))
    return weights


@steps.judge
def _(seen: Any) -> None:
    wanted, hint = make_model(), ""
    velocities = [torch.zeros_like(parameter) for parameter in wanted.parameters()]
    for number, (images, labels) in enumerate(make_batches(5, 5, 3), start=1):
        gradients = torch.autograd.grad(F.cross_entropy(wanted(images), labels), list(wanted.parameters()))
        with torch.no_grad():
            for parameter, velocity, gradient in zip(wanted.parameters(), velocities, gradients, strict=True):
                velocity.mul_(0.9).add_(gradient)
                parameter -= 0.1 * velocity
        difference = largest_difference(seen[number - 1], wanted.parameters())
        away = f"a weight is {difference:.1e} from where gradient descent with momentum takes it"
        expect(difference < 1e-12, f"after {number} of 3 batches {away}", hint)
        hint = "does each batch make its step? what must it forget of the batch before, and what not?"


class GPU:
    """Imitates a GPU, which does its work (in seconds) when somebody waits for it."""

    work = done = 0.0

    def synchronize(self, device: Any = None) -> None:
        if getattr(device, "type", device) == "cpu":
            raise ValueError("Expected a cuda device, but got: cpu")  # as torch does
        if self.work:
            time.sleep(self.work)
            self.work, self.done = 0.0, time.perf_counter()


@contextmanager
def installed(gpu: GPU) -> Iterator[None]:
    both = {"is_available": lambda: True, "synchronize": gpu.synchronize}
    with (
        mock.patch.multiple("torch.cuda", **both, device=mock.MagicMock(), current_stream=lambda *_: gpu),
        mock.patch.multiple("torch.accelerator", **both),
    ):
        yield


@check("a CPU is timed to the millisecond, with a GPU beside it or without", "torch.cuda.synchronize is for GPUs")
def on_cpu(work: ModuleType) -> object:
    readings = []
    set_back = {"time": count(5e3, -1e3).__next__, "time_ns": count(5 * 10**12, -(10**12)).__next__}
    for machine in (mock.patch("torch.cuda.is_available", return_value=False), installed(GPU())):
        with machine, mock.patch.multiple("time", **set_back):
            for _ in range(20):
                before = time.perf_counter()
                readings.append((before, work.clock(torch.device("cpu")), time.perf_counter()))
                time.sleep(0.003)
    return readings


@on_cpu.judge
def _(readings: Any) -> None:
    error = max(found - after for _, found, after in readings) - min(found - before for before, found, _ in readings)
    hint = "which of Python's clocks is it, in which unit, and how fine? can it be set, or stand still?"
    expect(error < 1e-3, f"of 40 readings, each some milliseconds after the last, one is wrong by {error:.3f} s", hint)


@check(
    "work that the device does late is timed whole",
    "when does perf_counter() run: before the device is done, or after?",
)
def late_work(work: ModuleType) -> object:
    gpu, seen = GPU(), []
    with installed(gpu):
        for name in ("cuda", "cuda:0"):
            before = time.perf_counter()
            start, after = work.clock(torch.device(name)), time.perf_counter()
            gpu.work = 0.1
            timed, waited = work.clock(torch.device(name)) - start, not gpu.work
            gpu.synchronize()
            seen.append((name, timed, waited, gpu.done - after, time.perf_counter() - before))
    return seen


@late_work.judge
def _(seen: Any) -> None:
    for name, timed, waited, least, most in seen:
        hint = "" if waited else "which line waits for this device, and is it reached?"
        right = waited and least - 1e-3 < timed < most + 1e-3
        expect(right, f"work of the device {name}: yours {timed:.3f} s, wanted {least:.3f} s", hint)


@check("every test example counts the same", "which answers count as right, and of how many examples?")
def uneven_batches(work: ModuleType) -> object:
    batches = make_batches(8, 8, 3)
    return [float(work.evaluate(make_model(), given)) for given in (batches, iter(batches))]


@uneven_batches.judge
def _(seen: Any) -> None:
    again, once = seen
    correct = [(make_model()(images).argmax(dim=1) == labels).double() for images, labels in make_batches(8, 8, 3)]
    wanted, means = torch.cat(correct).mean().item(), sum(one.mean().item() for one in correct) / 3
    hint = "the last batch is smaller: is the mean of means the mean?" if abs(again - means) < 1e-6 else ""
    expect(abs(again - wanted) < 1e-6, f"the accuracy: yours {again:.4f}, wanted {wanted:.4f}", hint)
    told = f"the accuracy if the batches can be read only once: yours {once:.4f}, wanted {wanted:.4f}"
    expect(abs(once - wanted) < 1e-6, told, "how often are they read?")


@check("evaluation sees the whole network, training a thinned one", "which layers do something else in training?")
def modes(work: ModuleType) -> object:
    model, seen = make_model(dropout=0.5), []

    def look(*_: object) -> None:
        seen.append((torch.is_grad_enabled(), [type(part).__name__ for part in model.modules() if part.training]))

    model.register_forward_hook(look)
    work.train_epoch(model, make_batches(4, 4), torch.optim.SGD(model.parameters(), lr=0.1))
    trained = [training for has_graph, training in seen if has_graph]
    seen.clear()
    work.evaluate(model, make_batches(4, 2))
    return trained, [training for _, training in seen], all(weight.requires_grad for weight in model.parameters())


@modes.judge
def _(seen: Any) -> None:
    trained, evaluated, learns = seen
    hint = "which line has changed the mode, and is it set back?"
    expect(all(len(training) == 4 for training in trained), "a batch was trained on in evaluation mode", hint)
    for training in evaluated:
        expect(not training, f"evaluated in training mode: {', '.join(training)}")
    expect(learns, "after evaluate() the weights can't be trained any more", "what does it change for good?")
