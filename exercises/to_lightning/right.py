"""Other right answers that the checks of to_lightning must let pass."""

from exercises.checking import Right

RIGHT = [
    Right(
        "a metric that is computed and reset by hand",
        '        self.accuracy(self.network(images), labels)\n        self.log("test_accuracy", self.accuracy)\n',
        "        self.accuracy.update(self.network(images), labels)\n\n"
        "    def on_validation_epoch_end(self) -> None:\n"
        '        self.log("test_accuracy", self.accuracy.compute())\n        self.accuracy.reset()\n',
    ),
    Right(
        "optimizer and schedule in a dictionary",
        '        return [optimizer], [{"scheduler": schedule, "interval": "step"}]\n',
        '        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}\n',
    ),
]
