"""Checks of gradient_accumulation."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from exercises.checking import check, expect, largest_difference


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def make_batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return images, torch.randint(3, (count,), generator=generator)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train_whole(images: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
    """The weights after `steps` steps, each on the whole batch at once."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return weights(model)


def weights_after(work: ModuleType, steps: int, part_size: int) -> torch.Tensor:
    images, labels = make_batch(10)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        work.train_step(model, optimizer, images, labels, part_size)
    return weights(model)


def away(found: Any, steps: int, count: int = 10) -> float:
    """The largest difference from the weights after steps on whole batches of `count`."""
    return largest_difference([found], [train_whole(*make_batch(count), steps)])


@check("a batch is cut into parts, none of which is too large", "10 examples in parts of 4")
def parts(work: ModuleType) -> object:
    return list(work.split(*make_batch(10), 4))


@parts.judge
def _(seen: Any) -> None:
    images, labels = (example.tolist() for example in make_batch(10))
    sizes = [(len(one), len(other)) for one, other in seen]
    expect(sizes == [(4, 4), (4, 4), (2, 2)], f"10 examples in parts of 4 came as {sizes}")
    expect(sum((one for one, _ in seen), []) == images, "the parts' images are not the batch's, in order")
    expect(sum((one for _, one in seen), []) == labels, "the parts' labels are not the batch's, in order")


@check("a step in equal parts is the step on the whole", "what are the parts' losses divided by, and how often?")
def equal_parts(work: ModuleType) -> object:
    return weights_after(work, steps=1, part_size=5)


@equal_parts.judge
def _(weights: Any) -> None:
    found = away(weights, steps=1)
    expect(found < 1e-12, f"after a step in 2 parts of 5 a weight is {found:.1e} from that of the whole step")


@check("a step in unequal parts is the step on the whole", "does each example weigh the same?")
def unequal_parts(work: ModuleType) -> object:
    return weights_after(work, steps=1, part_size=4)


@unequal_parts.judge
def _(weights: Any) -> None:
    found = away(weights, steps=1)
    expect(found < 1e-12, f"after a step in parts of 4, 4 and 2 a weight is {found:.1e} from that of the whole step")


@check("so are three steps", "what do the gradients hold when the second step begins?")
def three_steps(work: ModuleType) -> object:
    return weights_after(work, steps=3, part_size=5)


@three_steps.judge
def _(weights: Any) -> None:
    found = away(weights, steps=3)
    expect(found < 1e-12, f"after 3 steps a weight is {found:.1e} from that of whole steps")


@check("the mean loss is returned", "of all examples, each of which counts the same")
def loss(work: ModuleType) -> object:
    model = make_model()
    return work.train_step(model, torch.optim.SGD(model.parameters(), lr=0.5), *make_batch(10), 4)


@loss.judge
def _(found: Any) -> None:
    images, labels = make_batch(10)
    wanted = F.cross_entropy(make_model()(images), labels).item()
    expect(abs(found - wanted) < 1e-12, f"the mean loss of the batch is {wanted:.6f}, and {found:.6f} was returned")


@check("only one graph is in memory at a time", "when can the memory of a part's forward pass be given back?")
def memory(work: ModuleType) -> object:
    images, labels = make_batch(10)
    model, order = make_model(), []
    model.register_forward_hook(lambda *_: order.append("forward"))
    model.register_full_backward_hook(lambda *_: order.append("backward"))
    work.train_step(model, torch.optim.SGD(model.parameters(), lr=0.5), images, labels, 4)
    return order


@memory.judge
def _(order: Any) -> None:
    expect(order == ["forward", "backward"] * 3, f"the passes came in this order: {', '.join(order)}")


@check("each process returns the mean of its own batch", "who reduces losses, and where?", ranks=2)
def own_loss(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    images, labels = make_batch(20)
    share = slice(dist.get_rank(), None, 2)
    model = DistributedDataParallel(make_model())
    return work.train_step(model, torch.optim.SGD(model.parameters(), lr=0.5), images[share], labels[share], 4)


@own_loss.judge
def _(*ranks: Any) -> None:
    images, labels = make_batch(20)
    for rank, found in enumerate(ranks):
        wanted = F.cross_entropy(make_model()(images[rank::2]), labels[rank::2]).item()
        told = f"rank {rank}: the mean loss of its batch is {wanted:.6f}, and {found:.6f} was returned"
        expect(abs(found - wanted) < 1e-12, told)


@check("two processes reduce once a step, and train as one", "DDP's documentation of no_sync", ranks=2)
def one_reduction(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    images, labels = make_batch(20)
    network, reductions = make_model(), []
    model = DistributedDataParallel(network)

    def count(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reductions.append(bucket.index())
        gradients = bucket.buffer() / dist.get_world_size()
        return dist.all_reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    share = slice(dist.get_rank(), None, 2)
    for _ in range(2):
        work.train_step(model, optimizer, images[share], labels[share], 4)
    return len(reductions), weights(network)


@one_reduction.judge
def _(*ranks: Any) -> None:
    for reductions, weights in ranks:
        expect(reductions == 2, f"in 2 steps of 3 parts the gradients were reduced {reductions} times")
        found = away(weights, steps=2, count=20)
        expect(found < 1e-12, f"after 2 steps a weight is {found:.1e} from that of one process with all examples")
