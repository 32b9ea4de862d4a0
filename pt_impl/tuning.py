"""The additions of `--mode tuned` in PyTorch: the same training, but faster. train.py is complete without this file."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from common.data.formats import Images, Labels
from common.experiment import Experiment
from common.platform.processor import HALF_PRECISIONS
from common.spec.options import TrainConfig
from common.spec.randomness import positions
from pt_impl.data import ArrayDataset, Batch, Prepare, ShardSampler, make_samplers, to_device
from pt_impl.train import Shares
from pt_impl.weights import statistics_kept

# --- The network ---


def tune_network(network: nn.Module, config: TrainConfig) -> nn.Module:
    """Stores kernels with channels last in memory, as images are: oneDNN's and cuDNN's convolutions use this layout.

    The kernels need it too: otherwise DistributedDataParallel warns of gradients whose strides differ from its
    buckets'. Sharded weights, and tensors that a pipeline sends, can't have this layout.
    """
    if config.strategy in ("fsdp", "pipeline"):
        return network
    return network.to(memory_format=torch.channels_last)


def compile_options(config: TrainConfig, captured: bool = False) -> dict[str, Any]:
    """Options of torch.compile. A last batch of another size is compiled separately; on a GPU a pass is one CUDA graph.

    CUDA graphs are off if gradients are accumulated, since the next pass of a graph would overwrite them. They are also
    off with fsdp, which gathers the weights anew in each pass, and if the pass is `captured`, see `CapturedPass`.
    """
    graphs = config.accelerator == "gpu" and config.accumulate_grad_batches == 1 and config.strategy != "fsdp"
    return {"dynamic": False, "mode": "reduce-overhead" if graphs and not captured else "default"}


def compile_ahead(model: nn.Module, autocast: torch.autocast, loader: "TunedLoader") -> None:
    """Compiles, during start-up, for both sizes of this rank's shards: that of a full batch and that of the last one.

    Every rank must call it, since gradients may be reduced.
    """
    for start, stop, count in loader.sampler.bounds()[[0, -1]].tolist():
        inputs = loader.blank_batch(stop - start, count).inputs
        for _ in range(3):  # CUDA graphs are captured in the second pass
            with autocast, statistics_kept(model):
                model(inputs).sum().backward()
            model.zero_grad(set_to_none=True)


# --- The pass on a GPU ---


def captures_graphs(config: TrainConfig) -> bool:
    """Whether each pass is one CUDA graph, see `CapturedPass`."""
    return config.accelerator == "gpu" and config.strategy == "single_device"


class CapturedPass:
    """`forward_backward` on one GPU as CUDA graphs, one for each size of batch: one launch, not one for each kernel.

    See "CUDA Graphs" in PyTorch's notes on CUDA semantics. A graph reads its batch from, and adds its gradients to, the
    same memory in every pass; so gradients are set to zero between steps and not freed.

    Gain on an H100: 4.3 (digits), 4.7 (MNIST), by `python -m benchmarks.limit --accelerator gpu`.

    Args:
      compute: `forward_backward` of the model.
      loader: of the training batches.
    """

    def __init__(self, compute: Callable[[Batch], Shares], model: nn.Module, loader: "TunedLoader") -> None:
        self.compute = compute
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Batch, Shares]] = {}
        for start, stop, count in loader.sampler.bounds().tolist():
            key = stop - start, count
            if key not in self.graphs:
                self.graphs[key] = self.capture(model, loader.blank_batch(*key))

    def capture(self, model: nn.Module, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Shares]:
        """The graph, the batch it reads and the shares it writes. Passes before it choose algorithms, or compile."""
        stream, side, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(stream)
        with torch.cuda.stream(side), statistics_kept(model):
            for _ in range(3):
                self.compute(batch)
        stream.wait_stream(side)
        with torch.cuda.graph(graph):
            shares = self.compute(batch)
        return graph, batch, shares

    def __call__(self, batch: Batch) -> Shares:
        captured = self.graphs.get((len(batch.labels), batch.count))
        if captured is None:  # --max-steps may end within accumulated batches
            return self.compute(batch)
        graph, own, (loss, correct) = captured
        for memory, part in zip(_tensors(own), _tensors(batch), strict=True):
            memory.copy_(part)
        graph.replay()
        return loss.clone(), correct.clone()


def _tensors(batch: Batch) -> list[torch.Tensor]:
    return [*(batch.inputs if isinstance(batch.inputs, tuple) else [batch.inputs]), batch.labels]


# --- The optimizer ---


def optimizer_options(config: TrainConfig) -> dict[str, Any]:
    """On a GPU, a fused optimizer: one kernel for all parameters. With loss scaling it skips steps without the host.

    PyTorch has no fused optimizer for the other rules, and that of SGD refuses sharded weights. In mixed precision
    Lightning refuses to clip gradients for a fused optimizer.
    """
    has_fused = config.optimizer in ("adam", "adamw") or (config.optimizer == "sgd" and config.strategy != "fsdp")
    refused = config.gradient_clip_val is not None and config.precision in HALF_PRECISIONS
    fused = "cpu" not in config.stages_on and has_fused and not refused
    return {"fused": True} if fused else {}


# --- The data: images stay as they are stored until they are on the device, and are normalised there ---


class TunedLoader:
    """Batches that are prepared on the device, and keep the layout of the stored images: channels last, no copy."""

    batch_sampler = None  # as in a DataLoader whose sampler gives whole batches; Lightning reads it

    def __init__(self, images: Images, sampler: ShardSampler, prepare: Prepare) -> None:
        self.sampler, self.prepare, self.device = sampler, prepare, prepare.shift.device
        self.blank_image = torch.zeros_like(torch.from_numpy(images[:1].copy()), device=self.device)

    def __len__(self) -> int:
        return len(self.sampler)

    def blank_batch(self, size: int, count: int) -> Batch:
        """A batch on the device to compile or to capture a pass with; `count`: see `Batch`."""
        zeros = torch.zeros(size, dtype=torch.int64, device=self.device)
        inputs = self.prepare(self.blank_image.repeat(size, 1, 1, 1), zeros)
        return Batch(inputs, zeros.clone(), count)  # a network with dropout keeps its visits


class ResidentLoader(TunedLoader):
    """A data set in the device's memory: one gather for each batch, without a DataLoader."""

    def __init__(self, images: Images, labels: Labels, sampler: ShardSampler, prepare: Prepare) -> None:
        super().__init__(images, sampler, prepare)
        self.images, self.labels = torch.tensor(images).to(self.device), torch.from_numpy(labels).to(self.device)

    def __iter__(self) -> Iterator[Batch]:
        visits = self.sampler.visits()
        if self.device.type == "cuda":
            visits = visits.pin_memory()  # else the copy would wait for the steps before it
        visits = visits.to(self.device, non_blocking=True)
        order = positions(visits)
        for start, stop, count in self.sampler.bounds().tolist():
            indices = order[start:stop]
            inputs = self.prepare(self.images[indices], visits[start:stop])
            yield Batch(inputs, self.labels[indices], count)


