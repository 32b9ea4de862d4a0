"""Checks of gradient_accumulation."""

from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from exercises.checking import check, expect, largest_difference


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def make_batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return images, torch.randint(3, (count,), generator=generator)


def mean_loss(model: nn.Module, count: int = 10, share: slice = slice(None)) -> torch.Tensor:
    """Of a share of a batch of `count` examples."""
    images, labels = make_batch(count)
    return F.cross_entropy(model(images[share]), labels[share])


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def expect_whole_steps(found: Any, what: str, steps: int, count: int, hint: str) -> None:
    """For judges: the weights are those after `steps` steps, each on a whole batch of `count` at once."""
    model = make_model()
    optimizer = make_optimizer(model)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_loss(model, count).backward()
        optimizer.step()
    away = largest_difference([found], [weights(model)])
    expect(away < 1e-12, f"{what}: a weight is {away:.1e} from that of whole steps", hint)


COUNTS = (10, 9, 8, 3)  # of examples that are cut into parts of 4


@check("a batch is cut into parts, none of which is too large", "write down by hand where each part begins and ends")
def parts(work: ModuleType) -> object:
    return [list(work.split(*make_batch(count), 4)) for count in COUNTS]


@parts.judge
def _(seen: Any) -> None:
    for count, cut in zip(COUNTS, seen, strict=True):
        sizes, wanted = [len(images) for images, _ in cut], [len(part) for part in torch.arange(count).split(4)]
        hint = "where does the part begin that ends with the last example?" if sum(sizes) < count else ""
        expect(sizes == wanted, f"{count} examples in parts of 4: yours {sizes}, wanted {wanted}", hint)
        for place, (name, whole) in enumerate(zip(("images", "labels"), make_batch(count), strict=True)):
            same = sum((part[place] for part in cut), []) == whole.tolist()
            expect(same, f"{count} examples in parts of 4: their {name} are not the batch's, in order")


class Derived(DistributedDataParallel):
    """For `context`: of another type, and yet a DistributedDataParallel."""


def count_reductions(model: DistributedDataParallel) -> list[int]:
    """A list that gets an element at each reduction of a bucket of the model's gradients."""
    reductions, reduce = [], dist.all_reduce

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reductions.append(bucket.index())
        gradients = bucket.buffer() / dist.get_world_size()
        return reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    return reductions


@check("a context without reduction, for DDP alone", "which class of model has no_sync? see DDP's documentation")
def context(work: ModuleType) -> object:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    seen = []
    for kind in (DistributedDataParallel, Derived):
        model = kind(make_model())
        reductions = count_reductions(model)
        with work.without_reduction(model):
            mean_loss(model).backward()
        inside = len(reductions)
        mean_loss(model).backward()
        seen.append((inside, len(reductions) - inside))
    plain = make_model()
    with work.without_reduction(plain):
        mean_loss(plain).backward()
    return seen


@context.judge
def _(seen: Any) -> None:
    for kind, (inside, behind) in zip(("DistributedDataParallel", "a class derived from it"), seen, strict=True):
        hint = "when does the caller enter the context, and for which models is there one?"
        expect(inside == 0, f"{kind}: reductions in the context: yours {inside}, wanted 0", hint)
        hint = "who switches the reduction on again at the end of the context?"
        expect(behind == 1, f"{kind}: reductions in the pass after the context: yours {behind}, wanted 1", hint)


@check("only one part is in memory at a time", "when can the memory of a part's forward pass be given back?")
def memory(work: ModuleType) -> object:
    model, order = make_model(), []
    model.register_forward_hook(lambda _, inputs, __: order.append(f"forward {len(inputs[0])}"))
    model.register_full_backward_hook(lambda *_: order.append("backward"))
    optimizer = make_optimizer(model)
    optimizer.register_step_post_hook(lambda *_: order.append("update"))
    work.train_step(model, optimizer, *make_batch(10), 4)
    return order


