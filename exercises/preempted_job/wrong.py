"""Mistakes that the checks of preempted_job must reject."""

from exercises.checking import Wrong

FLAG = "        self.received = True\n"
ALL_REDUCE = "    dist.all_reduce(flag, dist.ReduceOp.MAX)\n"
LISTED = (
    '    found = (re.fullmatch(r"step-(\\d+)\\.pt", path.name) for path in folder.iterdir())\n'
    "    return sorted(int(name[1]) for name in found if name)\n"
)
STATES = "        states = {name: part.state_dict() for name, part in training._asdict().items()}\n"
WRITTEN = (
    '        torch.save({**states, "done": done}, unfinished)\n        os.replace(unfinished, path_of(folder, done))\n'
)
KEPT = "        kept = [number for number in numbers if number <= done][-KEEP:]\n"
REMOVED = "        for number in set(numbers) - set(kept):\n            path_of(folder, number).unlink()\n"
RENAMED = (
    "        os.replace(unfinished, path_of(folder, done))\n        numbers = saved_steps(folder)\n" + KEPT + REMOVED
)
FIRST = "    first, skipped = divmod(done, ceil(length / plan.batch_size))\n"
SKIPPED = "[skipped if epoch == first else 0 :]"
ORDER = "generator=torch.Generator().manual_seed(plan.seed + epoch)"
ENDING = "        ending = agreed(notice.received)\n"
TIME = "        if ending or done % plan.save_every == 0 or done == last:\n            save(folder, training, done)\n"
RETURN = "        if ending and done < last:\n            return INTERRUPTED\n"

