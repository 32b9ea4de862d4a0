"""Training in PyTorch; laid out like the train.py of the other implementations, to be read side by side."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
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
from pt_impl.precision import LossScaler, make_autocast
from pt_impl.replicas import device_peak_memory_bytes, share_statistics, sum_over_replicas
from pt_impl.weights import get_weights, load_weights

# --- Steps: each runs in every process, on this rank's shard of the batch ---


def forward_backward(
    model: nn.Module, scaler: LossScaler, autocast: torch.autocast, batch: Batch, config: TrainConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds to the gradients; returns this replica's shares of the global loss and of the number of correct answers."""
    inputs, labels, count = batch
    with autocast:
        logits = model(inputs)
        # Instead of the mean over this shard: its sum, divided once by the size of the global batch.
        loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=config.label_smoothing) / count
    # Instead of the average that DistributedDataParallel takes of the replicas' gradients: times their number, the sum.
    scaler.scale(loss * config.devices).backward()
    return loss.detach(), (logits.detach().argmax(dim=1) == labels).sum()


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    scaler: LossScaler,
    autocast: torch.autocast,
    batches: Iterator[Batch],
    number: int,
    experiment: Experiment,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One update from the next `number` batches; returns this replica's shares as `forward_backward` does."""
    optimizer.zero_grad()
    shares = []
    for left in reversed(range(number)):
        # With --accumulate-grad-batches: replicas add their gradients up with the last batch, not with each.
        with model.no_sync() if left and experiment.config.devices > 1 else nullcontext():
            shares.append(forward_backward(model, scaler, autocast, next(batches), experiment.config))
    largest_norm = experiment.update_rule.largest_norm
    if largest_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), largest_norm)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return summed(shares)


def eval_step(network: nn.Module, autocast: torch.autocast, batch: Batch) -> torch.Tensor:
    """float64 (3,): sum of losses, correct answers, examples."""
    inputs, labels, _ = batch
    with autocast:
        logits = network(inputs)
        loss_sum = F.cross_entropy(logits, labels, reduction="none").double().sum()
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])


def evaluate(
    network: nn.Module, autocast: torch.autocast, loader: Iterable[Batch], device: torch.device, recorder: Recorder
) -> None:
    """Over the whole test set, each example once."""
    recorder.start_evaluation()
    # Instead of each rank's own statistics, which DistributedDataParallel makes one before a training step alone.
    share_statistics(network)
    network.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.inference_mode():
        for batch in loader:
            # Instead of the mean of the batches' means in 32 bits: sums in 64, which count every example alike.
            totals += eval_step(network, autocast, to_device(batch, device))
    network.train()
    loss_sum, correct, count = sum_over_replicas(totals).tolist()
    recorder.end_epoch(loss_sum, int(correct), int(count))


# --- Loop ---


def train(experiment: Experiment, rank: int, device: torch.device, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    network: nn.Module = make_network(experiment.network, config)
    load_weights(network, experiment.network, experiment.initial_weights)
    network.to(device)
    train_loader, test_loader = make_loaders(experiment, rank)
    compile_options, optimizer_options = {}, {}
    if config.mode == "tuned":
        from pt_impl import tuning

        network = tuning.tune_network(network)
        train_loader, test_loader = tuning.make_loaders(experiment, rank, device)
        compile_options, optimizer_options = tuning.compile_options(config), tuning.optimizer_options(config)

    model = network
    if config.devices > 1:
        model = DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)
    if config.compile:
        model = torch.compile(model, **compile_options)
    optimizer, scheduler = make_optimizer(network, experiment.update_rule, **optimizer_options)
    average = make_average(network, experiment.update_rule)
    trained = average.module if average else network
    autocast, scaler = make_autocast(config.precision, device), LossScaler(config, device)

    if config.mode == "tuned" and config.compile:
        tuning.compile_ahead(model, autocast, train_loader, experiment.network.image_shape)
    if config.save_first_batch:
        first_batch = to_device(next(iter(train_loader)), device)
        save_first_batch(experiment, model, network, autocast, first_batch, recorder)

    for epoch in range(plan.num_epochs):
        train_loader.sampler.set_epoch(epoch)
        recorder.start_epoch()
        batches = (to_device(batch, device) for batch in train_loader)
        for step in plan.steps(epoch + 1):
            number = plan.batches_in(step)
            shares = train_step(model, optimizer, scheduler, scaler, autocast, batches, number, experiment)
            if average:
                average.update_parameters(network)
            recorder.step(*shares)
        recorder.end_training()
        # The network itself: without a backward pass DistributedDataParallel has nothing to do.
        evaluate(trained, autocast, test_loader, device, recorder)

    if rank == 0:
        recorder.save_predictions(predict(experiment, trained, autocast))
    weights = get_weights(trained, experiment.network)
    recorder.finish(weights, ("torch",), device_peak_memory_bytes(device), scaler.skipped_steps)
