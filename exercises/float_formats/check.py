"""Checks of float_formats."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import torch

from exercises.checking import check, expect

VALUES = [0.7, -0.7, 0.1, 1.3, -2.0, 0.0]


@check("fixed point is rounded to the nearest", "0.7 is nearer to 3/4 than to 2/4")
def fixed(work: ModuleType) -> object:
    quarters = work.to_fixed(np.array(VALUES), 8, 2)
    return quarters, str(quarters.dtype), work.to_fixed(np.array(VALUES), 16, 8)


@fixed.judge
def _(seen: Any) -> None:
    quarters, dtype, parts = seen
    expect(quarters == [3, -3, 0, 5, -8, 0], f"{VALUES} in quarters came out as {quarters}")
    expect(dtype == "int64", f"the numbers came out as {dtype}, not int64")
    expect(parts == [179, -179, 26, 333, -512, 0], f"{VALUES} in parts of 256 came out as {parts}")


@check("what is too large becomes the largest", "which integers do 8 bits in two's complement hold?")
def saturated(work: ModuleType) -> object:
    return (
        work.to_fixed(np.array([31.75, 32.0, 1e6, -32.0, -33.0]), 8, 2),
        work.to_fixed(np.array([60.0, 1e6, -1e6]), 16, 2),
    )


@saturated.judge
def _(seen: Any) -> None:
    of_8_bits, of_16_bits = seen
    expect(of_8_bits == [127, 127, 127, -128, -128], f"31.75, 32, 1e6, -32, -33 in quarters came out as {of_8_bits}")
    expect(of_16_bits == [240, 32767, -32768], f"60, 1e6, -1e6 in quarters, in 16 bits, came out as {of_16_bits}")


@check(
    "all 65,536 numbers of float16 are read right",
    "NumPy has a float16: compare by hand a bit pattern with what it makes of it",
)
def all_float16(work: ModuleType) -> object:
    return [float(work.decode(code, 5, 10)) for code in range(2**16)]


@all_float16.judge
def _(seen: Any) -> None:
    wanted_values = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(float).tolist()
    for code, (wanted, found) in enumerate(zip(wanted_values, seen, strict=True)):
        same = found == wanted or (math.isnan(found) and math.isnan(wanted))
        expect(same, f"{code:016b} is {wanted}, and was read as {found}")


CODES = [0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0xFF80, 0xC049]  # of bfloat16


@check("all formats are read right", "what in your code depends on the number of bits?")
def formats(work: ModuleType) -> object:
    return [float(work.decode(code, 8, 7)) for code in CODES]


@formats.judge
def _(seen: Any) -> None:
    wanted_values = (np.array(CODES, np.uint32) << 16).view(np.float32).tolist()
    for code, wanted, found in zip(CODES, wanted_values, seen, strict=True):
        expect(found == wanted, f"{code:016b} as bfloat16 is {wanted}, and was read as {found}")


def make_float32() -> np.ndarray:
    """Random numbers of all sizes, and numbers in and near the middle between two of bfloat16."""
    generator = np.random.default_rng(0)
    random = generator.standard_normal(1000).astype(np.float32) * np.float32(10) ** generator.integers(-30, 30, 1000)
    middles = np.array([0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF], np.uint32).view(np.float32)
    return np.concatenate([random.astype(np.float32), middles, np.array([0.0, -0.0, 1.0], np.float32)])


@check(
    "float32 becomes the nearest bfloat16", "cutting bits off always goes towards zero; which is even, in the middle?"
)
def rounded(work: ModuleType) -> object:
    found = work.to_bfloat16(make_float32())
    return str(found.dtype), found


@rounded.judge
def _(seen: Any) -> None:
    dtype, found = seen
    values = make_float32()
    wanted = torch.from_numpy(values).bfloat16().float().tolist()
    expect(dtype == "float32", f"the numbers came out as {dtype}, not float32")
    for value, one, other in zip(values.tolist(), found, wanted, strict=True):
        expect(one == other, f"{value!r} became {one!r}; the nearest is {other!r}")


@check("the float32 numbers stay as they are", "do `values` and `bits` share their memory?")
def untouched(work: ModuleType) -> object:
    values = np.array([0.1, -0.7], np.float32)
    work.to_bfloat16(values)
    return values


@untouched.judge
def _(values: Any) -> None:
    expect(values == np.array([0.1, -0.7], np.float32).tolist(), f"0.1 and -0.7 have become {values}")


def weight_and_optimizer() -> tuple[torch.Tensor, torch.optim.Optimizer]:
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    return weight, torch.optim.SGD([weight], lr=0.5, momentum=0.9)


def plainly_stepped(count: int) -> list[float]:
    """The weights after `count` steps without scaling."""
    weight, optimizer = weight_and_optimizer()
    for _ in range(count):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    return weight.tolist()


@check(
    "a scaled step is the step without scaling", "by how much are the gradients too large when the optimizer sees them?"
)
def same_step(work: ModuleType) -> object:
    weight, optimizer = weight_and_optimizer()
    for scale in (1024.0, 256.0, 4096.0):
        work.scaled_step((weight**2).sum(), optimizer, scale)
    return weight


@same_step.judge
def _(weight: Any) -> None:
    wanted = plainly_stepped(3)
    expect(weight == wanted, f"the weights after 3 steps: yours {weight}, wanted {wanted}")


@check("small gradients survive float16", "when is it too late to multiply?")
def survives(work: ModuleType) -> object:
    weight = torch.tensor([1.0], requires_grad=True)
    loss = (weight.half() * torch.tensor(1e-4, dtype=torch.float16)).float() * 1e-5
    work.scaled_step(loss.sum(), torch.optim.SGD([weight], lr=1e8), 2.0**16)
    return 1 - weight.item()


@survives.judge
def _(moved: Any) -> None:
    expect(
        abs(moved - 0.1) < 0.01,
        f"a gradient of 1e-9, through float16, times a rate of 1e8 moved a weight by {moved:.3g}",
    )


@check("a step that overflows is left out, and the scale halved", "what would one infinite gradient do to the weights?")
def overflow(work: ModuleType) -> object:
    weight, optimizer = weight_and_optimizer()
    work.scaled_step((weight**2).sum(), optimizer, 1024.0)  # now the optimizer has a momentum
    weights = [weight.tolist()]
    scales = [work.scaled_step((weight * torch.tensor([1.0, torch.inf])).sum(), optimizer, 1024.0)]
    weights.append(weight.tolist())
    scales.append(work.scaled_step((weight**2).sum(), optimizer, 512.0))
    return [*weights, weight], scales


@overflow.judge
def _(seen: Any) -> None:
    (before, after, last), (halved, kept) = seen
    expect(after == before, f"after an infinite gradient the weights are {after}")
    expect(halved == 512, f"after an infinite gradient the scale goes from 1024 to {halved:g}")
    expect(kept == 512, f"after a good step the scale goes from 512 to {kept:g}")
    wanted = plainly_stepped(2)
    expect(last == wanted, f"the weights after the step after it: yours {last}, wanted {wanted}")


@check("wherever it overflows", "which numbers are bad, and in how many places can one be?")
def overflow_anywhere(work: ModuleType) -> object:
    seen = []
    for place in (0, 1):
        for bad in (torch.inf, torch.nan):
            weights = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
            # Nothing is wrong with the loss, nor with the other weights' gradients.
            weights[place].register_hook(lambda gradient, bad=bad: gradient * torch.tensor([1.0, bad]))
            loss = (weights[0] ** 2 + weights[1] ** 2).sum()
            scale = work.scaled_step(
                loss, torch.optim.SGD([{"params": [weight]} for weight in weights], lr=0.5), 4096.0
            )
            seen.append((place, bad, weights, scale))
    return seen


@overflow_anywhere.judge
def _(seen: Any) -> None:
    expect(len(seen) == 4, "not all places were tried")
    for place, bad, weights, scale in seen:
        where = f"the last of two gradients of parameter {place + 1} of 2 is {bad}"
        expect(weights == [[1.0, 1.0]] * 2, f"{where}, and the weights are {weights}")
        expect(scale == 2048, f"{where}, and the scale goes from 4096 to {scale:g}")