class StreamedLoader(TunedLoader):
    """A DataLoader whose batches are copied as stored (uint8: a quarter of the bytes)."""

    def __init__(self, images: Images, labels: Labels, sampler: ShardSampler, prepare: Prepare) -> None:
        super().__init__(images, sampler, prepare)
        data, pinned = ArrayDataset(images, labels, lambda images, visits: (images, visits)), self.device.type == "cuda"
        self.loader = DataLoader(data, sampler=sampler, batch_size=None, pin_memory=pinned)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            batch = to_device(batch, self.device)
            yield batch._replace(inputs=self.prepare(*batch.inputs))


def make_loaders(experiment: Experiment, rank: int, device: torch.device) -> tuple[TunedLoader, TunedLoader]:
    """Replaces pt_impl.data.make_loaders; the batches of these loaders are on the device."""
    dataset, (train_sampler, test_sampler) = experiment.dataset, make_samplers(experiment, rank)
    prepare = functools.partial(Prepare, experiment, rank=rank, device=device, memory_format=torch.channels_last)
    kind = ResidentLoader if experiment.is_resident else StreamedLoader
    return (
        kind(dataset.train_images, dataset.train_labels, train_sampler, prepare(experiment.augmentation)),
        kind(dataset.test_images, dataset.test_labels, test_sampler, prepare()),
    )
