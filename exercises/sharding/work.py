"""Sharding by hand: each rank keeps its share of the optimizer's state, then of the parameters and gradients too.

torchrun --standalone --nproc-per-node 2 sharding.py
torchrun --standalone --nproc-per-node 2 sharding.py trace.json   writes the trace of a step, too
"""

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.profiler import ProfilerActivity, profile, record_function

from exercises.data import load_examples

WIDTHS = (64, 33, 21, 10)
BATCH_SIZE, STEPS, LEARNING_RATE, MOMENTUM = 65, 20, 0.1, 0.9
REPLICATED, OPTIMIZER_SHARDED, ALL_SHARDED = "replicated", "optimizer sharded", "all sharded"
WAYS = (REPLICATED, OPTIMIZER_SHARDED, ALL_SHARDED)


def make_network() -> nn.Sequential:
    """Images (B, 64) to logits (B, 10), in float64: rounding is then far smaller than any mistake."""
    torch.manual_seed(0)
    first, second, third = (nn.Linear(*sizes, dtype=torch.float64) for sizes in pairwise(WIDTHS))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third)


# --- Shares of a flat tensor ---
def padded(values: Tensor, parts: int) -> Tensor:
    """A flat tensor (N,) with zeros at its end, as few as make its length a multiple of `parts`."""
    # Gap 1
    ### BEGIN SOLUTION
    return F.pad(values, (0, -len(values) % parts))
    ### END SOLUTION


def share_of(values: Tensor) -> Tensor:
    """A copy of this rank's share, (ceil(N / world_size),), of a flat tensor (N,) that all ranks have."""
    return padded(values, dist.get_world_size()).chunk(dist.get_world_size())[dist.get_rank()].clone()


