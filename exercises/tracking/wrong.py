"""Mistakes that the checks of tracking must reject."""

from exercises.checking import Wrong

ADDED = "        self.totals[0] += losses.detach().sum()\n        self.totals[1] += len(losses)\n"
TIME = "        if self.step % self.every == 0:\n            self.flush()\n"
REDUCED = "        dist.all_reduce(self.totals)\n        loss_sum, count = self.totals.tolist()\n"
STEPS = (
    '        rate = optimizer.param_groups[0]["lr"]\n        optimizer.step()\n        schedule.step()\n'
    "        log.add(losses, rate)\n"
)
MORE = '"global_batch_size": share * world_size'
TESTED = "    dist.all_reduce(totals)\n    loss_sum, correct, count = totals.tolist()\n"
TABLE = (
    "    table = {index: guess for share in shares for index, guess in zip(*share, strict=True)}\n"
    "    return [table[index] for index in range(length)]\n"
)
ENDED = (
    '    status = "failed"\n    try:\n        training()\n        status = "success"\n    finally:\n'
    "        if logger is not None:\n            logger.finalize(status)\n"
)

WRONG = [
    Wrong(
        "totals that lose their type after the first entry",
        "        self.totals.zero_()\n",
        "        self.totals = torch.zeros(2)\n",
        "precise",
    ),
    Wrong("a logger in every process", "return None\n    logger =", "pass\n    logger =", "one_logger"),
    Wrong(
        "a logger on each node",
        "    if rank != 0:\n        return None\n    logger",
        '    if int(os.environ.get("LOCAL_RANK", "0")) != 0:\n        return None\n    logger',
        "one_logger",
    ),
    Wrong(
        "loggers everywhere, of which one is used",
        "    if rank != 0:\n        return None\n    logger = make_logger()\n",
        "    logger = make_logger()\n    if rank != 0:\n        return None\n",
        "one_logger",
    ),
    Wrong("per-replica instead of global batch", MORE, '"global_batch_size": share', "hyperparameters"),
    Wrong("this page's batch for any", MORE, '"global_batch_size": BATCH_SIZE', "hyperparameters"),
    Wrong("forgetting the settings", "{**settings, **more}", "more", "hyperparameters"),
    Wrong("forgetting the versions", ', "torch_version": str(torch.__version__)}', "}", "hyperparameters"),
    Wrong(
        "writing into the caller's settings",
        "    logger.log_hyperparams({**settings, **more})\n",
        "    settings.update(more)\n    logger.log_hyperparams(settings)\n",
        "hyperparameters",
    ),
    Wrong("no hyperparameters", "    logger.log_hyperparams({**settings, **more})\n", "", "hyperparameters"),
    Wrong(
        "hyperparameters as metrics",
        "    logger.log_hyperparams({**settings, **more})\n",
        "    logger.log_hyperparams({**settings, **more})\n"
        '    logger.log_metrics({"world_size": world_size}, step=0)\n',
        "hyperparameters",
    ),
    Wrong(
        "averaging averages: each batch counts the same",
        ADDED,
        "        self.totals[0] += losses.detach().mean()\n        self.totals[1] += 1\n",
        "same_training",
    ),
    Wrong(
        "averaging averages: each process counts the same",
        REDUCED,
        "        mean = self.totals[0] / self.totals[1].clamp(min=1)\n        dist.all_reduce(mean)\n"
        "        loss_sum, count = mean.item(), dist.get_world_size()\n",
        "global_loss",
    ),
    Wrong(
        "other ranks are never reset",
        "        self.totals.zero_()\n        self.pending = 0\n",
        "            self.totals.zero_()\n            self.pending = 0\n",
        "global_loss",
    ),
    Wrong("the loss of rank 0", "        dist.all_reduce(self.totals)\n", "", "global_loss"),
    Wrong(
        "reducing on rank 0 alone: it waits for ever",
        "        dist.all_reduce(self.totals)\n",
        "        if self.logger is not None:\n            dist.all_reduce(self.totals)\n",
        "global_loss",
    ),
    Wrong(
        "a process without examples does not take part",
        "        if self.pending == 0:\n",
        "        if self.totals[1] == 0:\n",
        "global_loss",
    ),
    Wrong(
        "the last loss for the mean",
        "        self.totals[0] +=",
        "        self.totals.zero_()\n        self.totals[0] +=",
        "global_loss",
    ),
    Wrong(
        "the mean since the beginning",
        "        self.totals.zero_()\n        self.pending = 0\n",
        "        self.pending = 0\n",
        "global_loss",
    ),
    Wrong("the sum for the mean", 'loss_sum / count, "train/learning', 'loss_sum, "train/learning', "global_loss"),
    Wrong(
        "the last steps are lost",
        "        if self.pending == 0:\n",
        "        if self.pending < self.every:\n",
        "step_axis",
    ),
    Wrong(
        "flushing twice logs twice",
        "        if self.pending == 0:\n            return\n",
        "        if self.step == 0:\n            return\n        self.totals[1].clamp_(min=1)\n",
        "step_axis",
    ),
    Wrong(
        "counting from the interruption",
        "        if self.step % self.every == 0:\n",
        "        if self.pending == self.every:\n",
        "step_axis",
    ),
    Wrong(
        "beginning again at step 0",
        "            self.logger.log_metrics(metrics, step=self.step)\n",
        "            self.begun = getattr(self, 'begun', self.step - self.pending)\n"
        "            self.logger.log_metrics(metrics, step=self.step - self.begun)\n",
        "step_axis",
    ),
    Wrong("steps counted by the tool", "(metrics, step=self.step)", "(metrics)", "step_axis"),
    Wrong("steps counted from 0", "(metrics, step=self.step)", "(metrics, step=self.step - 1)", "step_axis"),
    Wrong(
        "logging before the step is counted",
        "        self.step += 1\n        self.pending += 1\n        self.rate = rate\n" + TIME,
        "        self.pending += 1\n        self.rate = rate\n" + TIME + "        self.step += 1\n",
        "step_axis",
    ),
    Wrong("no rate", ', "train/learning_rate": self.rate}', "}", "step_axis"),
    Wrong("one name for training and testing", '{"train/loss": loss_sum', '{"loss": loss_sum', "step_axis"),
    Wrong(
        "fetching the loss in each step",
        "losses.detach().sum()\n",
        "losses.detach().sum().item()\n",
        "seldom",
    ),
    Wrong(
        "fetching the loss unseen, by making a tensor of it",
        ADDED,
        "        self.totals += torch.tensor([losses.detach().sum(), len(losses)], device=self.totals.device)\n",
        "seldom",
    ),
    Wrong(
        "reducing in each step",
        ADDED,
        "        one = torch.stack([losses.detach().sum(), losses.new_tensor(len(losses))]).double()\n"
        "        dist.all_reduce(one)\n        self.totals += one / dist.get_world_size()\n",
        "seldom",
    ),
    Wrong("fetching the loss as an array", "losses.detach().sum()", "losses.detach().numpy().sum()", "seldom"),
    Wrong("logging in each step", TIME, "        self.flush()\n", "seldom"),
    Wrong("keeping the graphs", "losses.detach().sum()", "losses.sum()", "no_graph"),
    Wrong(
        "the rate of the next step",
        STEPS,
        '        optimizer.step()\n        schedule.step()\n        log.add(losses, optimizer.param_groups[0]["lr"])\n',
        "used_rate",
    ),
    Wrong(
        "the rate of the next step, from the schedule",
        "log.add(losses, rate)",
        "log.add(losses, schedule.get_last_lr()[0])",
        "used_rate",
    ),
    Wrong("the first rate for all", "log.add(losses, rate)", "log.add(losses, schedule.base_lrs[0])", "used_rate"),
    Wrong(
        "the mean over the interval for the rate",
        "        self.rate = rate\n",
        "        self.rate += rate / self.every\n",
        "used_rate",
    ),
    Wrong("no step of the optimizer", "        optimizer.step()\n", "", "same_training"),
    Wrong("no step of the schedule", "        schedule.step()\n", "", "used_rate"),
    Wrong(
        "the schedule before the optimizer",
        "        optimizer.step()\n        schedule.step()\n",
        "        schedule.step()\n        optimizer.step()\n",
        "same_training",
    ),
    Wrong("no entry", "        log.add(losses, rate)\n", "", "same_training"),
    Wrong("the test of rank 0", "    dist.all_reduce(totals)\n", "", "tested"),
    Wrong(
        "averaging averages: the test's shares count the same",
        TESTED,
        "    totals = totals / totals[2]\n" + TESTED,
        "tested",
    ),
    Wrong("the test under the training's names", '"test/loss": loss_sum', '"train/loss": loss_sum', "tested"),
    Wrong("a test without its step", "correct / count}, step=step)", "correct / count})", "tested"),
    Wrong("the sum of the losses", '"test/loss": loss_sum / count', '"test/loss": loss_sum', "tested"),
    Wrong("per cent", '"test/accuracy": correct / count', '"test/accuracy": 100 * correct / count', "tested"),
    Wrong(
        "one share behind the other",
        TABLE,
        "    return [guess for _, guesses in shares for guess in guesses][:length]\n",
        "in_order",
    ),
    Wrong(
        "taking turns, whatever the shares are",
        TABLE,
        "    world_size = len(shares)\n"
        "    return [shares[index % world_size][1][index // world_size] for index in range(length)]\n",
        "in_order",
    ),
    Wrong(
        "padding in the table",
        TABLE,
        "    return [guess for _, guess in sorted(pair for share in shares for pair in zip(*share, strict=True))]\n",
        "in_order",
    ),
    Wrong("a table of rank 0's share", "range(length)]\n", "indices.tolist()]\n", "in_order"),
    Wrong(
        "a table in each process",
        "    dist.gather_object((indices.tolist(), guesses.tolist()), shares if rank == 0 else None)\n"
        "    if rank != 0:\n        return None\n",
        "    dist.all_gather_object(shares, (indices.tolist(), guesses.tolist()))\n",
        "in_order",
    ),
    Wrong(
        "nothing where the training fails",
        ENDED,
        '    training()\n    if logger is not None:\n        logger.finalize("success")\n',
        "ended",
    ),
    Wrong(
        "nothing at Ctrl-C",
        ENDED,
        "    try:\n        training()\n    except Exception:\n        if logger is not None:\n"
        '            logger.finalize("failed")\n        raise\n    if logger is not None:\n'
        '        logger.finalize("success")\n',
        "ended",
    ),
    Wrong("success in any case", '    status = "failed"\n', '    status = "success"\n', "ended"),
    Wrong(
        "the error is lost",
        "            logger.finalize(status)\n",
        "            logger.finalize(status)\n        return\n",
        "ended",
    ),
    Wrong(
        "all have a logger",
        "        if logger is not None:\n            logger.finalize(status)\n",
        "        logger.finalize(status)\n",
        "ended",
    ),
]
