"""Other right answers that the checks of input_pipeline must let pass."""

from exercises.checking import Right

BATCH = (
    "        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()\n"
    "        batch = (batch.to(torch.float32).div(255) - MEAN) / STD\n"
)
DRAWN = (
    "    generator = np.random.default_rng((seed, epoch))\n"
    "    return generator.integers(-PAD, PAD + 1, size=(length, 2))[indices]\n"
)
LOOP = (
    "    done = clock(device)\n    for number, batch in enumerate(batches):\n        begin = clock(device)\n"
    "        step(batch)\n        end = clock(device)\n        if number >= warmup:\n"
)

RIGHT = [
    Right(
        "an iterator read by hand",
        LOOP,
        "    iterator = iter(batches)\n    number = -1\n    while True:\n        number += 1\n"
        "        done = clock(device)\n        batch = next(iterator, None)\n        begin = clock(device)\n"
        "        if batch is None:\n            break\n        step(batch)\n        end = clock(device)\n"
        "        if number >= warmup:\n",
    ),
    Right(
        "a profiler that is started and stopped by hand",
        "    with profile(activities=[ProfilerActivity.CPU], schedule=when) as profiler:\n"
        "        for batch in batches:\n            step(batch)\n            profiler.step()\n",
        "    profiler = torch.profiler.profile(activities=[ProfilerActivity.CPU], schedule=when)\n"
        "    profiler.start()\n    steps = PROFILE_WAIT + PROFILE_WARMUP + PROFILE_ACTIVE\n"
        "    for _, batch in zip(range(steps), batches):\n        step(batch)\n        profiler.step()\n"
        "    profiler.stop()\n",
    ),
    Right(
        "the arithmetic in NumPy",
        BATCH,
        "        floats = (images.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)\n"
        "        batch = torch.from_numpy(floats.transpose(0, 3, 1, 2))\n",
    ),
    Right(
        "a table of all 256 pixels",
        BATCH,
        "        table = (torch.arange(256, dtype=torch.float32) / 255 - MEAN) / STD\n"
        "        batch = table[torch.from_numpy(images).int()].movedim(3, 1)\n",
    ),
    Right(
        "np.take",
        "        images = self.images[indices]\n",
        "        images = np.take(self.images, indices, axis=0)\n",
    ),
    Right(
        "arithmetic in place",
        BATCH,
        "        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float()\n"
        "        batch.div_(255).sub_(MEAN).div_(STD)\n",
    ),
    Right(
        "a generator for each example",
        DRAWN,
        "    draws = [np.random.default_rng((seed, epoch, index)).integers(-PAD, PAD + 1, 2) for index in indices]\n"
        "    return np.stack(draws)\n",
    ),
    Right(
        "PyTorch's generator",
        DRAWN,
        "    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)\n"
        "    return torch.randint(-PAD, PAD + 1, (length, 2), generator=generator).numpy()[indices]\n",
    ),
    Right(
        "a collate_fn of the call, and more batches ahead",
        "        collate_fn=unchanged,\n",
        "        collate_fn=lambda batch: batch,\n        prefetch_factor=4 if workers else None,\n",
    ),
]
