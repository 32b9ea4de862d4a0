"""Checks of model_parallelism."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from exercises.checking import check, expect, largest_difference

WIDTH = 6
ROUNDING = 1e-6  # limit for rounding errors of float32 numbers near 1; every mistake is far larger


def make_stages() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()), nn.Linear(WIDTH, 3)


def make_batch(count: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 4, generator=generator)
    return images, torch.randint(3, (count,), generator=generator)


def train_stage(work: ModuleType, part_size: int, steps: int, first: int = 0) -> object:
    """Trains this rank's stage: its weights, and the losses that stage 1 has returned. `first`: the rank of stage 0."""
    dist.init_process_group("gloo")
    images, labels = make_batch()
    number, other, losses = abs(dist.get_rank() - first), 1 - dist.get_rank(), []
    stage = make_stages()[number]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        if number == 0:
            work.first_step(stage, optimizer, list(images.split(part_size)), other)
        else:
            losses.append(work.second_step(stage, optimizer, list(labels.split(part_size)), WIDTH, other))
    return flat(stage), losses


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def compare(ranks: Any, steps: int, first: int = 0) -> None:
    """Expects that the stages were trained as in one process with the whole network."""
    images, labels = make_batch()
    whole = nn.Sequential(*make_stages())
    optimizer, wanted = torch.optim.SGD(whole.parameters(), lr=0.5, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(whole(images), labels)
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    _, losses = ranks[1 - first]
    for mean, found in zip(wanted, losses, strict=True):
        expect(abs(found - mean) < ROUNDING, f"the mean loss: yours {found:.6f}, wanted {mean:.6f}")
    for number in range(2):
        weights, _ = ranks[abs(number - first)]
        difference = largest_difference([weights], [flat(whole[number])])
        where = f"stage {number}, after {steps} step(s)"
        expect(difference < ROUNDING, f"{where}: a weight is {difference:.1e} from that of one process")


@check(
    "the batch in one part: a step as in one process", "what does backward() of stage 0 begin with?", ranks=2, seconds=6
)
def one_part(work: ModuleType) -> object:
    return train_stage(work, part_size=10, steps=1)


@one_part.judge
def _(*ranks: Any) -> None:
    compare(ranks, steps=1)


@check("in equal parts, over three steps", "what do the gradients hold when a step begins?", ranks=2, seconds=6)
def equal_parts(work: ModuleType) -> object:
    return train_stage(work, part_size=5, steps=3)


@equal_parts.judge
def _(*ranks: Any) -> None:
    compare(ranks, steps=3)


@check("in unequal parts", "does each example weigh the same?", ranks=2, seconds=6)
def unequal_parts(work: ModuleType) -> object:
    return train_stage(work, part_size=4, steps=2)


@unequal_parts.judge
def _(*ranks: Any) -> None:
    compare(ranks, steps=2)


@check("rank 1 can have the first stage", "which ranks do your lines name?", ranks=2, seconds=6)
def ranks_swapped(work: ModuleType) -> object:
    return train_stage(work, part_size=5, steps=1, first=1)


@ranks_swapped.judge
def _(*ranks: Any) -> None:
    compare(ranks, steps=1, first=1)


@check(
    "all parts go forward before the first comes back",
    "who waits, if each part is brought to its end?",
    ranks=2,
    seconds=6,
)
def schedule(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    rank, (images, labels) = dist.get_rank(), make_batch()
    stage, order = make_stages()[rank], []
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    stage.register_forward_hook(lambda *_: order.append("forward"))
    next(stage.parameters()).register_hook(lambda gradient: order.append("backward"))
    if rank == 0:
        work.first_step(stage, optimizer, list(images.split(4)), 1)
    else:
        work.second_step(stage, optimizer, list(labels.split(4)), WIDTH, 0)
    return order


@schedule.judge
def _(*ranks: Any) -> None:
    for rank, order in enumerate(ranks):
        expect(order == ["forward"] * 3 + ["backward"] * 3, f"stage {rank} had this order: {', '.join(order)}")


BUBBLES = ((1, 4, 0.0), (2, 1, 0.5), (2, 3, 0.25), (4, 4, 3 / 7), (4, 29, 3 / 32))


@check("the bubble of a pipeline", "2 stages, 1 part: how long does each stage wait?")
def idle(work: ModuleType) -> object:
    return [work.bubble(stages, parts) for stages, parts, _ in BUBBLES]


@idle.judge
def _(seen: Any) -> None:
    for (stages, parts, wanted), found in zip(BUBBLES, seen, strict=True):
        expect(abs(found - wanted) < 1e-12, f"{stages} stages, {parts} part(s): yours {found:.3f}, wanted {wanted:.3f}")
