"""Training in Lightning; laid out like tf_impl/train.py and pt_impl/train.py, to be read side by side."""

import contextlib
import logging
import os
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.profilers import PassThroughProfiler

from common.config import TrainConfig
from common.experiment import Experiment
from common.launch import first_pid, is_first_process
from common.recorder import Recorder
from common.timeline import Timeline
from pt_impl.devices import (
    concatenate_over_replicas,
    device_name,
    device_peak_memory_bytes,
    sum_over_replicas,
    synchronize,
    wait_for_replicas,
)
from pt_impl.model import Forward, get_weights, predict, to_canonical, watch_activations
from pt_impl.optimizer import LossScaler
from ptl_impl.data import ExampleData
from ptl_impl.devices import make_strategy, setup_devices
from ptl_impl.model import Classifier

PRECISIONS = {"32": "32-true", "64": "64-true", "bf16-mixed": "bf16-mixed"}

# --- Loop: the Trainer's, which calls the methods of Classifier ---


def train(experiment: Experiment, device: torch.device, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    module, data = Classifier(experiment, recorder), ExampleData(experiment)
    scaler = LossScaler(config, device)
    trainer = pl.Trainer(
        accelerator=config.accelerator,
        devices=config.devices,
        strategy=make_strategy(config),
        # Instead of what Lightning takes 16-mixed for on the CPU, which is bf16-mixed.
        plugins=[MixedPrecision("16-mixed", device.type, scaler)] if scaler.is_enabled() else [],
        precision=None if scaler.is_enabled() else PRECISIONS[config.precision],
        max_epochs=plan.num_epochs,
        profiler=NoProfiler(),
        callbacks=[FirstBatch(recorder)] if config.save_first_batch else [],
        use_distributed_sampler=False,  # the samplers know their rank; Lightning's would pad
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,  # the recorder shows progress
        enable_model_summary=False,
    )
    # Lightning asks all ranks in every step whether one was told to end, and waits for the answer: a broadcast that
    # none of the others makes, and on a GPU a wait for the device. Here a signal goes to all ranks anyway.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    try:
        if plan.num_epochs > 0:
            trainer.fit(module, data)
        else:
            trainer.validate(module, data, verbose=False)
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # which Lightning turns into an exit with status 1
            raise KeyboardInterrupt from None
        raise

    if recorder.writes:
        module.network.to(device)  # from where the Trainer has taken it
        forward = Forward(module.network, experiment.dataset, config.precision, device)
        recorder.save_predictions(predict(forward, experiment.dataset, config.eval_batch_size))
    weights = get_weights(module.network, experiment.model)
    recorder.finish(weights, ("torch", "lightning"), device_peak_memory_bytes(device), scaler.skipped_steps)
    wait_for_replicas()


def fetch_steps(steps: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[float, float]]:
    """Global losses and correct answers of several steps: the replicas' shares in one tensor, summed at once."""
    shares = torch.stack([torch.stack(column).double() for column in zip(*steps, strict=True)], dim=1)
    return sum_over_replicas(shares).tolist()


class NoProfiler(PassThroughProfiler):
    """Lightning's own does nothing some twenty times a step, in a generator each time."""

    nothing = contextlib.nullcontext()

    def profile(self, action_name: str) -> contextlib.AbstractContextManager[None]:
        return self.nothing


# --- First batch: for comparing implementations layer by layer ---


class FirstBatch(pl.Callback):
    """Writes every layer's output and every parameter's gradient of the first step."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_train_start(self, trainer: pl.Trainer, module: Classifier) -> None:
        self.outputs, self.hooks = watch_activations(module.network, module.experiment.model)

    def on_after_backward(self, trainer: pl.Trainer, module: Classifier) -> None:
        if trainer.global_step > 0:
            return
        for hook in self.hooks:
            hook.remove()
        gradients = {name: parameter.grad for name, parameter in module.network.named_parameters()}
        outputs = concatenate_over_replicas(self.outputs)
        self.recorder.save_first_batch(outputs, to_canonical(gradients, module.experiment.model))


# --- Start ---


def main(config: TrainConfig) -> None:
    """One run: the Trainer starts this program again, from its first line, for each further replica."""
    timeline = Timeline.begin(first_pid())
    timeline.enter("data")
    quiet()
    experiment = Experiment.make(setup_devices(config))
    if is_first_process():
        experiment = experiment.with_run_dir("ptl")
    if config.dry_run:
        return
    device = torch.device("cpu")
    if experiment.config.accelerator == "gpu":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    with Recorder(
        "ptl",
        "Lightning",
        experiment,
        device_name=device_name(device),
        timeline=timeline,
        writes=is_first_process(),
        fetch=fetch_steps,
        synchronize=synchronize,
    ) as recorder:
        train(experiment, device, recorder)


def quiet() -> None:
    """Leaves out what Lightning says in every run of this program, and no other warning."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # What the launcher says of a replica that has died is its only message.
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
    # Lightning's own use of torch, not this program's.
    warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
    # The step takes one batch from its loader, as it should.
    warnings.filterwarnings("ignore", message=".*`dataloader_iter`.*")
    # The data are in memory, gathered a batch at a time: worker processes would only copy them.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