WRONG = [
    Wrong(
        "SIGTERM alone",
        "        for number in SIGNALS:\n            signal.signal(number, self.receive)\n",
        "        signal.signal(signal.SIGTERM, self.receive)\n",
        "noticed",
    ),
    Wrong("a second signal takes the first one back", FLAG, "        self.received = not self.received\n", "noticed"),
    Wrong("ending in the handler", FLAG, FLAG + "        raise SystemExit(INTERRUPTED)\n", "nothing_else"),
    Wrong("printing in the handler", FLAG, FLAG + '        print("signal", number)\n', "nothing_else"),
    Wrong("calling the other ranks in the handler", FLAG, FLAG + "        dist.barrier()\n", "nothing_else"),
    Wrong("each rank looks at its own flag", ALL_REDUCE, "", "agreement"),
    Wrong("rank 0 decides", ALL_REDUCE, "    dist.broadcast(flag, 0)\n", "agreement"),
    Wrong(
        "only if all have received it",
        ALL_REDUCE,
        "    dist.all_reduce(flag, dist.ReduceOp.MIN)\n",
        "agreement",
    ),
    Wrong(
        "a rank that has no signal asks nobody",
        ENDING,
        "        ending = notice.received and agreed(True)\n",
        "end_together",
    ),
    Wrong(
        "rank 0 looks at its flag alone",
        ENDING,
        "        ending = agreed(notice.received and dist.get_rank() == 0)\n",
        "end_together",
    ),
    Wrong(
        "sorted as text",
        "sorted(int(name[1]) for name in found if name)",
        "[int(one) for one in sorted(name[1] for name in found if name)]",
        "sorted_numbers",
    ),
    Wrong(
        "in the order of the disk",
        "sorted(int(name[1]) for name in found if name)",
        "[int(name[1]) for name in found if name]",
        "sorted_numbers",
    ),
    Wrong("unfinished files count", "re.fullmatch(", "re.search(", "sorted_numbers"),
    Wrong("two digits at most", '(r"step-(\\d+)\\.pt", ', '(r"step-(\\d\\d?)\\.pt", ', "sorted_numbers"),
    Wrong("the momentum is lost", STATES, STATES + '        states["optimizer"]["state"] = {}\n', "comes_back"),
    Wrong(
        "parameters alone, without the averages",
        "        for name, part in training._asdict().items():\n            part.load_state_dict(states[name])\n",
        "        for name in ('optimizer', 'schedule'):\n"
        "            getattr(training, name).load_state_dict(states[name])\n"
        "        for name, values in training.model.named_parameters():\n"
        '            values.data.copy_(states["model"][name])\n',
        "comes_back",
    ),
    Wrong(
        "the schedule starts again",
        "            part.load_state_dict(states[name])\n",
        '            if name != "schedule":\n                part.load_state_dict(states[name])\n',
        "comes_back",
    ),
    Wrong(
        "the number of steps is forgotten",
        "        return done\n    return 0\n",
        "        return 0\n    return 0\n",
        "comes_back",
    ),
    Wrong(
        "no checkpoint is an error",
        "        return done\n    return 0\n",
        '        return done\n    raise FileNotFoundError("no checkpoint")\n',
        "from_scratch",
    ),
    Wrong(
        "a damaged checkpoint starts training from the beginning",
        "            continue\n",
        "            return 0\n",
        "latest_whole",
    ),
    Wrong(
        "only what is cut off is passed over",
        "except Exception as error:  # noqa: BLE001 - each kind of damage raises another one",
        "except RuntimeError as error:",
        "latest_whole",
    ),
    Wrong("the oldest one", "reversed(saved_steps(folder))", "saved_steps(folder)", "latest_whole"),
    Wrong("only the latest one is tried", "reversed(saved_steps(folder))", "saved_steps(folder)[-1:]", "latest_whole"),
    Wrong(
        "writing under the final name",
        WRITTEN,
        '        torch.save({**states, "done": done}, path_of(folder, done))\n',
        "killed_writing",
    ),
    Wrong(
        "writing a copy under the final name",
        "        os.replace(unfinished, path_of(folder, done))\n",
        "        path_of(folder, done).write_bytes(unfinished.read_bytes())\n        unfinished.unlink()\n",
        "renamed_whole",
    ),
    Wrong(
        "the unfinished file in another folder",
        '        unfinished = folder / "unfinished.tmp"\n',
        '        unfinished = Path(tempfile.mkdtemp(), "unfinished.tmp")\n',
        "renamed_whole",
    ),
    Wrong(
        "old ones are removed first",
        WRITTEN,
        "        for number in saved_steps(folder)[: 1 - KEEP]:\n            path_of(folder, number).unlink()\n"
        + WRITTEN,
        "renamed_whole",
    ),
    Wrong(
        "the old file of this name is removed first",
        '        torch.save({**states, "done": done}, unfinished)\n',
        "        path_of(folder, done).unlink(missing_ok=True)\n"
        '        torch.save({**states, "done": done}, unfinished)\n',
        "killed_writing",
    ),
    Wrong("all are kept", REMOVED, "", "two_kept"),
    Wrong("the last two by number, the new one or not", KEPT, "        kept = numbers[-KEEP:]\n", "two_kept"),
    Wrong("one is kept", "if number <= done][-KEEP:]", "if number <= done][-1:]", "two_kept"),
    Wrong(
        "whatever else is in the folder is removed",
        REMOVED,
        "        for path in folder.iterdir():\n"
        "            if path not in [path_of(folder, number) for number in kept]:\n                path.unlink()\n",
        "two_kept",
    ),
    Wrong(
        "saving from every rank",
        "    if dist.get_rank() == 0:\n        states",
        "    if True:\n        states",
        "one_writer",
    ),
    Wrong(
        "nobody waits for the writer",
        "            path_of(folder, number).unlink()\n    dist.barrier()\n",
        "            path_of(folder, number).unlink()\n",
        "one_writer",
    ),
    Wrong(
        "the barrier before the rename",
        RENAMED + "    dist.barrier()\n",
        "    dist.barrier()\n    if dist.get_rank() == 0:\n" + RENAMED,
        "one_writer",
    ),
    Wrong("the epoch begins again", SKIPPED, "", "same_batches"),
    Wrong("batches are skipped in every epoch", SKIPPED, "[skipped:]", "same_batches"),
    Wrong("one batch is trained twice", SKIPPED, "[max(skipped - 1, 0) if epoch == first else 0 :]", "same_batches"),
    Wrong(
        "counting whole batches alone",
        FIRST,
        FIRST.replace("ceil(length / plan.batch_size)", "max(length // plan.batch_size, 1)"),
        "same_batches",
    ),
    Wrong(
        "an order that depends on where training goes on",
        ORDER,
        "generator=torch.Generator().manual_seed(plan.seed + epoch + 100 * done)",
        "same_batches",
    ),
    Wrong(
        "one generator for all epochs",
        "    for epoch in range(first, plan.epochs):\n        order = torch.randperm(length, " + ORDER + ")\n",
        "    generator = torch.Generator().manual_seed(plan.seed)\n    for epoch in range(first, plan.epochs):\n"
        "        order = torch.randperm(length, generator=generator)\n",
        "same_batches",
    ),
    Wrong(
        "no set_epoch: every epoch has the same order",
        "manual_seed(plan.seed + epoch)",
        "manual_seed(plan.seed)",
        "orders",
    ),
    Wrong(
        "one order that each epoch shifts",
        "torch.Generator().manual_seed(plan.seed + epoch))",
        "torch.Generator().manual_seed(plan.seed)).roll(epoch)",
        "orders",
    ),
    Wrong("an order that ignores the seed", "manual_seed(plan.seed + epoch)", "manual_seed(epoch)", "orders"),
    Wrong(
        "a product that seed 0 makes 0", "manual_seed(plan.seed + epoch)", "manual_seed(plan.seed * epoch)", "orders"
    ),
    Wrong(
        "looking at the flag at the end of an epoch",
        ENDING,
        "        ending = agreed(notice.received) and done % ceil(len(labels) / plan.batch_size) == 0\n",
        "same_end",
    ),
    Wrong(
        "ending without a checkpoint", "if ending or done % plan.save_every", "if done % plan.save_every", "same_end"
    ),
    Wrong(
        "saving the number before the step", TIME, TIME.replace("training, done)", "training, done - 1)"), "same_end"
    ),
    Wrong(
        "saving on a signal alone",
        "ending or done % plan.save_every == 0 or done == last",
        "ending or done == last",
        "periodic",
    ),
    Wrong(
        "counting the steps since the latest checkpoint",
        "done % plan.save_every == 0",
        "done - max(saved_steps(folder), default=0) == plan.save_every",
        "periodic",
    ),
    Wrong("saving every step", TIME, "        save(folder, training, done)\n", "periodic"),
    Wrong(
        "counting the steps of the epoch",
        "done % plan.save_every",
        "(done % ceil(len(labels) / plan.batch_size) or 1) % plan.save_every",
        "periodic",
    ),
    Wrong("ending with status 0", RETURN, RETURN.replace("return INTERRUPTED", "return 0"), "statuses"),
    Wrong("a finished job asks to be started again", RETURN, RETURN.replace(" and done < last", ""), "statuses"),
    Wrong("nothing is saved after the last step", " or done == last", "", "finished"),
    Wrong("the interval of one node", "between_failures_of_node / nodes", "between_failures_of_node", "interval"),
    Wrong("without the two", "sqrt(2 * cost", "sqrt(cost", "interval"),
    Wrong(
        "without the root",
        "sqrt(2 * cost * between_failures_of_node / nodes)",
        "2 * cost * between_failures_of_node / nodes",
        "interval",
    ),
]
