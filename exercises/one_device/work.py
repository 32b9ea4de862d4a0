"""One device: training, timing and evaluating a classifier in PyTorch.

python one_device.py
"""

import time
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from exercises.data import load_examples

Batch = tuple[torch.Tensor, torch.Tensor]  # images: float32 (B, H, W, C), labels: int64 (B,)
EPOCHS, BATCH_SIZE, LEARNING_RATE = 5, 64, 0.05


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def train_epoch(model: nn.Module, batches: Iterable[Batch], optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer for each batch, on the mean cross-entropy of the batch."""
    model.train()
    for images, labels in batches:
        # Gap 1: the step: compute the gradients of this batch's loss, and of no other. Then update the weights.
        ### BEGIN SOLUTION
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        ### END SOLUTION


def clock(device: torch.device) -> float:
    """Seconds; only differences have a meaning. A GPU works asynchronously: a call returns before its work is done."""
    # Gap 2: read time.perf_counter() after the device has finished all its work (torch.cuda.synchronize).
    ### BEGIN SOLUTION
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
    ### END SOLUTION


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Iterable[Batch]) -> float:
    """The share of correct answers over all examples. Each counts the same, although the batches differ in size.

    `batches` may be an iterator, which can be read only once.
    """
    # Gap 3: put the model into the right mode, count, and divide.
    ### BEGIN SOLUTION
    model.eval()
    correct = count = 0
    for images, labels in batches:
        correct += (model(images).argmax(dim=1) == labels).sum().item()
        count += len(labels)
    return correct / count
    ### END SOLUTION


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_examples()
    train = TensorDataset(*(torch.from_numpy(array).to(device) for array in (data.train_images, data.train_labels)))
    test = TensorDataset(*(torch.from_numpy(array).to(device) for array in (data.test_images, data.test_labels)))
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    train_batches, test_batches = DataLoader(train, BATCH_SIZE, shuffle=True), DataLoader(test, BATCH_SIZE)
    for epoch in range(EPOCHS):
        start = clock(device)
        train_epoch(model, train_batches, optimizer)
        seconds = clock(device) - start
        accuracy = evaluate(model, test_batches)
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.2%}, {len(train) / seconds:,.0f} images/s")


if __name__ == "__main__":
    main()
