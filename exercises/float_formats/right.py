"""Other right answers that the checks of float_formats must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "PyTorch's GradScaler",
        "    (loss * scale).backward()\n"
        "    if not all(torch.isfinite(parameter.grad).all() for parameter in parameters):\n        return scale / 2\n"
        "    for parameter in parameters:\n        parameter.grad /= scale\n    optimizer.step()\n    return scale\n",
        '    scaler = torch.amp.GradScaler("cpu", init_scale=scale)\n'
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()\n"
        "    return scaler.get_scale()\n",
    ),
    Right(
        "a backward pass that begins with the scale",
        "    (loss * scale).backward()\n",
        "    loss.backward(torch.full_like(loss, scale))\n",
    ),
]
