"""Mistakes that the checks of float_formats must reject."""

from exercises.checking import Wrong

WRONG = [
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
