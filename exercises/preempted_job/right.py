"""Other right answers that the checks of preempted_job must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "a sum of the flags, and a number instead of a boolean",
        "    flag = torch.tensor(int(received))\n    dist.all_reduce(flag, dist.ReduceOp.MAX)\n    return bool(flag)\n",
        "    flag = torch.tensor([1.0 if received else 0.0])\n    dist.all_reduce(flag)\n    return flag.item() > 0\n",
    ),
    Right(
        "a temporary file with a name of its own, on the disk before it is renamed",
        '        unfinished = folder / "unfinished.tmp"\n'
        '        torch.save({**states, "done": done}, unfinished)\n'
        "        os.replace(unfinished, path_of(folder, done))\n",
        "        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:\n"
        '            torch.save({**states, "done": done}, file)\n'
        "            file.flush()\n            os.fsync(file.fileno())\n"
        "        Path(file.name).rename(path_of(folder, done))\n",
    ),
    Right(
        "numbers without regular expressions",
        '    found = (re.fullmatch(r"step-(\\d+)\\.pt", path.name) for path in folder.iterdir())\n'
        "    return sorted(int(name[1]) for name in found if name)\n",
        '    stems = [path.stem.split("-")[1] for path in folder.glob("step-*.pt")]\n'
        "    return sorted([int(stem) for stem in stems if stem.isdigit()])\n",
    ),
    Right(
        "the number of steps from the file, which is read with all of pickle",
        'map_location="cpu", weights_only=True)\n        except',
        'weights_only=False)\n            done = states["done"]\n        except',
    ),
    Right(
        "counting all batches, and leaving out those that are done",
        "    for epoch in range(first, plan.epochs):\n"
        "        order = torch.randperm(length, generator=torch.Generator().manual_seed(plan.seed + epoch))\n"
        "        yield from order.split(plan.batch_size)[skipped if epoch == first else 0 :]\n",
        "    number = 0\n    for epoch in range(plan.epochs):\n"
        "        generator = torch.Generator()\n        generator.manual_seed(plan.seed * 2 + 3 * epoch)\n"
        "        order = torch.randperm(length, generator=generator)\n"
        "        for begin in range(0, length, plan.batch_size):\n"
        "            if number >= done:\n                yield order[begin : begin + plan.batch_size]\n"
        "            number += 1\n",
    ),
    Right(
        "asking every rank again after a checkpoint",
        "        if ending and done < last:\n            return INTERRUPTED\n",
        "        if agreed(notice.received) and done != last:\n"
        "            if not ending:\n                save(folder, training, done)\n            return 143\n",
    ),
    Right(
        "the best of many intervals, tried out",
        "    return sqrt(2 * cost * between_failures_of_node / nodes)\n",
        "    between = between_failures_of_node / nodes\n"
        "    tried = [cost * 1.0003**power for power in range(-10000, 60000)]\n"
        "    return min(tried, key=lambda interval: lost_share(interval, cost, between))\n",
    ),
    Right(
        "a seed with a thousand numbers between two epochs",
        "manual_seed(plan.seed + epoch)",
        "manual_seed(plan.seed + 1000 * epoch)",
    ),
    Right(
        "the checkpoint first in memory",
        '        torch.save({**states, "done": done}, unfinished)\n',
        "        from io import BytesIO\n\n        memory = BytesIO()\n"
        '        torch.save({**states, "done": done}, memory)\n'
        "        unfinished.write_bytes(memory.getvalue())\n",
    ),
]
