"""Mistakes that the checks of float_formats must reject."""

from exercises.checking import Wrong

HALF = "    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))\n"
BFLOAT16 = HALF + "    return ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)\n"
STEP = (
    "    (loss * scale).backward()\n"
    "    if not all(torch.isfinite(parameter.grad).all() for parameter in parameters):\n        return scale / 2\n"
    "    for parameter in parameters:\n        parameter.grad /= scale\n    optimizer.step()\n    return scale\n"
)

WRONG = [
    Wrong("8 bits, however many are asked for", "2 ** (bits - 1) - 1", "127", "saturated"),
    Wrong("quarters, whatever is asked for", "values * 2**fraction_bits", "values * 4", "fixed"),
    Wrong("whole numbers as floats", ".astype(np.int64)", "", "fixed"),
    Wrong(
        "cutting off in place, unseen by who compares with the input",
        BFLOAT16,
        "    bits &= np.uint32(0xFFFF0000)\n    return values\n",
        "rounded",
    ),
    Wrong(
        "rounding the caller's own numbers",
        BFLOAT16,
        HALF + "    bits += half\n    bits &= np.uint32(0xFFFF0000)\n    return values\n",
        "untouched",
    ),
    Wrong("float64 for float32", ".view(np.float32)\n", ".view(np.float32).astype(np.float64)\n", "rounded"),
    Wrong(
        "a smaller rate instead of smaller gradients",
        "    for parameter in parameters:\n        parameter.grad /= scale\n    optimizer.step()\n",
        '    rates = [group["lr"] for group in optimizer.param_groups]\n'
        '    for group in optimizer.param_groups:\n        group["lr"] /= scale\n    optimizer.step()\n'
        '    for group, rate in zip(optimizer.param_groups, rates):\n        group["lr"] = rate\n',
        "same_step",
    ),
    Wrong(
        "a step with gradients of zero instead of none: the momentum goes on",
        STEP,
        "    (loss * scale).backward()\n"
        "    bad = not all(torch.isfinite(parameter.grad).all() for parameter in parameters)\n"
        "    for parameter in parameters:\n"
        "        parameter.grad = torch.zeros_like(parameter) if bad else parameter.grad / scale\n"
        "    optimizer.step()\n    return scale / 2 if bad else scale\n",
        "overflow",
    ),
    Wrong("the next scale as a number", "        return scale / 2\n", "        return 512.0\n", "overflow_anywhere"),
    Wrong(
        "looking at the first group of parameters alone",
        "for group in optimizer.param_groups for parameter in group",
        "for group in optimizer.param_groups[:1] for parameter in group",
        "overflow_anywhere",
    ),
    Wrong(
        "cutting off instead of rounding (fixed point)",
        "np.rint(values * 2**fraction_bits)",
        "np.trunc(values * 2**fraction_bits)",
        "fixed",
    ),
    Wrong(
        "wrapping around",
        "np.clip(np.rint(values * 2**fraction_bits), -largest - 1, largest).astype(np.int64)",
        "np.rint(values * 2**fraction_bits).astype(np.int8).astype(np.int64)",
        "saturated",
    ),
    Wrong(
        "no subnormal numbers", "    if exponent == 0:\n", "    if exponent == 0 and fraction == 0:\n", "all_float16"
    ),
    Wrong("infinity as a number", "    if exponent == 2**exponent_bits - 1:\n", "    if False:\n", "all_float16"),
    Wrong(
        "float16's bits for every format",
        "sign * fraction * 2.0 ** (1 - bias - fraction_bits)",
        "sign * fraction * 2.0**-24",
        "formats",
    ),
    Wrong("cutting off instead of rounding (bfloat16)", "(bits + half)", "bits", "rounded"),
    Wrong(
        "from the middle always up",
        "np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))",
        "np.uint32(0x8000)",
        "rounded",
    ),
    Wrong("not dividing by the scale", "        parameter.grad /= scale\n", "        pass\n", "same_step"),
    Wrong(
        "scaling the loss twice",
        "    (loss * scale).backward()\n",
        "    loss = loss * scale\n    (loss * scale).backward()\n",
        "same_step",
    ),
    Wrong(
        "scaling after the backward pass",
        "    (loss * scale).backward()\n",
        "    loss.backward()\n    for parameter in parameters:\n        parameter.grad *= scale\n",
        "survives",
    ),
    Wrong("an update with infinite gradients", "        return scale / 2\n", "        scale = scale / 2\n", "overflow"),
    Wrong(
        "looking at the loss alone",
        "all(torch.isfinite(parameter.grad).all() for parameter in parameters)",
        "torch.isfinite(loss * scale)",
        "overflow_anywhere",
    ),
    Wrong(
        "looking at the first parameter alone",
        "in parameters):\n        return",
        "in parameters[:1]):\n        return",
        "overflow_anywhere",
    ),
    Wrong(
        "looking for infinity alone",
        "if not all(torch.isfinite(parameter.grad).all() for",
        "if any(torch.isinf(parameter.grad).any() for",
        "overflow_anywhere",
    ),
    Wrong("a scale that never falls", "        return scale / 2\n", "        return scale\n", "overflow"),
]
