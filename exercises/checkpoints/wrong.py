"""Mistakes that the checks of checkpoints must reject."""

from exercises.checking import Wrong

NETWORK = "    network = model.module if isinstance(model, DistributedDataParallel) else model\n"
NAMES = "{name.removeprefix(PREFIX): values for name, values in weights.items()}"
WEIGHTS = '    weights = torch.load(path, map_location="cpu", weights_only=True)\n'

WRONG = [
    Wrong("weights alone: the momentum is lost", '    optimizer.load_state_dict(states["optimizer"])\n', "", "resumes"),
    Wrong("the schedule starts again", '    schedule.load_state_dict(states["schedule"])\n', "", "rate"),
    Wrong(
        "stepping the schedule again instead of restoring its state",
        '    schedule.load_state_dict(states["schedule"])\n',
        '    for _ in range(states["epoch"] + 1):\n        schedule.step()\n',
        "rate",
    ),
    Wrong("an epoch trained twice", 'states["epoch"] + 1', 'states["epoch"]', "resumes"),
    Wrong("saving the wrapper's names", NETWORK, "    network = model\n", "from_ddp"),
    Wrong("always unwrapping", NETWORK, "    network = model.module\n", "resumes"),
    Wrong("loading a module.-prefixed state dict", NAMES, "weights", "prefixed"),
    Wrong("silencing the error of it", NAMES, "weights, strict=False", "prefixed"),
    Wrong(
        "cutting off as many letters without looking", "name.removeprefix(PREFIX)", "name[len(PREFIX) :]", "unprefixed"
    ),
    Wrong("stripping letters instead of a prefix", "name.removeprefix(PREFIX)", "name.lstrip(PREFIX)", "unprefixed"),
    Wrong("removing the prefix wherever it is", "name.removeprefix(PREFIX)", 'name.replace(PREFIX, "")', "unprefixed"),
    Wrong("taking what fits", NAMES, NAMES + ", strict=False", "refuses"),
    Wrong("answering in training mode", "    return network.eval()\n", "    return network\n", "answers"),
    Wrong(
        "a checkpoint that wants the GPU it was saved on",
        '    states = torch.load(path, map_location="cpu", weights_only=True)\n',
        "    states = torch.load(path, weights_only=True)\n",
        "from_gpu",
    ),
    Wrong(
        "weights that want the GPU they were saved on",
        WEIGHTS,
        "    weights = torch.load(path, weights_only=True)\n",
        "from_gpu",
    ),
    Wrong(
        "running whatever is in the file",
        WEIGHTS,
        '    weights = torch.load(path, map_location="cpu", weights_only=False)\n',
        "no_code",
    ),
]
