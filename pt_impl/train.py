"""Training in PyTorch; laid out like tf_impl/train.py and ptl_impl/train.py, to be read side by side."""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from common.config import TrainConfig
from common.errors import ReplicaError, UserError, describe_signal, whole_program
from common.experiment import Experiment
from common.launch import first_pid, under_torchrun
from common.recorder import Recorder
from common.timeline import Timeline
from pt_impl.data import Batch, test_data, to_device, train_data
from pt_impl.devices import (
    concatenate_over_replicas,
    device_name,
    device_peak_memory_bytes,
    join_group,
    leave_group,
    setup_devices,
    sum_over_replicas,
    synchronize,
    wait_for_replicas,
)
from pt_impl.model import (
    Forward,
    compile_ahead,
    compiled,
    get_weights,
    load_weights,
    make_model,
    predict,
    to_canonical,
    watch_activations,
)
from pt_impl.optimizer import LossScaler, make_optimizer

GRACE_SECONDS = 10  # for the other replicas to end by themselves when one has failed

# --- Steps: each runs in every process, on this rank's shard ---


def loss_of(logits: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """This replica's share of the global batch's mean cross-entropy: its sum, divided once by the global count."""
    return F.cross_entropy(logits, labels, reduction="sum") / count


def train_step(
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    scaler: LossScaler,
    batch: Batch,
    world_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels, count = batch
    optimizer.zero_grad(set_to_none=True)
    logits = forward(images)
    loss = loss_of(logits, labels, count)
    # DistributedDataParallel averages the gradients over the replicas: times their number it is the sum.
    scaler.scale(loss * world_size).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return loss.detach(), (logits.detach().argmax(dim=1) == labels).sum()


def eval_step(forward: Forward, batch: Batch) -> torch.Tensor:
    """float64 (3,): sum of losses, correct answers, examples."""
    images, labels, _ = batch
    logits = forward(images)
    loss_sum = F.cross_entropy(logits, labels, reduction="none").double().sum()
    correct = (logits.argmax(dim=1) == labels).sum()
    return torch.stack([loss_sum, correct.double(), torch.full_like(loss_sum, len(labels))])


def evaluate(forward: Forward, data: Iterable[Batch], device: torch.device) -> tuple[float, int, int]:
    """Sum of losses, correct answers and examples over the whole test set, each example once."""
    forward.network.eval()
    with torch.inference_mode():
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        for batch in data:
            totals += eval_step(forward, to_device(batch, device))
    forward.network.train()
    loss_sum, correct, count = sum_over_replicas(totals).tolist()
    return loss_sum, int(correct), int(count)


# --- Loop ---


def train(experiment: Experiment, rank: int, device: torch.device, recorder: Recorder) -> None:
    """Trains, evaluates after every epoch, and writes the run folder."""
    config, plan = experiment.config, experiment.plan
    network = make_model(experiment.model, config.precision)
    load_weights(network, experiment.model, experiment.initial_weights)
    network.to(device)
    model: nn.Module = network
    if config.devices > 1:
        model = DistributedDataParallel(network, device_ids=[device] if device.type == "cuda" else None)
    if config.compile:
        model = compiled(model, device)
    # Of all replicas together, for training, and of this one alone, for evaluation.
    forward, forward_alone = (Forward(one, experiment.dataset, config.precision, device) for one in (model, network))
    optimizer, scheduler = make_optimizer(network, experiment.update_rule)
    scaler = LossScaler(config, device)
    training, testing = train_data(experiment, rank, device), test_data(experiment, rank, device)

    if config.compile and plan.total_steps:
        compile_ahead(forward, experiment.model, training.sampler, optimizer.zero_grad)
    if config.save_first_batch:
        save_first_batch(experiment, forward, network, to_device(next(iter(training)), device), recorder)

    for epoch in range(1, plan.num_epochs + 1):
        training.sampler.set_epoch(epoch - 1)
        recorder.start_epoch()
        for batch in training:
            batch = to_device(batch, device)
            recorder.step(*train_step(forward, optimizer, scheduler, scaler, batch, config.devices))
        recorder.end_training()
        recorder.start_evaluation()
        recorder.end_epoch(*evaluate(forward_alone, testing, device))
    if plan.num_epochs == 0:
        recorder.start_evaluation()
        recorder.end_epoch(*evaluate(forward_alone, testing, device))

    if rank == 0:
        recorder.save_predictions(predict(forward_alone, experiment.dataset, config.eval_batch_size))
    weights = get_weights(network, experiment.model)
    recorder.finish(weights, ("torch",), device_peak_memory_bytes(device), scaler.skipped_steps)


def fetch_steps(steps: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[float, float]]:
    """Global losses and correct answers of several steps: the replicas' shares in one tensor, summed at once."""
    shares = torch.stack([torch.stack(column).double() for column in zip(*steps, strict=True)], dim=1)
    return sum_over_replicas(shares).tolist()


# --- First batch: for comparing implementations layer by layer ---


def save_first_batch(
    experiment: Experiment, forward: Forward, network: nn.Sequential, batch: Batch, recorder: Recorder
) -> None:
    """Writes every layer's output and every parameter's gradient on a batch, before any step."""
    world_size = experiment.config.devices
    images, labels, count = batch
    outputs, hooks = watch_activations(network, experiment.model)
    (loss_of(forward(images), labels, count) * world_size).backward()
    for hook in hooks:
        hook.remove()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}

    recorder.save_first_batch(concatenate_over_replicas(outputs), to_canonical(gradients, experiment.model))
    network.zero_grad(set_to_none=True)


# --- Start ---


def main(config: TrainConfig) -> None:
    """One run: under torchrun this process is one of its replicas, otherwise it starts them."""
    timeline = Timeline.begin(first_pid())
    config = setup_devices(config)
    if under_torchrun():
        run_replica(int(os.environ["RANK"]), config, "env://", timeline)
        return
    timeline.enter("data")
    experiment = Experiment.make(config).with_run_dir("pt")  # finds mistakes and downloads before any worker starts
    if config.dry_run:
        return
    config = experiment.config
    if config.devices == 1:
        run_replica(0, config, "", timeline, experiment)
        return
    timeline.enter("imports")  # each worker's own
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{Path(folder) / 'rendezvous'}"
        replicas = multiprocessing.spawn(
            run_replica, (config, init_method, timeline), nprocs=config.devices, join=False
        )
        try:
            while not replicas.join(grace_period=GRACE_SECONDS):
                pass
        except multiprocessing.ProcessExitedException as error:
            if error.signal_name:
                ended = describe_signal(-error.exit_code)
                raise ReplicaError(f"replica {error.error_index} was ended by {ended}") from None
            sys.exit(error.exit_code)  # it has said why


def run_replica(
    rank: int, config: TrainConfig, init_method: str, timeline: Timeline, experiment: Experiment | None = None
) -> None:
    """The whole run of one replica, in a process of its own if there are several."""
    with whole_program("python -m pt_impl", shown=rank == 0):
        timeline.enter("build")
        device = join_group(config, rank, init_method)
        timeline.enter("data")
        if under_torchrun():
            experiment = prepare_together(config, rank)
        with Recorder(
            "pt",
            "PyTorch",
            experiment or Experiment.make(config),
            device_name=device_name(device),
            timeline=timeline,
            writes=rank == 0,
            fetch=fetch_steps,
            synchronize=synchronize,
        ) as recorder:
            train(recorder.experiment, rank, device, recorder)
        wait_for_replicas()
        leave_group()


def prepare_together(config: TrainConfig, rank: int) -> Experiment:
    """Rank 0 makes the run folder and downloads before the others read; where it fails, all of them end."""
    outcome: list[TrainConfig | UserError | None] = [None]
    experiment = None
    if rank == 0:
        try:
            experiment = Experiment.make(config).with_run_dir("pt")
            outcome = [experiment.config]
        except UserError as error:
            outcome = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(outcome)
    if isinstance(outcome[0], UserError):
        raise outcome[0]
    assert outcome[0] is not None
    return experiment or Experiment.make(outcome[0])
