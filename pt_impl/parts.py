"""The parts of a training in PyTorch. Mode, strategy and resuming are decided here, before `train`."""

import functools

import torch
from torch import nn

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.state import TrainState
from pt_impl.data import make_loaders, to_device
from pt_impl.inspection import save_first_batch
from pt_impl.networks import make_criterion, make_network
from pt_impl.optimizer import make_optimizer
from pt_impl.parallel import parallelize
from pt_impl.precision import LossScaler, make_autocast
from pt_impl.state import get_state, set_state
from pt_impl.train import Parts, eval_step, forward_backward
from pt_impl.weights import load_weights


def make_parts(experiment: Experiment, rank: int, device: torch.device, recorder: Recorder) -> Parts:
    """The parts of this rank, on its device. Every rank must call it."""
    config = experiment.config
    network: nn.Module = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.first_weights)
    if config.strategy == "pipeline":
        from pt_impl import pipeline

        network = pipeline.take_stage(network, experiment.network, rank)
    network.to(device)
    train_batches, test_batches = make_loaders(experiment, rank)
    compile_options, optimizer_options, captured = {}, {}, False
    of_mode, reduction = forward_backward, "sum"
    if config.mode == "tutorial":
        from pt_impl import tutorial

        train_batches, test_batches = tutorial.make_loaders(experiment, rank)
        of_mode, reduction = tutorial.forward_backward, "mean"
    elif config.mode == "tuned":
        from pt_impl import tuning

        network = tuning.tune_network(network, config)
        train_batches, test_batches = tuning.make_loaders(experiment, rank, device)
        captured = tuning.captures_graphs(config)
        compile_options, optimizer_options = tuning.compile_options(config, captured), tuning.optimizer_options(config)

    model = parallelize(network, config, device)
    if config.compile:
        model = torch.compile(model, **compile_options)
    first_step = experiment.plan.first_step
    optimizer, scheduler = make_optimizer(network, experiment.update_rule, first_step, **optimizer_options)
    autocast, scaler = make_autocast(config.precision, device), LossScaler(config, device)
    if experiment.state:
        set_state(experiment, network, optimizer, scaler)

    if config.mode == "tuned" and config.compile and not captured:
        tuning.compile_ahead(model, autocast, train_batches)

    if config.strategy == "pipeline":
        stages = pipeline.Pipeline(network, rank, config, autocast)
        compute, compute_scores = stages.forward_backward, stages.eval_step
    else:
        criterion = make_criterion(experiment.network, reduction, config.label_smoothing)
        compute = functools.partial(of_mode, model, criterion, scaler, autocast, config)
        if config.save_first_batch:
            first_batch, unscaled = to_device(next(iter(train_batches)), device), torch.amp.GradScaler(enabled=False)
            backward = functools.partial(of_mode, model, criterion, unscaled, autocast, config, first_batch)
            save_first_batch(experiment, network, backward, recorder)
        if captured:
            compute = tuning.CapturedPass(compute, model, train_batches)
        compute_scores = functools.partial(eval_step, network, make_criterion(experiment.network, "none"), autocast)

    def state_after(steps: int) -> TrainState:
        return get_state(experiment, network, optimizer, scaler, steps)

    return Parts(
        device=device,
        network=network,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        train_batches=train_batches,
        test_batches=test_batches,
        forward_backward=compute,
        eval_step=compute_scores,
        get_state=state_after,
        keeps_gradients=captured,
    )
