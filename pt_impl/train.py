"""Training in PyTorch; laid out like the train.py of the other implementations, to be read side by side."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import summed
from common.spec.options import TrainConfig
from pt_impl.data import Batch, make_loaders, to_device
from pt_impl.inspection import predict, save_first_batch
from pt_impl.networks import make_network
from pt_impl.optimizer import make_average, make_optimizer
from pt_impl.parallel import clip_gradients, parallelize, without_communication
from pt_impl.precision import LossScaler, make_autocast
from pt_impl.replicas import device_peak_memory_bytes, share_statistics, sum_over_replicas
from pt_impl.state import get_state, set_average, set_state
from pt_impl.weights import get_weights, load_weights

Shares = tuple[torch.Tensor, torch.Tensor]

# --- Steps: each runs in every process, on this rank's shard of the batch ---


def forward_backward(
    model: nn.Module, scaler: LossScaler, autocast: torch.autocast, config: TrainConfig, batch: Batch
) -> Shares:
    """Adds to the gradients; returns this replica's shares of the global loss and of the number of correct answers."""
    inputs, labels, count = batch
    with autocast:
        logits = model(inputs)
        # The sum over this shard, divided once by the size of the global batch, instead of the shard's mean.
        loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=config.label_smoothing) / count
    # DistributedDataParallel averages the replicas' gradients; the average times the number of replicas is their sum.
    scaler.scale(loss * config.num_shards).backward()
    return loss.detach(), (logits.detach().argmax(dim=1) == labels).sum()


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    scaler: LossScaler,
    compute: Callable[[Batch], Shares],
    batches: Iterator[Batch],
    number: int,
    experiment: Experiment,
) -> Shares:
    """One update from the next `number` batches; returns this replica's shares of their losses and correct answers.

    Args:
      compute: `forward_backward` of this model.
    """
    optimizer.zero_grad()
    shares = []
    for left in reversed(range(number)):
        # With --accumulate-grad-batches, replicas add up their gradients with the last batch, not with each.
        with without_communication(model, experiment.config) if left else nullcontext():
            shares.append(compute(next(batches)))
    largest_norm = experiment.update_rule.largest_norm
    if largest_norm is not None:
        scaler.unscale_(optimizer)
        clip_gradients(model, largest_norm, experiment.config)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return summed(shares)


def eval_step(network: nn.Module, autocast: torch.autocast, batch: Batch) -> torch.Tensor:
    """float64 (3,): sum of losses, number of correct answers, number of examples."""
    inputs, labels, _ = batch
    with autocast:
        logits = network(inputs)
        loss_sum = F.cross_entropy(logits, labels, reduction="none").double().sum()
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])


def evaluate(
    network: nn.Module,
    compute: Callable[[Batch], torch.Tensor],
    loader: Iterable[Batch],
    device: torch.device,
    recorder: Recorder,
) -> None:
    """Evaluates the whole test set, each example once. `compute`: `eval_step` of this network."""
    recorder.start_evaluation()
    if recorder.config.num_shards > 1:
        # All replicas use the first replica's running statistics, instead of their own.
        # DistributedDataParallel copies them only before a training step.
        share_statistics(network)
    network.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.inference_mode():
        for batch in loader:
            # Sums in 64 bits, which weight all examples equally, instead of the mean of the batches' means in 32 bits.
            totals += compute(to_device(batch, device))
    network.train()
    loss_sum, correct, count = sum_over_replicas(totals).tolist()
    recorder.end_epoch(loss_sum, int(correct), int(count))


# --- Loop ---


def train(experiment: Experiment, rank: int, device: torch.device, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    network: nn.Module = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.first_weights)
    if config.strategy == "pipeline":
        from pt_impl import pipeline

        network = pipeline.take_stage(network, experiment.network, rank)
    network.to(device)
    train_loader, test_loader = make_loaders(experiment, rank)
    compile_options, optimizer_options = {}, {}
    if config.mode == "tuned":
        from pt_impl import tuning

        network = tuning.tune_network(network, config)
        train_loader, test_loader = tuning.make_loaders(experiment, rank, device)
        compile_options, optimizer_options = tuning.compile_options(config), tuning.optimizer_options(config)

    average = make_average(network, experiment.update_rule)
    if average and experiment.state:
        set_average(average, experiment)
    trained = average.module if average else network
    model = parallelize(network, average, config, device)
    if config.compile:
        model = torch.compile(model, **compile_options)
    optimizer, scheduler = make_optimizer(network, experiment.update_rule, plan.first_step, **optimizer_options)
    autocast, scaler = make_autocast(config.precision, device), LossScaler(config, device)
    if experiment.state:
        set_state(experiment, network, optimizer, scaler)
    compute = functools.partial(forward_backward, model, scaler, autocast, config)
    compute_scores = functools.partial(eval_step, trained, autocast)
    if config.strategy == "pipeline":
        compute = pipeline.Pipeline(network, rank, config, autocast).forward_backward
        compute_scores = pipeline.Pipeline(trained, rank, config, autocast).eval_step

    if config.mode == "tuned" and config.compile:
        tuning.compile_ahead(model, autocast, train_loader, experiment.network.image_shape)
    if config.save_first_batch:
        first_batch = to_device(next(iter(train_loader)), device)
        save_first_batch(experiment, model, network, autocast, first_batch, recorder)

    def checkpoint() -> None:
        if recorder.checkpoint_due:
            averages = dict(trained.named_parameters()) if average else {}
            state = get_state(experiment, network, optimizer, averages, scaler, recorder.steps_done)
            recorder.save_checkpoint(state)

    for epoch in range(plan.epochs_before, plan.num_epochs):
        train_loader.sampler.set_epoch(epoch)
        recorder.start_epoch()
        batches = (to_device(batch, device) for batch in train_loader)
        for step in plan.steps(epoch + 1):
            number = plan.batches_in(step)
            shares = train_step(model, optimizer, scheduler, scaler, compute, batches, number, experiment)
            if average:
                average.update_parameters(network)
            recorder.step(*shares)
            checkpoint()
        recorder.end_training()
        # Evaluates the unwrapped network: without a backward pass DistributedDataParallel has nothing to do.
        evaluate(trained, compute_scores, test_loader, device, recorder)
        checkpoint()

    memory, weights = device_peak_memory_bytes(config, device), get_weights(trained, experiment.network)
    if rank == 0:
        recorder.save_predictions(predict(experiment, weights, device))
    recorder.finish(weights, ("torch",), memory, scaler.skipped_steps)
