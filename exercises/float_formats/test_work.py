import math

import numpy as np
import pytest
import torch


def test_fixed(work):
    """fixed point is rounded to the nearest, and clipped"""
    for values, bits, behind, wanted in (
        ([0.7, 0.1, -0.7, -1.3, -2.0], 8, 2, [3, 0, -3, -5, -8]),
        ([0.7, -0.7, 1e6, -1e6], 16, 8, [179, -179, 32767, -32768]),
        ([31.75, -32.0, 32.0, -33.0, 1e30], 8, 2, [127, -128, 127, -128, 127]),
    ):
        given = np.array(values)
        found = work.to_fixed(given, bits, behind)
        hint = f"{values} in {bits} bits, {behind} behind the point: what is the nearest, and which integers fit?"
        assert found.tolist() == wanted, hint
        assert str(found.dtype) == "int64", "the type: which one does the docstring name?"
        assert given.tolist() == values, "the array `values` afterwards: which line writes into its memory?"


def test_decoded(work):
    """all 65,536 numbers of float16 and of bfloat16 are read right"""
    codes = np.arange(2**16, dtype=np.uint16)
    float16, bfloat16 = codes.view(np.float16), (codes.astype(np.uint32) << 16).view(np.float32)
    for bits, values in (((5, 10), float16), ((8, 7), bfloat16)):
        for code, wanted in enumerate(values.tolist()):
            found = work.decode(code, *bits)
            hint = f"{code:016b}, {bits[0]} bits of exponent: what is special about all zeros and all ones there?"
            if not (math.isnan(found) and math.isnan(wanted)):
                assert found == wanted, hint


def test_rounded(work):
    """float32 becomes the nearest bfloat16"""
    generator = np.random.default_rng(0)
    random = (generator.standard_normal(1000) * 10.0 ** generator.integers(-44, 38, 1000)).astype(np.float32)
    middles = (0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF, 0x00008000, 0x7F7FFFFF, 0x80000000)
    given = np.concatenate([random, np.array(middles, np.uint32).view(np.float32)])
    values, found = torch.tensor(given), work.to_bfloat16(given)
    assert str(found.dtype) == "float32", "the type: which one does the docstring name?"
    for value, yours, wanted in zip(values.numpy(), found.tolist(), values.bfloat16().tolist(), strict=True):
        bits = f"{value.view(np.uint32):032b}"
        assert yours == wanted, f"{value}, {bits[:16]} {bits[16:]}: which go up, and which of two in the middle?"
    assert given.tolist() == values.tolist(), "the array `values` afterwards: which line writes into its memory?"


def test_survives(work):
    """gradients that float16 would round to zero reach the weights"""
    small = torch.ones(1, requires_grad=True)
    loss = (small.half() * torch.tensor(1e-4, dtype=torch.float16)).float() * 1e-5
    work.scaled_step(loss.sum(), torch.optim.SGD([small], lr=1e8), 2.0**16)
    hint = "how far a gradient of 1e-9, by float16, and a rate of 1e8 move a weight: when is it too late to multiply?"
    assert 1 - small.item() == pytest.approx(0.1, abs=0.01), hint


def test_steps(work):
    """a scaled step is the step without scaling; if any gradient overflows it is left out, and the scale is halved"""
    weight, other = (torch.tensor(two, dtype=torch.float64, requires_grad=True) for two in ([1.0, -2.0], [1.0, 1.0]))
    optimizer = torch.optim.SGD([{"params": [weight]}, {"params": [other]}], lr=0.25, momentum=0.9)
    for factor, scale, wanted in ((1.0, 512.0, 0.5), (torch.inf, 512.0, 0.5), (torch.nan, 1.0, 0.5), (1.0, 64.0, -0.2)):
        factors = torch.tensor([1.0, factor])  # of the gradients of `other`; the loss stays finite
        handle = other.register_hook(lambda gradient, factors=factors: gradient * factors)
        found = work.scaled_step((weight**2).sum() + other.sum(), optimizer, scale)
        handle.remove()
        told = f"after a step with scale {scale:g}, where a gradient is multiplied by {factor}"
        assert found == (scale if factor == 1.0 else scale / 2), f"the scale {told}: where do you look?"
        hint = f"the weights {told}: how large are the gradients that the optimizer sees, and when is it not called?"
        assert weight.tolist() == pytest.approx([wanted, -2 * wanted], abs=1e-12), hint
