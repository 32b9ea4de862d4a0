"""Checks of float_formats."""

import math
from types import ModuleType

import numpy as np
import torch

from exercises.checking import check, expect


@check("fixed point is rounded to the nearest", "0.7 is nearer to 3/4 than to 2/4")
def fixed(work: ModuleType) -> None:
    values = np.array([0.7, -0.7, 0.1, 1.3, -2.0, 0.0])
    found = work.to_fixed(values, 8, 2)
    expect(found.tolist() == [3, -3, 0, 5, -8, 0], f"{values.tolist()} in quarters came out as {found.tolist()}")
    expect(found.dtype == np.int64, f"the numbers came out as {found.dtype}, not int64")
    found = work.to_fixed(values, 16, 8).tolist()
    expect(found == [179, -179, 26, 333, -512, 0], f"{values.tolist()} in parts of 256 came out as {found}")


@check("what is too large becomes the largest", "which integers do 8 bits in two's complement hold?")
def saturated(work: ModuleType) -> None:
    found = work.to_fixed(np.array([31.75, 32.0, 1e6, -32.0, -33.0]), 8, 2).tolist()
    expect(found == [127, 127, 127, -128, -128], f"31.75, 32, 1e6, -32, -33 in quarters came out as {found}")
    found = work.to_fixed(np.array([60.0, 1e6, -1e6]), 16, 2).tolist()
    expect(found == [240, 32767, -32768], f"60, 1e6, -1e6 in quarters, in 16 bits, came out as {found}")


@check(
    "all 65,536 numbers of float16 are read right",
    "NumPy has a float16: compare by hand a bit pattern with what it makes of it",
)
def all_float16(work: ModuleType) -> None:
    codes = np.arange(2**16, dtype=np.uint16)
    for code, wanted in zip(codes.tolist(), codes.view(np.float16).astype(float).tolist(), strict=True):
        found = work.decode(code, 5, 10)
        same = found == wanted or (math.isnan(found) and math.isnan(wanted))
        expect(same, f"{code:016b} is {wanted}, and was read as {found}")


@check("all formats are read right", "what in your code depends on the number of bits?")
def formats(work: ModuleType) -> None:
    codes = np.array([0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0xFF80, 0xC049], np.uint16)
    for code, wanted in zip(codes.tolist(), (codes.astype(np.uint32) << 16).view(np.float32).tolist(), strict=True):
        found = work.decode(code, 8, 7)
        expect(found == wanted, f"{code:016b} as bfloat16 is {wanted}, and was read as {found}")


@check(
    "float32 becomes the nearest bfloat16", "cutting bits off always goes towards zero; which is even, in the middle?"
)
def rounded(work: ModuleType) -> None:
    generator = np.random.default_rng(0)
    random = generator.standard_normal(1000).astype(np.float32) * np.float32(10) ** generator.integers(-30, 30, 1000)
    middles = np.array([0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)
    values = np.concatenate([random.astype(np.float32), middles, np.array([0.0, -0.0, 1.0], np.float32)])
    wanted = torch.from_numpy(values).bfloat16().float().numpy()
    found = work.to_bfloat16(values.copy())
    expect(found.dtype == np.float32, f"the numbers came out as {found.dtype}, not float32")
    for value, one, other in zip(values.tolist(), found.tolist(), wanted.tolist(), strict=True):
        expect(one == other, f"{value!r} became {one!r}; the nearest is {other!r}")


@check("the float32 numbers stay as they are", "do `values` and `bits` share their memory?")
def untouched(work: ModuleType) -> None:
    values = np.array([0.1, -0.7], np.float32)
    work.to_bfloat16(values)
    expect(values.tolist() == np.array([0.1, -0.7], np.float32).tolist(), f"0.1 and -0.7 have become {values.tolist()}")


def weight_and_optimizer() -> tuple[torch.Tensor, torch.optim.Optimizer]:
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    return weight, torch.optim.SGD([weight], lr=0.5, momentum=0.9)


def plain_step(weight: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (weight**2).sum().backward()
    optimizer.step()


@check(
    "a scaled step is the step without scaling", "by how much are the gradients too large when the optimizer sees them?"
)
def same_step(work: ModuleType) -> None:
    scaled, optimizer = weight_and_optimizer()
    plain, plain_optimizer = weight_and_optimizer()
    for scale in (1024.0, 256.0, 4096.0):
        work.scaled_step((scaled**2).sum(), optimizer, scale)
        plain_step(plain, plain_optimizer)
    expect(torch.equal(scaled, plain), f"after 3 steps the weights are {scaled.tolist()} instead of {plain.tolist()}")


@check("small gradients survive float16", "when is it too late to multiply?")
def survives(work: ModuleType) -> None:
    weight = torch.tensor([1.0], requires_grad=True)
    loss = (weight.half() * torch.tensor(1e-4, dtype=torch.float16)).float() * 1e-5
    work.scaled_step(loss.sum(), torch.optim.SGD([weight], lr=1e8), 2.0**16)
    moved = 1 - weight.item()
    expect(
        abs(moved - 0.1) < 0.01,
        f"a gradient of 1e-9, through float16, times a rate of 1e8 moved a weight by {moved:.3g}",
    )


@check("a step that overflows is left out, and the scale halved", "what would one infinite gradient do to the weights?")
def overflow(work: ModuleType) -> None:
    weight, optimizer = weight_and_optimizer()
    plain, plain_optimizer = weight_and_optimizer()
    work.scaled_step((weight**2).sum(), optimizer, 1024.0)  # now the optimizer has a momentum
    plain_step(plain, plain_optimizer)
    before = weight.tolist()
    scale = work.scaled_step((weight * torch.tensor([1.0, torch.inf])).sum(), optimizer, 1024.0)
    expect(weight.tolist() == before, f"after an infinite gradient the weights are {weight.tolist()}")
    expect(scale == 512, f"after an infinite gradient the scale goes from 1024 to {scale:g}")
    scale = work.scaled_step((weight**2).sum(), optimizer, 512.0)
    expect(scale == 512, f"after a good step the scale goes from 512 to {scale:g}")
    plain_step(plain, plain_optimizer)
    told = f"the step after it takes the weights to {weight.tolist()} instead of {plain.tolist()}"
    expect(torch.equal(weight, plain), told)


@check("wherever it overflows", "which numbers are bad, and in how many places can one be?")
def overflow_anywhere(work: ModuleType) -> None:
    for place in (0, 1):
        for bad in (torch.inf, torch.nan):
            weights = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
            # Nothing is wrong with the loss, nor with the other weights' gradients.
            weights[place].register_hook(lambda gradient, bad=bad: gradient * torch.tensor([1.0, bad]))
            loss = (weights[0] ** 2 + weights[1] ** 2).sum()
            scale = work.scaled_step(loss, torch.optim.SGD([{"params": [one]} for one in weights], lr=0.5), 4096.0)
            where = f"the last of two gradients of parameter {place + 1} of 2 is {bad}"
            moved = any(one.tolist() != [1.0, 1.0] for one in weights)
            expect(not moved, f"{where}, and the weights are {[one.tolist() for one in weights]}")
            expect(scale == 2048, f"{where}, and the scale goes from 4096 to {scale:g}")