@memory.judge
def _(order: Any) -> None:
    wanted = ["forward 4", "backward", "forward 4", "backward", "forward 2", "backward", "update"]
    hint = ""
    if not {*order} <= {*wanted}:
        hint = "how many examples may be in a forward pass?"
    elif order.count("update") != 1 or order[-1] != "update":
        hint = "how often are the weights updated, and which passes come before that?"
    expect(order == wanted, f"10 examples in parts of 4: yours {', '.join(order)}, wanted {', '.join(wanted)}", hint)


# For `same_steps`: the number of steps, the size of the parts, and a hint.
STEPS = (
    (1, 5, "which parts are in the gradients at the update, and what was each divided by?"),
    (1, 4, "does each example weigh the same, and are there as many as you divide by?"),
    (3, 5, "what do the gradients hold when a step begins?"),
)


@check("steps in parts are steps on the whole", "which calls does a step need, in which order?")
def same_steps(work: ModuleType) -> object:
    seen = []
    for steps, part_size, _ in STEPS:
        model = make_model()
        optimizer = make_optimizer(model)
        if steps > 1:
            mean_loss(model).backward()  # old gradients
        for _ in range(steps):
            work.train_step(model, optimizer, *make_batch(10), part_size)
        seen.append(weights(model))
    return seen


@same_steps.judge
def _(seen: Any) -> None:
    for (steps, part_size, hint), found in zip(STEPS, seen, strict=True):
        what = f"10 examples in parts of {part_size}, after {steps} step{'s' * (steps > 1)}"
        expect_whole_steps(found, what, steps, 10, hint)


@check("the mean loss is returned", "of all examples, each of which counts the same")
def loss(work: ModuleType) -> object:
    model = make_model()
    found = work.train_step(model, make_optimizer(model), *make_batch(10), 4)
    return float(found), isinstance(found, float), type(found).__name__


@loss.judge
def _(seen: Any) -> None:
    found, is_float, kind = seen
    wanted = mean_loss(make_model()).item()
    expect(abs(found - wanted) < 1e-12, f"the mean loss of the batch: yours {found:.6f}, wanted {wanted:.6f}")
    expect(is_float, f"the type of the loss: yours {kind}, wanted float", "how does a tensor become a number?")


SHARES = slice(0, None, 2), slice(1, None, 2)  # of each of two processes
PART_SIZES = (4, 5)  # of two steps: the last part of 10 is smaller, or as large as the others


@check("two processes reduce once a step, and train as one", "DDP's documentation of no_sync", ranks=2)
def one_reduction(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    network = make_model()
    model = DistributedDataParallel(network)
    reductions, seen = count_reductions(model), []
    optimizer, share = make_optimizer(model), SHARES[dist.get_rank()]
    with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as by_hand:
        for part_size in PART_SIZES:
            before = len(reductions)
            loss = work.train_step(model, optimizer, *(whole[share] for whole in make_batch(20)), part_size)
            seen.append((loss, len(reductions) - before))
    return seen, by_hand.call_count, weights(network)


@one_reduction.judge
def _(*ranks: Any) -> None:
    for rank, (seen, by_hand, weights) in enumerate(ranks):
        loss, wanted = seen[0][0], mean_loss(make_model(), 20, SHARES[rank]).item()
        returned = f"rank {rank}: the mean loss of its batch: yours {loss:.6f}, wanted {wanted:.6f}"
        expect(abs(loss - wanted) < 1e-12, returned, "the losses of which processes, divided by what?")
        for part_size, (_, count) in zip(PART_SIZES, seen, strict=True):
            hint = "which passes must be in the context?" if count else "is the last part outside of the context?"
            expect(count == 1, f"10 examples in parts of {part_size}: reductions: yours {count}, wanted 1", hint)
        called = f"calls of all_reduce besides DDP's reductions: yours {by_hand}, wanted 0"
        expect(not by_hand, called, "what has DDP's reduction done already?")
        hint = "which parts are in the gradients when they are reduced?"
        expect_whole_steps(weights, "2 processes, after 2 steps", 2, 20, hint)
