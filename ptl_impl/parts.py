"""The parts of a training in Lightning. Mode, strategy and resuming are decided here, before `train`."""

import functools
import sys
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from common.experiment import Experiment
from common.record.recorder import Recorder
from pt_impl import data
from pt_impl.networks import make_network
from pt_impl.precision import LossScaler, make_autocast
from pt_impl.weights import load_weights
from ptl_impl.callbacks import FirstBatch, StatesCallback
from ptl_impl.data import ExampleDataModule
from ptl_impl.train import Classifier, Parts, Recording


def make_parts(experiment: Experiment, device: torch.device, recorder: Recorder) -> Parts:
    """The parts of this process, before the Trainer has started the others."""
    config = experiment.config
    network: nn.Module = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.first_weights)
    scaler, make_loaders, classifier = LossScaler(config, device), data.make_loaders, Classifier
    # The recorder logs, makes checkpoints and shows progress.
    outputs: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer_options: dict[str, Any] = {
        "accumulate_grad_batches": config.accumulate_grad_batches,
        "gradient_clip_val": experiment.update_rule.largest_norm,
    }
    callbacks: list[pl.Callback] = [Recording(recorder)]
    compile_options: dict[str, Any] = {}
    optimizer_options: dict[str, bool] = {}
    if config.mode == "tutorial":
        from pt_impl import tutorial
        from ptl_impl.tutorial import TutorialClassifier

        make_loaders, classifier = tutorial.make_loaders, TutorialClassifier
        # TensorBoard, the default logger, would import TensorFlow where that is installed, 3 seconds of each start. It
        # looks for a module of this name first.
        sys.modules["tensorboard.compat.notf"] = ModuleType("notf")  # noqa: TID251
        outputs = {"default_root_dir": config.run_dir}  # the Trainer's defaults
    elif config.mode == "tuned":
        from pt_impl import tuning  # in the places that Lightning's documentation has for its measures

        network = tuning.tune_network(network, config)
        make_loaders = functools.partial(tuning.make_loaders, device=device)
        compile_options, optimizer_options = tuning.compile_options(config), tuning.optimizer_options(config)
    if config.compile:
        network.compile(**compile_options)
    if config.compile and config.mode == "tuned":

        def compile_ahead(trainer: pl.Trainer, module: pl.LightningModule) -> None:
            tuning.compile_ahead(module, make_autocast(config.precision, device), trainer.train_dataloader)

        callbacks.append(pl.callbacks.LambdaCallback(on_train_start=compile_ahead))
    if recorder.keeps_states or experiment.state:
        callbacks.append(StatesCallback(experiment, recorder, scaler))
    if config.save_first_batch:
        callbacks.append(FirstBatch(recorder, scaler))

    if config.strategy == "pipeline":
        from ptl_impl.pipeline import PipelinedClassifier

        classifier = PipelinedClassifier
        trainer_options |= {"accumulate_grad_batches": 1, "gradient_clip_val": None}  # its step does both itself
    elif config.strategy == "fsdp":
        from ptl_impl.sharding import ShardedClassifier

        classifier = ShardedClassifier
    module = classifier(network, experiment, optimizer_options)
    loaders = ExampleDataModule(experiment, make_loaders)
    return Parts(device, module, loaders, scaler, callbacks, outputs | trainer_options)
