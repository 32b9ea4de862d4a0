"""Number formats and mixed precision: what fixed and floating point can hold, and why a loss is scaled.

python float_formats.py
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Bits of exponent and fraction; one more bit is the sign (IEEE 754; bfloat16 is float32 without its last 16 bits).
FORMATS = {"float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7)}


def to_fixed(values: np.ndarray, bits: int, fraction_bits: int) -> np.ndarray:
    """Fixed point: float64 (N,) as int64 (N,), multiples of 2**-fraction_bits, rounded to the nearest.

    Ties may go either way. The integers have `bits` bits, at most 53, including the sign (two's complement). Values
    outside their range are clipped to it. The array `values` stays as it is.
    """
    # Gap 1
    raise NotImplementedError("gap 1")


def decode(code: int, exponent_bits: int, fraction_bits: int) -> float:
    """Floating point: the value of a bit pattern. From the highest bit to the lowest: sign, exponent, fraction."""
    fraction = code % 2**fraction_bits
    exponent = (code >> fraction_bits) % 2**exponent_bits
    sign = -1.0 if code >> (fraction_bits + exponent_bits) else 1.0
    bias = 2 ** (exponent_bits - 1) - 1
    # Gap 2: an exponent of all ones means infinity (fraction 0) or not a number. An exponent of all zeros means that
    # there is no leading 1 in front of the fraction, and that the smallest exponent of the other numbers is used.
    raise NotImplementedError("gap 2")


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Finite float32 (N,), rounded to the nearest bfloat16 (ties to even), as float32 (N,).

    Numbers too large for bfloat16 become infinite. The array `values` stays as it is.
    """
    bits = values.view(np.uint32)
    # Gap 3: the last 16 bits become zero; what must be added before they are cut off?
    raise NotImplementedError("gap 3")


def scaled_step(loss: torch.Tensor, optimizer: torch.optim.Optimizer, scale: float) -> float:
    """One step of the optimizer on `loss`, whose backward pass goes through a format of small range.

    Returns the scale for the next step. If a gradient is infinite or not a number, the weights are not updated, and the
    scale is halved. Otherwise the scale stays the same. Every parameter of the optimizer gets a gradient.
    """
    optimizer.zero_grad()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # Gap 4: backward through a larger loss; the optimizer must see the gradients of the loss itself.
    raise NotImplementedError("gap 4")


def main() -> None:
    print("format    largest   smallest  above 1 by")
    for name, (exponent_bits, fraction_bits) in FORMATS.items():
        largest = decode((2**exponent_bits - 1 << fraction_bits) - 1, exponent_bits, fraction_bits)
        one = 2 ** (exponent_bits - 1) - 1 << fraction_bits
        above = decode(one + 1, exponent_bits, fraction_bits) - 1
        print(f"{name:<9} {largest:.2e}  {decode(1, exponent_bits, fraction_bits):.2e}  {above:.2e}")
    print(f"0.1 in 16 bits, 8 behind the point: {to_fixed(np.array([0.1]), 16, 8)[0] / 2**8}")
    print(f"0.1 as bfloat16: {to_bfloat16(np.array([0.1], np.float32))[0]:.9f}")

    for name in FORMATS:
        total, small = torch.zeros((), dtype=getattr(torch, name)), torch.tensor(1e-3, dtype=getattr(torch, name))
        for _ in range(10_000):
            total += small
        print(f"0.001 added up 10,000 times in {name}: {total.item():.4f}")

    torch.manual_seed(0)
    images, labels = torch.randn(64, 32), torch.randint(10, (64,))
    for exponent in (0, 16, 40):
        model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(images), labels) * 1e-5  # gradients as small as deep inside a large network
        following = scaled_step(loss, torch.optim.SGD(model.parameters(), lr=0.0), 2.0**exponent)
        zeros = torch.cat([(parameter.grad == 0).flatten() for parameter in model.parameters()])
        told = f"{zeros.float().mean():.1%} of the gradients are zero"
        print(f"float16, loss times 2**{exponent}: {told}, and 2**{np.log2(following):.0f} is next")


if __name__ == "__main__":
    main()
