import time
from unittest import mock

import torch
from torch import nn

from exercises.conftest import check_near, make_batch, make_linear, train_alone


def make_model():
    return nn.Sequential(nn.Dropout(0.0), make_linear())


def make_batches(*sizes):
    return [make_batch(size, seed=number) for number, size in enumerate(sizes)]


def test_steps(work):
    """the weights after three steps are the right ones"""
    batches, models = make_batches(5, 5, 3), (make_model(), make_model())
    optimizer, right = (torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9) for model in models)
    work.train_epoch(models[0], batches, optimizer)
    train_alone(models[1], right, batches)
    hint = "the mean loss of the logits? a step for each batch? what must it forget of the batch before, and what not?"
    check_near("a weight after 3 batches", *(model.parameters() for model in models), hint)


def test_clock(work):
    """the clock is time.perf_counter(), read when the device has done its work"""
    before, seconds, after = time.perf_counter(), work.clock(torch.device("cpu")), time.perf_counter()
    hint = "which of Python's clocks is it, and in which unit?"
    assert before <= seconds <= after, f"yours {seconds:.6f}, wanted {before:.6f} to {after:.6f}: {hint}"
    with mock.patch.multiple("torch.cuda", is_available=lambda: True, synchronize=lambda *_, **__: time.sleep(0.05)):
        seconds = work.clock(torch.device("cuda", 0)) - after
    hint = "which line waits for the GPU, is it reached, and when is the clock read?"
    assert seconds >= 0.05, f"the GPU is done after 0.050 s, but the clock is read after {seconds:.3f} s: {hint}"


def test_accuracy(work):
    """every test example counts the same, and evaluation sees the whole network"""
    model, batches, training = make_model(), make_batches(8, 8, 3), set()
    wanted = round(sum((model(images).argmax(dim=1) == labels).sum().item() for images, labels in batches) / 19, 4)
    model.register_forward_hook(lambda *_: training.update(type(m).__name__ for m in model.modules() if m.training))
    hint = "batches of 8, 8 and 3 examples: which answers count as right, and is the mean of means the mean?"
    assert round(float(work.evaluate(model.train(), iter(batches))), 4) == wanted, hint
    assert sorted(training) == [], "layers in training mode during evaluate(): which of them work differently there?"
