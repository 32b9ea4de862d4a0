"""Training in PyTorch; laid out like the train.py of the other implementations, to be read side by side."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from common.experiment import Experiment
from common.record.recorder import Recorder
from common.spec.batches import summed
from common.spec.options import TrainConfig
from common.spec.state import TrainState
from pt_impl.data import Batch, to_device
from pt_impl.inspection import predict
from pt_impl.networks import Criterion
from pt_impl.parallel import clip_gradients, without_communication
from pt_impl.precision import LossScaler
from pt_impl.replicas import device_peak_memory_bytes, share_statistics, sum_over_replicas
from pt_impl.weights import get_weights

Shares = tuple[torch.Tensor, torch.Tensor]  # of the loss and of the number of correct answers


@dataclass(frozen=True)
class Parts:
    """What is trained and evaluated; made by `make_parts` (pt_impl/parts.py) for each mode and strategy.

    Attributes:
      network: the network that is trained.
      model: the network as a training step calls it, for example wrapped in DistributedDataParallel.
      train_batches: this rank's shards of the batches, see `Batch`; its sampler chooses the epoch.
      forward_backward: the function below, for this model.
      eval_step: the function below, for this network.
      get_state: number of steps -> the state after them.
      keeps_gradients: whether gradients stay in the same memory, as a CUDA graph needs it; else each step frees them.
    """

    device: torch.device
    network: nn.Module
    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler
    scaler: LossScaler
    train_batches: DataLoader[Batch]
    test_batches: Iterable[Batch]
    forward_backward: Callable[[Batch], Shares]
    eval_step: Callable[[Batch], torch.Tensor]
    get_state: Callable[[int], TrainState]
    keeps_gradients: bool = False


# --- Steps: each runs in every process, on this rank's shard of the batch ---


def forward_backward(
    model: nn.Module,
    criterion: Criterion,
    scaler: LossScaler,
    autocast: torch.autocast,
    config: TrainConfig,
    batch: Batch,
) -> Shares:
    """Adds to the gradients; returns this replica's shares of the global loss and of the number of correct answers.

    `criterion`: the sum of the losses.
    """
    inputs, labels, count = batch
    with autocast:
        logits = model(inputs)
        # The sum over this shard, divided once by the size of the global batch, instead of the shard's mean.
        loss = criterion(logits, labels) / count
    # DistributedDataParallel averages the replicas' gradients; the average times the number of replicas is their sum.
    scaler.scale(loss * config.num_shards).backward()
    return loss.detach(), (logits.detach().argmax(dim=1) == labels).sum()


def train_step(experiment: Experiment, parts: Parts, batches: Iterator[Batch], number: int) -> Shares:
    """One update from the next `number` batches; returns this replica's shares of their losses and correct answers."""
    model, optimizer, scaler = parts.model, parts.optimizer, parts.scaler
    optimizer.zero_grad(set_to_none=not parts.keeps_gradients)
    # With --accumulate-grad-batches, replicas add up their gradients with the last batch, not with each.
    with without_communication(model, experiment.config):
        shares = [parts.forward_backward(next(batches)) for _ in range(number - 1)]
    shares.append(parts.forward_backward(next(batches)))
    largest_norm = experiment.update_rule.largest_norm
    if largest_norm is not None:
        scaler.unscale_(optimizer)
        clip_gradients(model, largest_norm, experiment.config)
    scaler.step(optimizer)
    scaler.update()
    parts.scheduler.step()
    return summed(shares)


def eval_step(network: nn.Module, criterion: Criterion, autocast: torch.autocast, batch: Batch) -> torch.Tensor:
    """float64 (3,): sum of losses, number of correct answers, number of examples. `criterion`: each example's loss."""
    inputs, labels, _ = batch
    with autocast:
        logits = network(inputs)
        loss_sum = criterion(logits, labels).double().sum()
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])


def evaluate(parts: Parts, recorder: Recorder) -> None:
    """Evaluates the whole test set, each example once."""
    recorder.start_evaluation()
    network = parts.network  # not wrapped: without a backward pass DistributedDataParallel has nothing to do
    if recorder.config.num_shards > 1:
        # All replicas use the first replica's running statistics, instead of their own.
        # DistributedDataParallel copies them only before a training step.
        share_statistics(network)
    network.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=parts.device)
    with torch.inference_mode():
        for batch in parts.test_batches:
            # Sums in 64 bits, which weight all examples equally, instead of the mean of the batches' means in 32 bits.
            totals += parts.eval_step(to_device(batch, parts.device))
    network.train()
    loss_sum, correct, count = sum_over_replicas(totals).tolist()
    recorder.end_epoch(loss_sum, int(correct), int(count))


# --- Loop ---


def train(experiment: Experiment, parts: Parts, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan, device = experiment.config, experiment.plan, parts.device

    for epoch in range(plan.epochs_done, plan.num_epochs):
        parts.train_batches.sampler.set_epoch(epoch)
        recorder.start_epoch()
        batches = (to_device(batch, device) for batch in parts.train_batches)
        for step in plan.steps(epoch + 1):  # the plan counts epochs from 1
            shares = train_step(experiment, parts, batches, plan.batches_in(step))
            recorder.step(*shares)
            recorder.offer_state(parts.get_state)
        recorder.end_training()
        evaluate(parts, recorder)
        recorder.offer_state(parts.get_state)

    memory = device_peak_memory_bytes(config, device)
    weights = get_weights(parts.network, experiment.network)
    if recorder.writes:  # the first rank
        recorder.save_predictions(predict(experiment, weights, device))
    recorder.finish(weights, packages=("torch",), peak_memory=memory, skipped_steps=parts.scaler.skipped_steps)
