"""Checkpoints: resuming as if nothing had happened, and using weights from many devices on one.

python checkpoints.py
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before a process group is created; see exercises/PT_CNN_MultiGPU.py
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from exercises.data import Examples, load_examples

EPOCHS, BATCH_SIZE, LEARNING_RATE = 6, 64, 0.1
PREFIX = "module."  # DistributedDataParallel puts it in front of the names of the wrapped model's weights


def save_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, schedule: LRScheduler, epoch: int) -> None:
    """Saves all that training needs to resume after `epoch` (from 0), with the weights under the network's own names.

    `model`: the network, or a DistributedDataParallel around it. `schedule` may step more often than once an epoch.
    Random states are not needed: `train` draws each order anew, from the number of the epoch.
    """
    # Gap 1: torch.save a dictionary, with any keys.
    ### BEGIN SOLUTION
    network = model.module if isinstance(model, DistributedDataParallel) else model
    states = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({**states, "epoch": epoch}, path)
    ### END SOLUTION


def load_checkpoint(path: Path, network: nn.Module, optimizer: Optimizer, schedule: LRScheduler) -> int:
    """Restores model, optimizer and schedule, whatever they held before; returns the epoch to resume with.

    The file may come from a machine with GPUs, and this one may have none.
    """
    # Gap 2
    ### BEGIN SOLUTION
    states = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    schedule.load_state_dict(states["schedule"])
    return states["epoch"] + 1
    ### END SOLUTION


def load_for_inference(path: Path, network: nn.Module) -> nn.Module:
    """Gives `network` the weights of a file, and returns it, ready for inference on a machine without GPUs.

    The file comes from somebody else. It has the state dict of a network, or of a DistributedDataParallel around it,
    from any device. It may contain code, which must not be run. Fails if a weight is missing, has another shape, or
    there is one too many. The network's own names do not begin with PREFIX.
    """
    # Gap 3: read the file, remove PREFIX where it is, load the weights. What else does a network need before inference?
    ### BEGIN SOLUTION
    weights = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict({name.removeprefix(PREFIX): values for name, values in weights.items()})
    return network.eval()
    ### END SOLUTION


def make_training() -> tuple[nn.Module, Optimizer, LRScheduler]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9)
    return network, optimizer, CosineAnnealingLR(optimizer, EPOCHS)


def train(model: nn.Module, optimizer: Optimizer, schedule: LRScheduler, data: Examples, epochs: range) -> None:
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    for epoch in epochs:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH_SIZE):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        schedule.step()


def main() -> None:
    data = load_examples()
    whole, *rest = make_training()
    train(whole, *rest, data, range(EPOCHS))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        # The first half of the training runs in a process group, the second half without one.
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        network, optimizer, schedule = make_training()
        model = DistributedDataParallel(network)
        train(model, optimizer, schedule, data, range(EPOCHS // 2))
        save_checkpoint(path, model, optimizer, schedule, EPOCHS // 2 - 1)
        torch.save(model.state_dict(), Path(folder, "weights.pt"))
        dist.destroy_process_group()

        again, optimizer, schedule = make_training()
        first = load_checkpoint(path, again, optimizer, schedule)
        train(again, optimizer, schedule, data, range(first, EPOCHS))
        pairs = zip(again.state_dict().values(), whole.state_dict().values(), strict=True)
        difference = max((one - other).abs().max().item() for one, other in pairs)
        print(f"{EPOCHS} epochs, and {first} + {EPOCHS - first}: weights differ by {difference:g}")

        half = load_for_inference(Path(folder, "weights.pt"), make_training()[0])
        images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
        with torch.inference_mode():
            for name, network in (("half-way", half), ("at the end", again.eval())):
                accuracy = (network(images).argmax(dim=1) == labels).float().mean()
                print(f"test accuracy {name}: {accuracy:.2%}")


if __name__ == "__main__":
    main()
