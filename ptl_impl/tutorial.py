"""The additions of `--mode tutorial` in Lightning: the program that Lightning's own documentation teaches.

The pages, as of Lightning 2.6, are "Lightning in 15 minutes" (docs/source-pytorch/starter/introduction.rst in
Lightning-AI/pytorch-lightning) and "LightningDataModule" (docs/source-pytorch/data/datamodule.rst). They teach
PyTorch's data set and loader (pt_impl/tutorial.py), a `training_step` that returns and logs the mean loss, and a
Trainer with its defaults, which logs, shows progress, and saves a checkpoint after each epoch.
"""

import torch

from pt_impl.data import Batch
from ptl_impl.train import Classifier


class TutorialClassifier(Classifier):
    """The network with the training step of the tutorials."""

    reduction = "mean"

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, torch.Tensor]:
        inputs, labels, _ = batch
        logits = self(inputs)
        loss = self.criterion(logits, labels)
        self.log("train_loss", loss, prog_bar=True)
        correct = (logits.detach().argmax(dim=1) == labels).sum()
        return {"loss": loss, "share": loss.detach() / self.trainer.world_size, "correct": correct}
