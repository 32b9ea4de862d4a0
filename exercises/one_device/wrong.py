"""Mistakes that the checks of one_device must reject."""

from exercises.checking import Wrong

WRONG = [
    Wrong("forgetting optimizer.zero_grad", "        optimizer.zero_grad()\n", "", "steps"),
    Wrong(
        "an update of one's own: the optimizer's momentum is lost",
        "        optimizer.step()\n",
        "        with torch.no_grad():\n            for parameter in model.parameters():\n"
        '                parameter -= optimizer.param_groups[0]["lr"] * parameter.grad\n',
        "steps",
    ),
    Wrong(
        "reading the clock before the device is done",
        '    if device.type == "cuda":\n        torch.cuda.synchronize(device)\n    return time.perf_counter()\n',
        '    seconds = time.perf_counter()\n    if device.type == "cuda":\n        torch.cuda.synchronize(device)\n'
        "    return seconds\n",
        "late_work",
    ),
    Wrong("milliseconds", "time.perf_counter()\n", "time.perf_counter() * 1000\n", "late_work"),
    Wrong(
        "the time of day, which can be set", "    return time.perf_counter()\n", "    return time.time()\n", "set_clock"
    ),
    Wrong("never waiting for the device", "        torch.cuda.synchronize(device)\n", "        pass\n", "late_work"),
    Wrong("waiting for a GPU that is not there", 'device.type == "cuda"', "True", "no_gpu"),
    Wrong(
        "averaging averages",
        "        correct += (model(images).argmax(dim=1) == labels).sum().item()\n        count += len(labels)\n",
        "        correct += (model(images).argmax(dim=1) == labels).double().mean().item()\n        count += 1\n",
        "uneven_batches",
    ),
    Wrong("evaluating in training mode", "    model.eval()\n", "", "modes"),
]
