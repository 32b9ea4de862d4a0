"""Mistakes that the checks of to_lightning must reject."""

from exercises.checking import Wrong

RIGHT = "        right = (self.network(images).argmax(dim=1) == labels).double().mean()\n"
STEP = "        return F.cross_entropy(self.network(images), labels)\n"

METRIC = '        self.accuracy(self.network(images), labels)\n        self.log("test_accuracy", self.accuracy)\n'

WRONG = [
    Wrong("a loss divided by the devices, too", STEP, STEP[:-1] + " / self.trainer.world_size\n", "two_devices"),
    Wrong(
        "a rate for each device's own batch",
        "lr=LEARNING_RATE, momentum",
        "lr=LEARNING_RATE * self.trainer.world_size, momentum",
        "two_devices",
    ),
    Wrong(
        "a metric that is never reset",
        METRIC,
        "        self.accuracy.update(self.network(images), labels)\n\n"
        "    def on_validation_epoch_end(self) -> None:\n"
        '        self.log("test_accuracy", self.accuracy.compute())\n',
        "counted_anew",
    ),
    Wrong(
        "leaving examples out of the shares", "shuffle=True, seed", "drop_last=True, shuffle=True, seed", "all_shares"
    ),
    Wrong(
        "a device's number on its node for its number, in testing",
        "        rank, world_size = self.trainer.global_rank, self.trainer.world_size\n        # Gap 6",
        "        rank, world_size = self.trainer.local_rank, self.trainer.world_size\n        # Gap 6",
        "test_shares",
    ),
    Wrong(
        "doing the Trainer's work again",
        STEP,
        "        loss = F.cross_entropy(self.network(images), labels)\n        loss.backward(retain_graph=True)\n"
        "        self.optimizers().optimizer.step()\n"
        "        return loss\n",
        "same_training",
    ),
    Wrong("a loss without its graph", STEP, STEP[:-1] + ".detach().requires_grad_()\n", "same_training"),
    Wrong("a schedule stepped once an epoch", ', "interval": "step"', "", "schedule"),
    Wrong("the mean over classes", ', average="micro"', "", "accuracy"),
    Wrong(
        "averaging averages of devices",
        METRIC,
        RIGHT + '        self.log("test_accuracy", right, sync_dist=True, batch_size=1)\n',
        "accuracy",
    ),
    Wrong(
        "one device's accuracy for everybody's",
        METRIC,
        RIGHT + '        self.log("test_accuracy", right)\n',
        "uneven_shares",
    ),
    Wrong("per-replica instead of global batch", "self.batch_size // world_size", "self.batch_size", "global_batch"),
    Wrong(
        "the same share for all",
        "sampler = DistributedSampler(self.training, world_size, rank, shuffle",
        "sampler = DistributedSampler(self.training, world_size, 0, shuffle",
        "all_shares",
    ),
    Wrong("the same order in every epoch", "shuffle=True", "shuffle=False", "all_shares"),
    Wrong(
        "a device's number on its node for its number",
        "        rank, world_size = self.trainer.global_rank, self.trainer.world_size\n        # Gap 5",
        "        rank, world_size = self.trainer.local_rank, self.trainer.world_size\n        # Gap 5",
        "all_shares",
    ),
    Wrong(
        "leaving the last batch out",
        "self.batch_size // world_size, sampler=sampler)",
        "self.batch_size // world_size, sampler=sampler, drop_last=True)",
        "global_batch",
    ),
    Wrong(
        "evaluating on padded data",
        "Subset(self.testing, range(rank, len(self.testing), world_size)), self.batch_size",
        "self.testing, self.batch_size, sampler=DistributedSampler(self.testing, world_size, rank, shuffle=False)",
        "uneven_shares",
    ),
]
