"""The parts of a training in Lightning. Mode, strategy and resuming are decided here, before `train`."""

import sys
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from common.experiment import Experiment
from common.record.recorder import Recorder
from pt_impl.networks import make_network
from pt_impl.precision import LossScaler
from pt_impl.weights import load_weights
from ptl_impl.data import ExampleDataModule
from ptl_impl.inspection import FirstBatch
from ptl_impl.state import States
from ptl_impl.train import Classifier, Parts, Recording


def make_parts(experiment: Experiment, device: torch.device, recorder: Recorder) -> Parts:
    """The parts of this process, before the Trainer has started the others."""
    config = experiment.config
    network: nn.Module = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.first_weights)
    data, scaler = ExampleDataModule(experiment), LossScaler(config, device)
    classifier = Classifier
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
    if config.mode == "tutorial":
        from ptl_impl import tutorial

        data, classifier = tutorial.TutorialData(experiment), tutorial.TutorialClassifier
        # TensorBoard, the default logger, would import TensorFlow where that is installed, 3 seconds of each start. It
        # looks for a module of this name first.
        sys.modules["tensorboard.compat.notf"] = ModuleType("notf")  # noqa: TID251
        outputs = {"default_root_dir": config.run_dir}  # the Trainer's defaults
    elif config.mode == "tuned":
        from pt_impl import tuning as pt_tuning
        from ptl_impl import tuning

        network, data = pt_tuning.tune_network(network, config), tuning.TunedData(experiment)
        compile_options = pt_tuning.compile_options(config)
        callbacks += [tuning.CompileAhead()] if config.compile else []
    if config.compile:
        network.compile(**compile_options)
    if recorder.keeps_states or experiment.state:
        callbacks.append(States(experiment, recorder, scaler))
    if config.save_first_batch:
        callbacks.append(FirstBatch(recorder, scaler))

    if config.strategy == "pipeline":
        from ptl_impl.pipeline import PipelinedClassifier

        classifier = PipelinedClassifier
        trainer_options |= {"accumulate_grad_batches": 1, "gradient_clip_val": None}  # its step does both itself
    elif config.strategy == "fsdp":
        from ptl_impl.sharding import ShardedClassifier

        classifier = ShardedClassifier
    module = classifier(network, experiment)
    return Parts(device, module, data, scaler, callbacks, outputs | trainer_options)
