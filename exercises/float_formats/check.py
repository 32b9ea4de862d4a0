"""Checks of float_formats."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import torch

from exercises.checking import check, expect

TYPE_HINT = "which type does the docstring name?"
CHANGED_HINT = "which line writes into `values`, or into memory that it shares?"

# For `fixed`: numbers, bits, how many of them are behind the point, the integers that are wanted, and a hint.
FIXED = (
    ([0.7, 0.1, 1.3, 0.0], 8, 2, [3, 0, 5, 0], ""),
    ([-0.7, -1.3, -2.0], 8, 2, [-3, -5, -8], "is a negative number rounded to the nearest, too?"),
    ([0.7, -0.7, 0.1], 16, 8, [179, -179, 26], "which numbers in your code stand for `bits` and `fraction_bits`?"),
    ([100000.001], 40, 16, [6553600066], "how many bits can your intermediate results hold?"),
    ([31.75, -32.0, 95.75, -96.0], 8, 2, [127, -128, 127, -128], "which integers do 8 bits in two's complement hold?"),
    ([32.0, 1e6, -33.0, 1e30], 8, 2, [127, 127, -128, 127], "is a number clipped before it is too large for its type?"),
    ([60.0, 1e6, -1e6], 16, 2, [240, 32767, -32768], "which integers do 16 bits in two's complement hold?"),
)


@check("fixed point is rounded to the nearest, and clipped", "0.7 is nearer to 3/4 than to 2/4")
def fixed(work: ModuleType) -> object:
    inputs = [np.array(values) for values, *_ in FIXED]
    found = [work.to_fixed(values, *bits) for values, (_, *bits, _, _) in zip(inputs, FIXED, strict=True)]
    return found, sorted({str(integers.dtype) for integers in found}), inputs


@fixed.judge
def _(seen: Any) -> None:
    found, types, inputs = seen
    for (values, bits, behind, wanted, hint), integers, after in zip(FIXED, found, inputs, strict=True):
        what = f"{values} in {bits} bits, {behind} behind the point"
        expect(integers == wanted, f"{what}: yours {integers}, wanted {wanted}", hint)
        expect(after == values, f"the array `values` afterwards: yours {after}, wanted {values}", CHANGED_HINT)
    expect(types == ["int64"], f"the type: yours {', '.join(types)}, wanted int64", TYPE_HINT)


BFLOAT16 = (0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0xFF80, 0xC049)  # some of its codes
DECODING_HINTS = {  # by the exponent of float16; None: of bfloat16
    0: "its exponent is all zeros: is there a leading 1, and which exponent is used?",
    31: "its exponent is all ones: what does the fraction say then?",
    None: "what in your code depends on the number of bits?",
}


@check(
    "all 65,536 numbers of float16 are read right, and those of other formats",
    "NumPy has a float16: compare by hand a bit pattern with what it makes of it",
)
def decoded(work: ModuleType) -> object:
    found = [work.decode(code, 5, 10) for code in range(2**16)] + [work.decode(code, 8, 7) for code in BFLOAT16]
    return [float(value) for value in found]


@decoded.judge
def _(seen: Any) -> None:
    float16 = np.arange(2**16, dtype=np.uint16).view(np.float16).tolist()
    bfloat16 = (np.array(BFLOAT16, np.uint32) << 16).view(np.float32).tolist()
    codes = [*enumerate(float16), *zip(BFLOAT16, bfloat16, strict=True)]
    for number, ((code, wanted), found) in enumerate(zip(codes, seen, strict=True)):
        name, exponent = ("float16", code >> 10 & 31) if number < 2**16 else ("bfloat16", None)
        hint = "what does the highest bit say?" if found == -wanted else DECODING_HINTS.get(exponent, "")
        same = found == wanted or (math.isnan(found) and math.isnan(wanted))
        expect(same, f"{code:016b} as {name}: yours {found}, wanted {wanted}", hint)


def make_float32() -> np.ndarray:
    """Random numbers of all sizes, and numbers in and near the middle between two of bfloat16."""
    generator = np.random.default_rng(0)
    random = generator.standard_normal(1000) * 10.0 ** generator.integers(-44, 38, 1000)
    middles = (0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF, 0x00008000, 0x00018000, 0x7F7FFFFF)
    bits = np.array([*middles, 0, 0x80000000, 0x3F800000], np.uint32)
    return np.concatenate([random.astype(np.float32), bits.view(np.float32)])


@check("float32 becomes the nearest bfloat16", "cutting bits off always goes towards zero: what must come before it?")
def rounded(work: ModuleType) -> object:
    values = make_float32()
    found = work.to_bfloat16(values)
    return str(found.dtype), found, values


@rounded.judge
def _(seen: Any) -> None:
    dtype, found, inputs = seen
    values = make_float32()
    wanted = torch.from_numpy(values).bfloat16().float().tolist()
    expect(dtype == "float32", f"the type: yours {dtype}, wanted float32", TYPE_HINT)
    for value, bits, one, other in zip(values.tolist(), values.view(np.uint32), found, wanted, strict=True):
        hint = ""
        if bits % 2**16 == 2**15:
            hint = "this number is in the middle between two: the last bit of which one is 0?"
        elif np.float32(one).view(np.uint32) % 2**16:
            hint = "which bits of a bfloat16 are 0 when it is written as float32?"
        expect(one == other, f"{value!r} as bfloat16: yours {one!r}, wanted {other!r}", hint)
    expect(inputs == values.tolist(), "the array `values` has changed", CHANGED_HINT)


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


@check("gradients may be small in float16, and large in float32", "when is it too late to multiply?")
def survives(work: ModuleType) -> object:
    small, large = (torch.ones(1, requires_grad=True) for _ in range(2))
    loss = (small.half() * torch.tensor(1e-4, dtype=torch.float16)).float() * 1e-5
    work.scaled_step(loss.sum(), torch.optim.SGD([small], lr=1e8), 2.0**16)
    scale = work.scaled_step((large * 1e30).sum(), torch.optim.SGD([large], lr=1e-30), 1024.0)
    return 1 - small.item(), 1 - large.item(), scale


@survives.judge
def _(seen: Any) -> None:
    small, large, scale = seen
    what = "a gradient of 1e-9, through float16, and a rate of 1e8"
    expect(abs(small - 0.1) < 0.01, f"{what} move a weight: yours by {small:.3g}, wanted 0.1")
    what = "a gradient of 1e30, in float32, and a rate of 1e-30 move a weight"
    hint = "which numbers are infinite, and which are only large?"
    expect(abs(large - 1) < 0.01, f"{what}: yours by {large:.3g}, wanted 1", hint)
    expect(scale == 1024, f"{what}, and the scale after 1024: yours {scale:g}, wanted 1024", hint)


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
    hint = "what does momentum do in a step with gradients of zero?" if np.isfinite(after).all() else ""
    expect(after == before, f"the weights after an infinite gradient: yours {after}, wanted {before}", hint)
    hint = "which scale does the docstring ask for, and after which step?"
    expect(halved == 512, f"the scale after an infinite gradient and 1024: yours {halved:g}, wanted 512", hint)
    expect(kept == 512, f"the scale after a good step and 512: yours {kept:g}, wanted 512", hint)
    wanted = plainly_stepped(2)
    expect(last == wanted, f"the weights after the next good step: yours {last}, wanted {wanted}")


# For `overflow_anywhere`: in which of two parameters, which number, and the scale.
BAD = ((0, torch.inf, 4096.0), (0, torch.nan, 4096.0), (1, torch.inf, 1.0), (1, torch.nan, 0.5))


@check("an overflow in any parameter is noticed", "which numbers are bad, and in how many places can one be?")
def overflow_anywhere(work: ModuleType) -> object:
    seen = []
    for place, bad, scale in BAD:
        weights = [torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        # Nothing is wrong with the loss, nor with the other weights' gradients.
        weights[place].register_hook(lambda gradient, bad=bad: gradient * torch.tensor([1.0, bad]))
        optimizer = torch.optim.SGD([{"params": [weight]} for weight in weights], lr=0.5)
        seen.append((weights, work.scaled_step((weights[0] ** 2 + weights[1] ** 2).sum(), optimizer, scale)))
    return seen


@overflow_anywhere.judge
def _(seen: Any) -> None:
    for (place, bad, before), (weights, scale) in zip(BAD, seen, strict=True):
        where = f"the last of two gradients of parameter {place + 1} of 2 is {bad}, the scale {before:g}"
        hint = "which weights are not updated if one gradient is bad?" if np.isfinite(weights).all() else ""
        wanted = [[1.0, 1.0]] * 2
        expect(weights == wanted, f"{where}: the weights: yours {weights}, wanted {wanted}", hint)
        hint = "what is half of 1, and where does the docstring end the halving?"
        expect(scale == before / 2, f"{where}: the next scale: yours {scale:g}, wanted {before / 2:g}", hint)