def summed_share(values: Tensor) -> Tensor:
    """This rank's share, (ceil(N / world_size),), of the sum over all ranks of a flat tensor (N,)."""
    # Gap 2: a reduce-scatter: no rank gets the whole sum.
    ### BEGIN SOLUTION
    whole = padded(values, dist.get_world_size())
    share = whole.new_empty(len(whole) // dist.get_world_size())
    dist.reduce_scatter_tensor(share, whole)
    return share
    ### END SOLUTION


# --- Replicated, as with DDP, and the same with a sharded optimizer (ZeRO stage 1) ---
class ReplicatedSGD(torch.optim.SGD):
    """torch.optim.SGD on the sum of all ranks' gradients. Every rank keeps the velocity of all parameters."""

    def step(self) -> None:
        parameters = self.param_groups[0]["params"]
        gradients = parameters_to_vector(parameter.grad for parameter in parameters)
        dist.all_reduce(gradients)
        vector_to_parameters(gradients, [parameter.grad for parameter in parameters])
        super().step()


class ShardedSGD:
    """Makes the steps of ReplicatedSGD. Each rank keeps only its share of the velocity, which is zero at first.

    velocity = momentum * velocity + gradient, and then parameter = parameter - lr * velocity.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        self.parameters, self.lr, self.momentum = list(parameters), lr, momentum
        self.velocity: Tensor | None = None  # this rank's share; None before the first step

    @torch.no_grad()
    def step(self) -> None:
        gradients = parameters_to_vector(parameter.grad for parameter in self.parameters)
        weights = parameters_to_vector(self.parameters)
        # Gap 3: sum the gradients, update this rank's share of the velocity and of the weights, then gather the weights
        # of all ranks into self.parameters (vector_to_parameters, which ignores padding at the end).
        ### BEGIN SOLUTION
        gradient, share = summed_share(gradients), share_of(weights)
        self.velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient
        share -= self.lr * self.velocity
        gathered = share.new_empty(len(share) * dist.get_world_size())
        dist.all_gather_into_tensor(gathered, share)
        vector_to_parameters(gathered, self.parameters)
        ### END SOLUTION


# --- Parameters, gradients and optimizer state sharded (ZeRO stage 3, FSDP) ---
class ShardedLinear(nn.Module):
    """A linear layer of which each rank keeps only its share. Weight and bias are one flat tensor, in this order."""

    def __init__(self, layer: nn.Linear, number: int) -> None:
        super().__init__()
        self.shape, self.number = layer.weight.shape, number
        # The only parameter: this rank's share, (ceil(N / world_size),), of the N numbers in weight and bias.
        self.share = nn.Parameter(share_of(parameters_to_vector(layer.parameters()).detach()))
        # While a gather is under way: its result, (world_size * len(share),), and its handle.
        self.whole: Tensor | None = None
        self.work: dist.Work | None = None

    def start_gather(self) -> None:
        """Starts to gather the shares of all ranks, unless a gather is under way, and returns without waiting."""
        if self.work is None:
            with record_function(f"start {self.number}"):
                # Gap 4: set self.whole and self.work. Gather self.share.detach(), so that autograd takes no part.
                ### BEGIN SOLUTION
                self.whole = self.share.new_empty(len(self.share) * dist.get_world_size())
                self.work = dist.all_gather_into_tensor(self.whole, self.share.detach(), async_op=True)
                ### END SOLUTION

    def finish_gather(self) -> tuple[Tensor, Tensor]:
        """Waits for the gather, or makes one if none is under way: weight (outputs, inputs) and bias (outputs,).

        The layer keeps no reference to them: their memory is free as soon as the caller has none either.
        """
        self.start_gather()
        with record_function(f"wait {self.number}"):
            self.work.wait()
        whole, self.whole, self.work = self.whole, None, None
        weight, bias = whole[: self.shape.numel() + self.shape[0]].split([self.shape.numel(), self.shape[0]])
        return weight.view(self.shape), bias


class GatheredLinear(torch.autograd.Function):
    """Layer `number` of `layers`, from (B, inputs) to (B, outputs). The gradients are written out, without autograd."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, share: nn.Parameter, layers: list[ShardedLinear], number: int) -> Tensor:
        context.layers, context.number = layers, number
        # Gap 5: get this layer's weights, start the gather of the next layer if there is one, then compute. Save for
        # backward() what it needs and can't gather again (context.save_for_backward).
        ### BEGIN SOLUTION
        weight, bias = layers[number].finish_gather()
        if number + 1 < len(layers):
            layers[number + 1].start_gather()
        context.save_for_backward(inputs)
        return F.linear(inputs, weight, bias)
        ### END SOLUTION

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Takes the gradient of the output, (B, outputs); returns those of inputs and share, and None twice."""
        layers, number = context.layers, context.number
        # Gap 6: gather as in forward(); which layer is the next one now? This rank's gradient of the weight is
        # gradient.T @ inputs, and that of the bias is the sum of the gradient's rows. Both are summed over the ranks.
        ### BEGIN SOLUTION
        weight, _ = layers[number].finish_gather()
        if number > 0:
            layers[number - 1].start_gather()
        inputs = context.saved_tensors[0]
        share = summed_share(torch.cat([(gradient.T @ inputs).flatten(), gradient.sum(dim=0)]))
        return gradient @ weight, share, None, None
        ### END SOLUTION


class ShardedNetwork(nn.Module):
    """Linear layers with tanh between them. Of each layer each rank keeps its share."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self.layers = nn.ModuleList(ShardedLinear(layer, number) for number, layer in enumerate(linear))

    def forward(self, values: Tensor) -> Tensor:
        layers = list(self.layers)
        for number, layer in enumerate(layers):
            values = GatheredLinear.apply(torch.tanh(values) if number else values, layer.share, layers, number)
        return values


def annotated(network: nn.Sequential) -> nn.Module:
    """The network, sharded by PyTorch. As in ShardedNetwork each linear layer is gathered and freed by itself, and the
    gradients are summed over the ranks. (By default `fully_shard` divides their sum by the number of ranks.)"""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    # Gap 7: fully_shard(module, mesh=mesh) changes a module in place, and returns it. It then has a method
    # set_gradient_divide_factor, which holds for the parameters that this call has sharded. The outermost module that
    # is changed keeps its parameters whole after the forward pass. So change the layers first, then the network.
    ### BEGIN SOLUTION
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh).set_gradient_divide_factor(1.0)
    return fully_shard(network, mesh=mesh)
    ### END SOLUTION


# --- What it costs ---
class Costs(NamedTuple):
    """The bytes that each rank holds at the end of a step, with padding, and sends in a step."""

    parameters: int
    gradients: int
    velocity: int
    sent: float


def ring_bytes(num_bytes: int, world_size: int) -> float:
    """What a rank sends in a reduce-scatter or an all-gather of `num_bytes` over a ring (Patarasuk and Yuan, 2009)."""
    return num_bytes * (world_size - 1) / world_size


