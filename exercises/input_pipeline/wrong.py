"""Mistakes that the checks of input_pipeline must reject."""

from exercises.checking import Wrong

SPLIT = "        begin = clock(device)\n        step(batch)\n        end = clock(device)\n"
PROFILED = "            step(batch)\n            profiler.step()\n"
DRAWN = (
    "    generator = np.random.default_rng((seed, epoch))\n"
    "    return generator.integers(-PAD, PAD + 1, size=(length, 2))[indices]\n"
)
SHIFTED = "            images = shifted(images, draw_shifts(self.seed, epoch, indices, len(self.labels)))\n"
BATCH = (
    "        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()\n"
    "        batch = (batch.to(torch.float32).div(255) - MEAN) / STD\n"
)

WRONG = [
    Wrong("counting the warm-up", "        if number >= warmup:\n", "        if True:\n", "separately"),
    Wrong(
        "one step of warm-up too many", "        if number >= warmup:\n", "        if number > warmup:\n", "separately"
    ),
    Wrong("waiting since the beginning", "        done = end\n", "", "separately"),
    Wrong("waiting that includes the step", "        done = end\n", "        done = begin\n", "separately"),
    Wrong("counting batches", "            images += len(batch[1])\n", "            images += 1\n", "separately"),
    Wrong(
        "taking every batch for a whole one",
        "            images += len(batch[1])\n",
        "            images += BATCH_SIZE\n",
        "separately",
    ),
    Wrong(
        "reading the clock before the device is done",
        SPLIT,
        "        begin = time.perf_counter()\n        step(batch)\n        end = time.perf_counter()\n",
        "gpu_work",
    ),
    Wrong(
        "waiting for the device only when the next batch is there",
        SPLIT,
        "        begin = clock(device)\n        step(batch)\n        end = time.perf_counter()\n",
        "gpu_work",
    ),
    Wrong("the other share", "    return 1 / (1 - share)\n", "    return 1 / share\n", "speed_up"),
    Wrong("the share that is saved", "    return 1 / (1 - share)\n", "    return 1 + share\n", "speed_up"),
    Wrong(
        "workers that do not overlap", "max(data / workers, compute) if", "data / workers + compute if", "overlapped"
    ),
    Wrong("one worker, however many there are", "max(data / workers, compute)", "max(data, compute)", "overlapped"),
    Wrong("this process loads too", "max(data / workers, compute)", "max(data / (workers + 1), compute)", "overlapped"),
    Wrong("the times of a worker shared out", "max(data / workers, compute)", "data / workers", "overlapped"),
    Wrong("never telling the profiler of a step", PROFILED, "            step(batch)\n", "active_steps"),
    Wrong(
        "telling it before the step", PROFILED, "            profiler.step()\n            step(batch)\n", "active_steps"
    ),
    Wrong("beginning again and again", ", repeat=1)", ")", "active_steps"),
    Wrong("recording all steps", ", schedule=when)", ")", "active_steps"),
    Wrong(
        "no step to warm up",
        "wait=PROFILE_WAIT, warmup=PROFILE_WARMUP",
        "wait=PROFILE_WAIT, warmup=0",
        "active_steps",
    ),
    Wrong(
        "ordered by the time with all that is called",
        "key=lambda event: event.self_cpu_time_total",
        "key=lambda event: event.cpu_time_total",
        "own_time",
    ),
    Wrong(
        "telling the time with all that is called",
        "event.self_cpu_time_total / 1e6",
        "event.cpu_time_total / 1e6",
        "own_time",
    ),
    Wrong(
        "the time of one call",
        "key=lambda event: event.self_cpu_time_total",
        "key=lambda event: event.self_cpu_time_total / event.count",
        "own_time",
    ),
    Wrong("the cheapest first", ", reverse=True)", ")", "own_time"),
    Wrong("microseconds for seconds", "event.self_cpu_time_total / 1e6", "event.self_cpu_time_total", "own_time"),
    Wrong(
        "multiplying by a rounded 1/255",
        "(torch.float32).div(255) - MEAN",
        "(torch.float32).mul(1 / 255) - MEAN",
        "same_batch",
    ),
    Wrong(
        "arithmetic in 64 bits",
        BATCH,
        "        batch = torch.from_numpy(((images / 255 - MEAN) / STD).astype(np.float32).transpose(0, 3, 1, 2))\n",
        "same_batch",
    ),
    Wrong("forgetting to normalise", "(batch.to(torch.float32).div(255) - MEAN) / STD", "batch.float()", "same_batch"),
    Wrong(
        "another shape instead of another order",
        "        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()\n",
        "        batch = torch.from_numpy(images)\n"
        "        batch = batch.reshape(len(batch), batch.shape[3], *batch.shape[1:3])\n",
        "same_batch",
    ),
    Wrong(
        "labels in another order",
        "torch.from_numpy(self.labels[indices])",
        "torch.from_numpy(self.labels[np.sort(indices)])",
        "same_batch",
    ),
    Wrong(
        "the whole data set as floats for each batch",
        "        images = self.images[indices]\n",
        "        images = self.images.astype(np.float32)[indices]\n",
        "chosen_first",
    ),
    Wrong(
        "a copy of the whole data set for each batch",
        BATCH,
        "        every = torch.tensor(self.images).permute(0, 3, 1, 2)\n"
        "        batch = every[indices] if self.seed is None else torch.from_numpy(images).permute(0, 3, 1, 2)\n"
        "        batch = (batch.to(torch.float32).div(255) - MEAN) / STD\n",
        "chosen_first",
    ),
    Wrong(
        "the whole data set as floats, once",
        "        images = self.images[indices]\n",
        "        if self.images.dtype == np.uint8:\n            self.images = self.images.astype(np.float32)\n"
        "        images = self.images[indices]\n",
        "chosen_first",
    ),
    Wrong(
        "the whole data set as floats, by PyTorch",
        BATCH,
        "        every = torch.from_numpy(self.images).permute(0, 3, 1, 2).float()\n"
        "        batch = every[indices] if self.seed is None else torch.from_numpy(images).permute(0, 3, 1, 2)\n"
        "        batch = (batch.to(torch.float32).div(255) - MEAN) / STD\n",
        "chosen_first",
    ),
    Wrong(
        "a loop over the images",
        BATCH,
        "        slow = SlowImages(images, self.labels)\n"
        "        batch = torch.stack([slow[epoch, place][0] for place in range(len(images))])\n",
        "whole_batch",
    ),
    Wrong(
        "a loop without a function",
        BATCH,
        "        batch = torch.empty(len(images), images.shape[3], *images.shape[1:3])\n"
        "        for place in range(len(images)):\n"
        "            one = torch.from_numpy(images[place]).permute(2, 0, 1)\n"
        "            batch[place] = (one.to(torch.float32) / 255 - MEAN) / STD\n",
        "whole_batch",
    ),
    Wrong("the end left out", "(-PAD, PAD + 1, size", "(-PAD, PAD, size", "all_shifts"),
    Wrong(
        "one number for both directions",
        "(-PAD, PAD + 1, size=(length, 2))",
        "(-PAD, PAD + 1, size=(length, 1)).repeat(2, axis=1)",
        "all_shifts",
    ),
    Wrong(
        "one shift for all examples",
        DRAWN,
        "    generator = np.random.default_rng((seed, epoch))\n"
        "    return np.tile(generator.integers(-PAD, PAD + 1, size=2), (len(indices), 1))\n",
        "all_shifts",
    ),
    Wrong("the same shifts in each epoch", "default_rng((seed, epoch))", "default_rng(seed)", "anew"),
    Wrong("the same shifts with each seed", "default_rng((seed, epoch))", "default_rng(epoch)", "anew"),
    Wrong("the same shifts in each epoch with seed 0", "(seed, epoch))", "seed * epoch)", "anew"),
    Wrong(
        "in the next epoch the neighbour's shifts",
        DRAWN,
        "    generators = [np.random.default_rng(seed + epoch + index) for index in indices]\n"
        "    return np.array([generator.integers(-PAD, PAD + 1, 2) for generator in generators])\n",
        "anew",
    ),
    Wrong("numbers by the place in the batch", "size=(length, 2))[indices]", "size=(len(indices), 2))", "by_index"),
    Wrong("this page's number of examples for any", "size=(length, 2)", "size=(EXAMPLES, 2)", "by_index"),
    Wrong(
        "a generator that goes on, and of which each worker gets a copy",
        DRAWN,
        '    generator = globals().setdefault("kept", np.random.default_rng((seed, epoch)))\n'
        "    return generator.integers(-PAD, PAD + 1, size=(len(indices), 2))\n",
        "by_index",
    ),
    Wrong(
        "seeding the whole program's generator",
        DRAWN,
        "    np.random.seed((seed, epoch))\n    return np.random.randint(-PAD, PAD + 1, size=(length, 2))[indices]\n",
        "own_generator",
    ),
    Wrong(
        "the whole program's generator as it is",
        DRAWN,
        "    return np.random.randint(-PAD, PAD + 1, size=(len(indices), 2))\n",
        "own_generator",
    ),
    Wrong(
        "shifting floats: the border is grey",
        SHIFTED + BATCH,
        "            moves = draw_shifts(self.seed, epoch, indices, len(self.labels))\n"
        "        batch = (torch.from_numpy(images).float().div(255) - MEAN) / STD\n"
        "        if self.seed is not None:\n            batch = torch.from_numpy(shifted(batch.numpy(), moves))\n"
        "        batch = batch.permute(0, 3, 1, 2)\n",
        "shifted_batch",
    ),
    Wrong(
        "every epoch is the first one", "draw_shifts(self.seed, epoch,", "draw_shifts(self.seed, 0,", "shifted_batch"
    ),
    Wrong("no shifts with seed 0", "        if self.seed is not None:\n", "        if self.seed:\n", "shifted_batch"),
    Wrong("every data set has the seed 0", "draw_shifts(self.seed, epoch,", "draw_shifts(0, epoch,", "shifted_batch"),
    Wrong(
        "leaving the last, smaller batch out",
        "        batch_sampler=batches,\n",
        "        batch_size=batches.batch_size,\n        drop_last=True,\n"
        "        sampler=[(0, index) for index in range(batches.length)],\n",
        "any_workers",
    ),
    Wrong("collating what is complete", "        collate_fn=unchanged,\n", "", "any_workers"),
    Wrong(
        "the batches of one epoch for all",
        "        batch_sampler=batches,\n",
        "        batch_sampler=list(batches),\n",
        "any_workers",
    ),
    Wrong("new workers in each epoch", "        persistent_workers=workers > 0,\n", "", "workers_stay"),
    Wrong("no workers", "        num_workers=workers,\n        persistent_workers=workers > 0,\n", "", "workers_stay"),
    Wrong(
        "one worker, however many are wanted",
        "        num_workers=workers,\n",
        "        num_workers=min(workers, 1),\n",
        "workers_stay",
    ),
    Wrong(
        "keeping workers that are not there", "persistent_workers=workers > 0", "persistent_workers=True", "any_workers"
    ),
    Wrong("pinned memory without a GPU", 'pin_memory=device.type == "cuda"', "pin_memory=True", "pinned"),
    Wrong(
        "pinned wherever the machine has a GPU",
        'pin_memory=device.type == "cuda"',
        "pin_memory=torch.cuda.is_available()",
        "pinned",
    ),
    Wrong("never pinned", '        pin_memory=device.type == "cuda",\n', "", "pinned"),
]
