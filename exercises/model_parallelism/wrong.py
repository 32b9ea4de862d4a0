"""Mistakes that the checks of model_parallelism must reject."""

from exercises.checking import Wrong

LOSS = 'F.cross_entropy(stage(inputs[-1]), part, reduction="sum") / count'

WRONG = [
    Wrong(
        "a first stage that learns of nothing",
        "        output.backward(gradient)\n",
        "        output.sum().backward()\n",
        "one_part",
    ),
    Wrong("gradients that are not sent", "        dist.send(received.grad, other)\n", "", "one_part"),
    Wrong(
        "the loss sent instead of the input's gradient",
        "        dist.send(received.grad, other)\n",
        "        dist.send(torch.full_like(received, loss.item()), other)\n",
        "one_part",
    ),
    Wrong("sending to rank 1, whoever the other is", "detach(), other)", "detach(), 1)", "ranks_swapped"),
    Wrong("receiving from rank 0, whoever the other is", "recv(received, other)", "recv(received, 0)", "ranks_swapped"),
    Wrong("an input without a gradient", "received.requires_grad_()", "received", "one_part"),
    Wrong("averaging averages", LOSS, "F.cross_entropy(stage(inputs[-1]), part) / len(labels)", "unequal_parts"),
    Wrong("the parts' means added up", LOSS, "F.cross_entropy(stage(inputs[-1]), part)", "equal_parts"),
    Wrong(
        "forgetting optimizer.zero_grad in stage 0",
        "    optimizer.zero_grad()\n    outputs = []\n",
        "    outputs = []\n",
        "equal_parts",
    ),
    Wrong(
        "forgetting optimizer.zero_grad in stage 1", "    optimizer.zero_grad()\n    count", "    count", "equal_parts"
    ),
    Wrong(
        "keeping the last part alone",
        "    for output in outputs:\n",
        "    for output in outputs[-1:] * len(outputs):\n",
        "equal_parts",
    ),
    Wrong(
        "counting the waiting of one stage only by parts",
        "(stages - 1) / (parts + stages - 1)",
        "(stages - 1) / parts",
        "idle",
    ),
    Wrong(
        "waiting for each part's gradient before the next part",
        "        dist.send(outputs[-1].detach(), other)\n",
        "        dist.send(outputs[-1].detach(), other)\n        dist.recv(torch.empty_like(outputs[-1]), other)\n",
        "schedule",
    ),
]
