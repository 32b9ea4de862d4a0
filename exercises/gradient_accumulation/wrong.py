"""Mistakes that the checks of gradient_accumulation must reject."""

from exercises.checking import Wrong

LOSS = 'F.cross_entropy(model(part_images), part_labels, reduction="sum") / len(labels)'

WRONG = [
    Wrong("forgetting optimizer.zero_grad", "    optimizer.zero_grad()\n", "", "three_steps"),
    Wrong(
        "forgetting old gradients before each part",
        "            loss.backward()\n",
        "            optimizer.zero_grad()\n            loss.backward()\n",
        "equal_parts",
    ),
    Wrong(
        "a step for each part",
        "            loss.backward()\n",
        "            loss.backward()\n            optimizer.step()\n",
        "equal_parts",
    ),
    Wrong("adding the parts' means up", LOSS, "F.cross_entropy(model(part_images), part_labels)", "equal_parts"),
    Wrong("averaging averages", LOSS, "F.cross_entropy(model(part_images), part_labels) / len(parts)", "unequal_parts"),
    Wrong("scaling the loss twice", LOSS, LOSS + " / len(parts)", "equal_parts"),
    Wrong(
        "losing the last part",
        "split(size), labels.split(size), strict=True))",
        "split(size), labels.split(size), strict=True))[: len(labels) // size]",
        "parts",
    ),
    Wrong("reducing for each part", "number < len(parts)", "False", "one_reduction"),
    Wrong("never reducing", "number < len(parts)", "True", "one_reduction"),
    Wrong(
        "one backward pass for all parts",
        "            loss.backward()\n            total += loss.item()\n",
        "            total += loss\n    total.backward()\n    total = total.item()\n",
        "memory",
    ),
    Wrong(
        "the loss divided by the number of processes, too",
        "    return total\n",
        "    return total / (dist.get_world_size() if dist.is_initialized() else 1)\n",
        "own_loss",
    ),
    Wrong("the loss of the last part", "total += loss.item()", "total = loss.item()", "loss"),
]
