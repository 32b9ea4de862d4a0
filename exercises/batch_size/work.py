"""The batch-size question in three curves: images per second, steps to a target, accuracy at the end.

python batch_size.py                           a table
python batch_size.py --figure batch_size.png   and the curves
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from exercises.data import Examples, load_examples

BATCH_SIZES = (16, 64, 256, 1024)
EPOCHS, WARMUP_STEPS, TARGET = 15, 5, 0.95
BASE_RATE, BASE_BATCH_SIZE = 0.025, 64  # a learning rate that is good for this batch size


def learning_rate(batch_size: int) -> float:
    """The linear rule (Goyal and others, 2017): the rate is proportional to the batch size of all devices together."""
    # Gap 1
    ### BEGIN SOLUTION
    return BASE_RATE * batch_size / BASE_BATCH_SIZE
    ### END SOLUTION


def images_per_second(step_seconds: list[float], step_images: list[int]) -> float:
    """The speed over the steps (at least one) after the first WARMUP_STEPS. An epoch's last batch may be smaller."""
    # Gap 2
    ### BEGIN SOLUTION
    return sum(step_images[WARMUP_STEPS:]) / sum(step_seconds[WARMUP_STEPS:])
    ### END SOLUTION


def steps_to_target(history: list[tuple[int, float]]) -> int | None:
    """The steps done when the accuracy was first TARGET or more; None: never. `history`: (steps done, accuracy)."""
    # Gap 3
    ### BEGIN SOLUTION
    return next((steps for steps, accuracy in history if accuracy >= TARGET), None)
    ### END SOLUTION


def critical_batch_size(batch_sizes: list[int], steps: list[int]) -> tuple[float, float]:
    """The smallest possible number of steps, and the batch size that needs twice as many.

    McCandlish and others, "An Empirical Model of Large-Batch Training" (2018), equation 2.11: the steps to a target are
    fewest * (1 + critical / batch size). This is fitted to all pairs, at least two, by least squares in steps.
    """
    # Gap 4: a straight line over 1 / batch size. What are its intercept and its slope?
    ### BEGIN SOLUTION
    slope, fewest = np.polyfit(1 / np.array(batch_sizes), np.array(steps), 1)
    return float(fewest), float(slope / fewest)
    ### END SOLUTION


def train(data: Examples, batch_size: int) -> tuple[float, list[tuple[int, float]]]:
    """Images per second, and test accuracies by the number of steps done."""
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    test_images, test_labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate(batch_size), momentum=0.9)
    seconds, counts, history = [], [], []
    for epoch in range(EPOCHS):
        for chosen in torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch)).split(batch_size):
            start = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            counts.append(len(chosen))
            with torch.inference_mode():  # outside the measured time
                accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
            history.append((len(seconds), accuracy))
    return images_per_second(seconds, counts), history


def draw(path: str, speeds: list[float], steps: list[int | None], accuracies: list[float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    curves = {"images per second": speeds, f"steps to {TARGET:.0%}": steps, "test accuracy at the end": accuracies}
    for axis, (title, values) in zip(axes, curves.items(), strict=True):
        shown = [(size, value) for size, value in zip(BATCH_SIZES, values, strict=True) if value is not None]
        axis.plot(*zip(*shown, strict=True), marker="o")
        axis.set(title=title, xlabel="batch size", xscale="log", yscale="linear" if values is accuracies else "log")
        axis.set_xticks(BATCH_SIZES, BATCH_SIZES)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--figure", help="write the curves to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more threads gain nothing with so small a network
    data = load_examples()
    speeds, steps, accuracies = [], [], []
    print(f"batch size   rate  images/s  steps to {TARGET:.0%}  accuracy after {EPOCHS} epochs")
    for batch_size in BATCH_SIZES:
        speed, history = train(data, batch_size)
        speeds.append(speed)
        steps.append(steps_to_target(history))
        accuracies.append(history[-1][1])
        reached = "never" if steps[-1] is None else steps[-1]
        print(f"{batch_size:10} {learning_rate(batch_size):6.3f} {speed:9,.0f} {reached:>13} {accuracies[-1]:14.2%}")
    pairs = [(size, needed) for size, needed in zip(BATCH_SIZES, steps, strict=True) if needed is not None]
    if len(pairs) > 1:  # else there is no line to fit
        fewest, critical = critical_batch_size(*map(list, zip(*pairs, strict=True)))
        print(f"at least {fewest:.0f} steps; twice as many with batches of {critical:.0f}")
    if options.figure:
        draw(options.figure, speeds, steps, accuracies)


if __name__ == "__main__":
    main()
