"""Checks of model_parallelism."""

from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from exercises.checking import check, expect, largest_difference

WIDTH, STEPS = 6, 3
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}  # limits for rounding errors of numbers near 1


def make_stages() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()), nn.Linear(WIDTH, 3)


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 4, generator=generator), torch.randint(3, (10,), generator=generator)


def train_stage(work: ModuleType, part_size: int, first: int = 0, dtype: torch.dtype = torch.float32) -> object:
    """Trains this rank's stage: after each step its weights, and the loss if it is stage 1. `first`: stage 0's rank."""
    dist.init_process_group("gloo")
    images, labels = make_batch()
    number, other, seen = abs(dist.get_rank() - first), 1 - dist.get_rank(), []
    stage = make_stages()[number].to(dtype)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5, momentum=0.9)
    for _ in range(STEPS):
        if number == 0:
            loss = work.first_step(stage, optimizer, list(images.to(dtype).split(part_size)), other)
        else:
            loss = work.second_step(stage, optimizer, list(labels.split(part_size)), WIDTH, other)
        seen.append((flat(stage), loss))
    return seen


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


HINTS = (  # if the loss is wrong, the weights after the first step, or those after a later one
    "what goes into F.cross_entropy for each part, and by what is the sum divided?",
    "what does each part's backward() begin with and reach, and when are gradients cleared and used?",
    "what do the gradients hold when a step begins?",
)


def expect_same_training(*stages: Any, dtype: torch.dtype = torch.float32) -> None:
    """Expects that the two stages were trained as in one process with the whole network."""
    images, labels = make_batch()
    whole = nn.Sequential(*make_stages()).to(dtype)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.5, momentum=0.9)
    of_loss, of_weights, of_later_weights = HINTS if dtype == torch.float32 else ("", "", "")
    for step in range(STEPS):
        optimizer.zero_grad()
        wanted = F.cross_entropy(whole(images.to(dtype)), labels)
        wanted.backward()
        optimizer.step()
        found = stages[1][step][1]
        seen = f"step {step + 1}, the mean loss: yours {found:.6f}, wanted {wanted:.6f}"
        expect(abs(found - wanted.item()) < ROUNDING[dtype], seen, of_loss)
        for number in (1, 0):
            difference = largest_difference([stages[number][step][0]], [flat(whole[number])])
            seen = f"step {step + 1}, stage {number}: a weight is {difference:.1e} from that of one process"
            expect(difference < ROUNDING[dtype], seen, of_later_weights if step else of_weights)


@check(
    "a batch in one part trains as one process does",
    "what does each stage wait for, of which shape?",
    ranks=2,
    seconds=6,
)
def one_part(work: ModuleType) -> object:
    return train_stage(work, part_size=10)


@check(
    "a batch in equal parts trains as one process does",
    "what does each stage send and keep for each part?",
    ranks=2,
    seconds=6,
)
def equal_parts(work: ModuleType) -> object:
    return train_stage(work, part_size=5)


@check(
    "a batch in unequal parts trains as one process does",
    "4, 4 and 2 images: which of your lines depend on that?",
    ranks=2,
    seconds=6,
)
def unequal_parts(work: ModuleType) -> object:
    return train_stage(work, part_size=4)


@check("stages in float64 train as one process does", "which dtype has what is sent and received?", ranks=2, seconds=6)
def dtypes(work: ModuleType) -> object:
    return train_stage(work, part_size=5, dtype=torch.float64)


@check("rank 1 can have the first stage", "which ranks do your lines name?", ranks=2, seconds=6)
def ranks_swapped(work: ModuleType) -> object:
    return train_stage(work, part_size=5, first=1)


one_part.judge(expect_same_training)
equal_parts.judge(expect_same_training)
unequal_parts.judge(expect_same_training)
dtypes.judge(partial(expect_same_training, dtype=torch.float64))
ranks_swapped.judge(lambda *ranks: expect_same_training(*ranks[::-1]))


@check(
    "all parts go forward before the first comes back",
    "who waits, if each part is brought to its end?",
    ranks=2,
    seconds=6,
)
def schedule(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    rank, (images, labels) = dist.get_rank(), make_batch()
    stage, order, send = make_stages()[rank], [], dist.ProcessGroup.send
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    stage.register_forward_hook(lambda *_: order.append("forward" if stage.training else "forward in evaluation"))
    next(stage.parameters()).register_hook(lambda gradient: order.append("backward"))
    if rank == 0:
        with mock.patch.object(dist.ProcessGroup, "send", lambda *what: (order.append("send"), send(*what))[1]):
            work.first_step(stage, optimizer, list(images.split(4)), 1)
    else:
        work.second_step(stage, optimizer, list(labels.split(4)), WIDTH, 0)
    return order


@schedule.judge
def _(*ranks: Any) -> None:
    wanted = ["forward"] * 3 + ["backward"] * 3
    for rank, order in enumerate(ranks):
        passes = [event for event in order if event != "send"]
        hint = "" if sorted(passes) == sorted(wanted) else "how often does a part go through the stage, in which mode?"
        expect(passes == wanted, f"stage {rank}, 3 parts: yours {', '.join(passes)}; wanted {', '.join(wanted)}", hint)
        late = "send" in order and order[1] != "send"
        expect(not late, f"stage {rank}, 3 parts: {', '.join(order)}", "what does the other stage do meanwhile?")


BUBBLES = ((2, 1, 0.5), (2, 3, 0.25), (4, 4, 3 / 7), (4, 29, 3 / 32), (1, 4, 0.0))


@check("the bubble of a pipeline", "draw it: how many boxes are empty, and how many are there in all?")
def idle(work: ModuleType) -> object:
    return [work.bubble(stages, parts) for stages, parts, _ in BUBBLES]


@idle.judge
def _(seen: Any) -> None:
    for (stages, parts, wanted), found in zip(BUBBLES, seen, strict=True):
        seen = f"{stages} stage(s), {parts} part(s): yours {found:.3f}, wanted {wanted:.3f}"
        expect(abs(found - wanted) < 1e-12, seen)
