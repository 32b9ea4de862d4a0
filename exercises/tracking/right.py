"""Other right answers that the checks of tracking must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "new totals instead of changed ones",
        "        self.totals[0] += losses.detach().sum()\n        self.totals[1] += len(losses)\n",
        "        count = torch.tensor(len(losses), device=losses.device)\n"
        "        self.totals = self.totals + torch.stack([losses.detach().double().sum(), count.double()])\n",
    ),
    Right(
        "two reductions, a logger for each number",
        "        dist.all_reduce(self.totals)\n        loss_sum, count = self.totals.tolist()\n"
        "        if self.logger is not None:\n"
        '            metrics = {"train/loss": loss_sum / count, "train/learning_rate": self.rate}\n'
        "            self.logger.log_metrics(metrics, step=self.step)\n",
        "        loss_sum, count = self.totals.clone()\n"
        "        dist.reduce(loss_sum, 0)\n        dist.reduce(count, 0)\n"
        "        if dist.get_rank() == 0:\n"
        '            self.logger.log_metrics({"train/loss": loss_sum / count}, self.step)\n'
        '            self.logger.log_metrics({"train/learning_rate": torch.tensor(self.rate)}, self.step)\n',
    ),
    Right(
        "the rate from the schedule, before its step",
        '        rate = optimizer.param_groups[0]["lr"]\n        optimizer.step()\n        schedule.step()\n'
        "        log.add(losses, rate)\n",
        "        optimizer.step()\n"
        "        log.add(losses.detach(), schedule.get_last_lr()[0])\n        schedule.step()\n",
    ),
    Right(
        "a table that is a tensor",
        "    dist.gather_object((indices.tolist(), guesses.tolist()), shares if rank == 0 else None)\n"
        "    if rank != 0:\n        return None\n"
        "    table = {index: guess for share in shares for index, guess in zip(*share, strict=True)}\n"
        "    return [table[index] for index in range(length)]\n",
        "    dist.all_gather_object(shares, torch.stack([indices, guesses]))\n"
        "    places, values = torch.cat(shares, dim=1)\n    table = torch.zeros(length, dtype=torch.int64)\n"
        "    table[places] = values\n    return table.tolist() if rank == 0 else None\n",
    ),
    Right(
        "an error that is caught and raised again",
        '    status = "failed"\n    try:\n        training()\n        status = "success"\n    finally:\n'
        "        if logger is not None:\n            logger.finalize(status)\n",
        "    try:\n        training()\n    except BaseException:\n        if logger is not None:\n"
        '            logger.finalize("failed")\n        raise\n    if logger is not None:\n'
        '        logger.finalize("success")\n',
    ),
    Right(
        "the hyperparameters in a dictionary of its own",
        "    logger.log_hyperparams({**settings, **more})\n",
        "    everything = dict(settings)\n    everything.update(more)\n    logger.log_hyperparams(params=everything)\n",
    ),
]