def costs(way: str, sizes: Sequence[int], world_size: int, itemsize: int) -> Costs:
    """What each rank holds and sends, in one of WAYS.

    `sizes`: of each layer, the numbers in weight and bias; `itemsize`: the bytes of a number.
    """
    # Gap 8: which tensors are whole, and which are shares? Is padding added once, or in each layer? Which collective
    # operations does a step make? (All layers are gathered twice, the first and the last one too.)
    ### BEGIN SOLUTION
    whole = sum(sizes) * itemsize
    share = -(-sum(sizes) // world_size) * itemsize
    shares = sum(-(-size // world_size) for size in sizes) * itemsize
    if way == REPLICATED:
        return Costs(whole, whole, whole, 2 * ring_bytes(whole, world_size))
    if way == OPTIMIZER_SHARDED:
        return Costs(whole, whole, share, 2 * ring_bytes(share * world_size, world_size))
    return Costs(shares, shares, shares, 3 * ring_bytes(shares * world_size, world_size))
    ### END SOLUTION


# --- The program ---
def make_training(way: str, network: nn.Sequential) -> tuple[nn.Module, Any]:
    """The model and its optimizer, in one of WAYS or by "fully_shard". If the parameters are shares, an ordinary
    optimizer has only shares, too."""
    kinds = {REPLICATED: ReplicatedSGD, OPTIMIZER_SHARDED: ShardedSGD}
    makers = {ALL_SHARDED: ShardedNetwork, "fully_shard": annotated}
    model = makers[way](network) if way in makers else network
    return model, kinds.get(way, torch.optim.SGD)(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def train_step(model: nn.Module, optimizer: Any, images: Tensor, labels: Tensor, batch_size: int) -> Tensor:
    """A step on this rank's images (B, features) and labels (B,). `batch_size`: the B of all ranks, added up.

    Returns this rank's sum of losses, divided by `batch_size`. Over all ranks these add up to the mean loss.
    """
    model.zero_grad()
    loss = F.cross_entropy(model(images), labels, reduction="sum") / batch_size
    loss.backward()
    optimizer.step()
    return loss.detach()


def held(model: nn.Module, optimizer: Any) -> list[int]:
    """The bytes of parameters, gradients and velocity in this rank, after a step."""
    parameters = list(model.parameters())
    if isinstance(optimizer, ShardedSGD):
        velocity = [optimizer.velocity]
    else:
        velocity = [state["momentum_buffer"] for state in optimizer.state.values()]
    groups = (parameters, [parameter.grad for parameter in parameters], velocity)
    # fully_shard makes DTensors; to_local() is this rank's share.
    return [sum((one.to_local() if hasattr(one, "to_local") else one).nbytes for one in group) for group in groups]


def main() -> None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        raise SystemExit("start it with torchrun --standalone --nproc-per-node 2 sharding.py")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, data = dist.get_rank(), load_examples()
    images = torch.from_numpy(data.train_images).flatten(1).double().split(BATCH_SIZE)
    labels = torch.from_numpy(data.train_labels).split(BATCH_SIZE)
    batches = [[part.tensor_split(world_size)[rank] for part in batch] for batch in zip(images, labels, strict=True)]
    sizes = [sum(one.numel() for one in layer.parameters()) for layer in make_network()[::2]]
    for way in (*WAYS, "fully_shard"):
        model, optimizer = make_training(way, make_network())
        for mine in batches[:STEPS]:
            loss = train_step(model, optimizer, *mine, BATCH_SIZE)
        dist.all_reduce(loss)
        everyone: list[Any] = [None] * world_size
        dist.all_gather_object(everyone, held(model, optimizer))
        if rank == 0:
            print(f"{way}: loss {loss:.12f}")
            for number, num_bytes in enumerate(everyone):
                print("  rank {} holds {:,} + {:,} + {:,} bytes".format(number, *num_bytes))
            if way in WAYS:
                counted = costs(way, sizes, world_size, 8)
                print("  by arithmetic {:,} + {:,} + {:,} bytes, and {:,.0f} sent in a step".format(*counted))

    model, optimizer = make_training(ALL_SHARDED, make_network())
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train_step(model, optimizer, *batches[0], BATCH_SIZE)
    if rank == 0:
        events = sorted(profiler.events(), key=lambda event: event.time_range.start)
        names = ["product" if event.name in ("aten::addmm", "aten::mm") else event.name for event in events]
        print("a step:", ", ".join(name for name in names if name.split()[0] in ("start", "wait", "product")))
        for path in sys.argv[1:]:
            profiler.export_chrome_trace(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
