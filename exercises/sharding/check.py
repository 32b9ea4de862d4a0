"""Checks of sharding."""

import functools
import inspect
import time
from collections.abc import Iterable
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from exercises.checking import check, expect, largest_difference, load_factor
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SHAPES = [(7, 4), (6, 7), (3, 6)]  # of the weights, by layer
SIZES = [35, 48, 21]  # numbers in weight and bias: not all are divisible by 2
ROWS = (slice(0, 9), slice(9, 14), slice(14, 22))  # of the whole batch, by rank
STEPS, SECONDS = 3, 8


def make_network() -> nn.Sequential:
    torch.manual_seed(1)
    first, second, third = (nn.Linear(inputs, outputs, dtype=torch.float64) for outputs, inputs in SHAPES)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), third)


def make_batch(rows: slice, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(22, 4, generator=generator, dtype=torch.float64)
    return images[rows], torch.randint(3, (22,), generator=generator)[rows]


def layers_of(parameters: Any) -> list[torch.Tensor]:
    """Weight and bias of each layer, or their gradients, as a flat tensor."""
    pairs = zip(parameters[::2], parameters[1::2], strict=True)
    return [torch.cat([weight.detach().flatten(), bias.detach()]) for weight, bias in pairs]


def one_process(steps: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Trains without sharding on the rows of two ranks: the layers, and their gradients in the last step."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        images, labels = make_batch(slice(ROWS[1].stop), step)
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return layers_of(list(network.parameters())), layers_of([one.grad for one in network.parameters()])


def train(work: ModuleType, model: nn.Module, optimizer: Any, steps: int = STEPS) -> None:
    for step in range(steps):
        work.train_step(model, optimizer, *make_batch(ROWS[dist.get_rank()], step), ROWS[1].stop)


def start(work: ModuleType, way: str) -> tuple[nn.Module, Any]:
    dist.init_process_group("gloo")
    return work.make_training(way, make_network())


def expect_equal(what: str, found: Any, wanted: Iterable[torch.Tensor], unit: str = "layer") -> None:
    """Expects numbers that differ by rounding errors of float64 only; else names the one that is farthest away."""
    for index, (one, right) in enumerate(zip(found, wanted, strict=True)):
        if largest_difference([one], [right]) > 1e-12:
            numbers = np.array(right.tolist())
            place = abs(np.array(one) - numbers).argmax()
            told = f"{what}, {unit} {index}, number {place}"
            expect(False, f"{told}: yours {one[place]:.6g}, wanted {numbers[place]:.6g}")


def expect_shares(what: str, ranks: Any, wanted: list[torch.Tensor]) -> None:
    """Expects that the shares of two ranks are halves of the layers. `ranks`: for each rank its share of each layer."""
    for rank, shares in enumerate(ranks):
        lengths, right = [len(share or []) for share in shares], [-(-size // 2) for size in SIZES]
        expect(lengths == right, f"{what}, rank {rank}, numbers by layer: yours {lengths}, wanted {right}")
    together = [sum(shares, []) for shares in zip(*ranks, strict=True)]
    expect_equal(what, [layer[:size] for layer, size in zip(together, SIZES, strict=True)], wanted)


# --- Shares and sums ---

PADDED = ((7, 2, 8), (8, 2, 8), (1, 3, 3), (5, 4, 8), (9, 1, 9), (10, 4, 12), (12, 12, 12))


@check(
    "a tensor is padded to the next multiple, with zeros at its end",
    "which multiple of `parts` comes next after 7, and after 8?",
)
def padding(work: ModuleType) -> object:
    return [work.padded(torch.arange(1.0, length + 1), parts) for length, parts, _ in PADDED]


@padding.judge
def _(seen: Any) -> None:
    for (length, parts, wanted), found in zip(PADDED, seen, strict=True):
        right = [float(number) if number <= length else 0.0 for number in range(1, wanted + 1)]
        expect(found == right, f"{length} numbers for {parts} part(s): yours {found}, wanted {right}")


@check("each rank gets its share of the sum", "how long is a share? is it a sum or a mean?", ranks=3, seconds=SECONDS)
def scattered(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    return [work.summed_share(torch.arange(1.0, length + 1) * 10.0 ** dist.get_rank()) for length in (5, 6, 1)]


@scattered.judge
def _(*ranks: Any) -> None:
    wanted = ([[111, 222], [111, 222], [111]], [[333, 444], [333, 444], [0]], [[555, 0], [555, 666], [0]])
    for rank, (found, right) in enumerate(zip(ranks, wanted, strict=True)):
        expect(found == right, f"rank {rank}, shares of the sums of 5, 6 and 1 numbers: yours {found}, wanted {right}")


# --- The optimizer's state sharded, then everything ---


@check(
    "a sharded optimizer: the weights of one process, and a share of the velocity in each rank",
    "who updates which weights, and how do the others get them? what must last from step to step?",
    ranks=2,
    seconds=SECONDS,
)
def sharded_optimizer(work: ModuleType) -> object:
    model, optimizer = start(work, work.OPTIMIZER_SHARDED)
    train(work, model, optimizer)
    kept = [leaf for leaf in tree_leaves(vars(optimizer)) if isinstance(leaf, torch.Tensor)]
    kept_bytes = sum(one.untyped_storage().nbytes() for one in kept if not isinstance(one, nn.Parameter))
    return layers_of(list(model.parameters())), kept_bytes


@sharded_optimizer.judge
def _(*ranks: Any) -> None:
    for rank, (layers, kept) in enumerate(ranks):
        expect_equal(f"weights after {STEPS} steps, rank {rank}", layers, one_process(STEPS)[0])
        expect(kept == 52 * 8, f"bytes that the optimizer of rank {rank} keeps: yours {kept}, wanted {52 * 8}")


@check("all sharded: the outputs of one process", "are all shares there, in order?", ranks=3, seconds=SECONDS)
def forward_pass(work: ModuleType) -> object:
    model, _ = start(work, work.ALL_SHARDED)
    return model(make_batch(ROWS[dist.get_rank()])[0])


@forward_pass.judge
def _(*ranks: Any) -> None:
    for rank, found in enumerate(ranks):
        expect_equal(f"outputs of rank {rank}", found, make_network()(make_batch(ROWS[rank])[0]), unit="example")


@check(
    "all sharded: the gradients of one process, and its weights after several steps",
    "train_step has divided the loss by all examples. in which order are weight and bias in a share?",
    ranks=2,
    seconds=SECONDS,
)
def all_sharded(work: ModuleType) -> object:
    model, optimizer = start(work, work.ALL_SHARDED)
    train(work, model, optimizer, steps=1)
    gradients = [layer.share.grad for layer in model.layers]
    model, optimizer = work.make_training(work.ALL_SHARDED, make_network())
    train(work, model, optimizer)
    return gradients, [layer.share.detach() for layer in model.layers]


@all_sharded.judge
def _(*ranks: Any) -> None:
    expect_shares("gradients", [gradients for gradients, _ in ranks], one_process(1)[1])
    expect_shares(f"weights after {STEPS} steps", [weights for _, weights in ranks], one_process(STEPS)[0])


# --- What a rank sends and holds, and when ---

# Collective operations, by how many times a ring sends (ranks - 1) / ranks of the whole tensor from each rank.
CALLS = {"all_reduce": 2, "broadcast": 1, "reduce": 1, "reduce_scatter": 1, "reduce_scatter_tensor": 1}
CALLS |= {"reduce_scatter_single": 1, "all_gather": 1, "all_gather_into_tensor": 1, "all_gather_single": 1}


class Watch(TorchDispatchMode):
    """Notes the gathers, waits and matrix products of this rank, by layer and in order; what it sends and holds."""

    def __init__(self, work: ModuleType) -> None:
        super().__init__()
        self.sent, self.most, self.patience, self.patches = 0.0, 0, 0.5 * load_factor(), ExitStack()
        self.events: list[str] = []
        self.gathered: list[StorageWeakRef] = []  # what gathers fill
        self.copies: list[StorageWeakRef] = []  # results of a weight's shape
        for module in (work, dist):  # in `work` if it has `from torch.distributed import ...`
            for name in CALLS:
                if (real := getattr(dist, name, None)) and getattr(module, name, None) is real:
                    self.patches.enter_context(mock.patch.object(module, name, functools.partial(self.call, real)))

    def call(self, real: Any, *arguments: Any, **options: Any) -> Any:
        name, ranks = real.__name__, dist.get_world_size()
        tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)]
        share = min(tensor.numel() for tensor in tensors)
        parts = ranks if "gather" in name or "scatter" in name else 1
        self.sent += CALLS[name] * parts * share * tensors[0].itemsize * (ranks - 1) / ranks
        layers = [-(-size // ranks) for size in SIZES]
        if "gather" not in name or share not in layers:
            return real(*arguments, **options)
        self.events.append(f"start {layers.index(share)}")
        self.most = max(self.most, self.in_memory(self.gathered, 1))
        given = inspect.signature(real).bind(*arguments, **options).arguments
        outputs = tree_leaves(given.get("output_tensor", given.get("output", given.get("tensor_list"))))
        self.gathered += [StorageWeakRef(tensor.untyped_storage()) for tensor in outputs]
        handle, wait = real(*arguments, **options), f"wait {layers.index(share)}"
        if handle is None:  # the call has waited
            self.events.append(wait)
            return None
        return SimpleNamespace(
            wait=lambda: self.events.append(wait) or handle.wait(), is_completed=lambda: handle.is_completed()
        )

    def left(self) -> int:
        """How many whole layers are in memory, if any were gathered."""
        return self.in_memory(self.gathered + self.copies, 0) if self.gathered else 0

    def in_memory(self, references: list[StorageWeakRef], wanted: int) -> int:
        """How many of the tensors are in memory. gloo's threads may free theirs late, so it looks several times."""
        deadline = time.monotonic() + self.patience
        while (found := len({one.cdata for one in references if bytes_of(one)})) > wanted:
            if time.monotonic() > deadline:
                self.patience = 0.0  # they are kept
                break
            time.sleep(0.01)
        return found

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor) and {tuple(result.shape), tuple(result.shape[::-1])} & set(SHAPES):
            self.copies.append(StorageWeakRef(result.untyped_storage()))
        if function.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "linear"):
            shapes = [tuple(one.shape[-2:]) for one in (*arguments, result) if isinstance(one, torch.Tensor)]
            found = [layer for layer, shape in enumerate(SHAPES) if shape in shapes or shape[::-1] in shapes]
            self.events += [f"compute {layer}" for layer in found]
        return result


def bytes_of(reference: StorageWeakRef) -> int:
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage.nbytes() if storage else 0


def watched(work: ModuleType, model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """A step of two ranks: the events of each pass, the whole layers in memory after it and at most, the bytes sent."""
    images, labels = make_batch(ROWS[dist.get_rank()])
    watch = Watch(work)
    with watch.patches, watch:
        loss = F.cross_entropy(model(images), labels, reduction="sum") / ROWS[1].stop
        forward, left = watch.events.copy(), watch.left()
        loss.backward()
        passes = {"forward": forward, "backward": watch.events[len(forward) :]}
        lefts = {"forward": left, "backward": watch.left()}
        optimizer.step()
    return {"passes": passes, "left": lefts, "most": watch.most + 1, "sent": watch.sent}


@check(
    "gathered weights are freed: two layers are whole at most, and none after a pass",
    "what refers to the gathered weights when a layer is done? what does backward() need to keep?",
    ranks=2,
    seconds=SECONDS,
)
def freed(work: ModuleType) -> object:
    return watched(work, *start(work, work.ALL_SHARDED))


@freed.judge
def _(*ranks: Any) -> None:
    for rank, seen in enumerate(ranks):
        for name, left in seen["left"].items():
            gathers = sum(event.startswith("start") for event in seen["passes"][name])
            expect(gathers > 0, f"rank {rank}, gathers in the {name} pass: yours {gathers}, wanted 3")
            expect(left == 0, f"rank {rank}, whole layers after the {name} pass: yours {left}, wanted 0")
        expect(seen["most"] <= 2, f"rank {rank}, whole layers at a time: yours {seen['most']}, wanted 2 at most")


@check(
    "the next layer's gather starts before this layer computes, in both passes",
    "which line starts it, and which one waits? in which order do the layers come in backward()?",
    ranks=2,
    seconds=SECONDS,
)
def overlap(work: ModuleType) -> object:
    return watched(work, *start(work, work.ALL_SHARDED))


@overlap.judge
def _(*ranks: Any) -> None:
    for rank, seen in enumerate(ranks):
        for name, order in (("forward", (0, 1, 2)), ("backward", (2, 1, 0))):
            events = seen["passes"][name]
            told = f"rank {rank}, {name}: yours {', '.join(events)}; wanted"
            for event in (f"{kind} {layer}" for layer in order for kind in ("start", "wait", "compute")):
                expect(event in events, f"{told} {event} too")
            at = {event: number for number, event in reversed(list(enumerate(events)))}  # where it is first
            for layer in order:
                last = len(events) - 1 - events[::-1].index(f"compute {layer}")
                expect(at[f"wait {layer}"] < last, f"{told} wait {layer} before compute {layer}")
            for this, following in zip(order, order[1:], strict=False):
                computes = at[f"compute {this}"]
                expect(at[f"start {following}"] < computes, f"{told} start {following} before compute {this}")
                expect(at[f"wait {following}"] > computes, f"{told} wait {following} after compute {this}")


@check(
    "fully_shard: the training of one process, and each layer is gathered by itself",
    "do you call it on each layer, and then on the network? by what are the sums of the gradients divided?",
    ranks=2,
)
def annotation(work: ModuleType) -> object:
    dist.init_process_group("gloo")
    network, whole = make_network(), []
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer in linear:  # a parameter of which a rank has a share is a DTensor
        layer.register_forward_hook(lambda *_: whole.append([not hasattr(one.weight, "to_local") for one in linear]))
    model = work.annotated(network)
    train(work, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    parameters = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in model.parameters()]
    return layers_of(parameters), whole[:3]


@annotation.judge
def _(*ranks: Any) -> None:
    for rank, (layers, whole) in enumerate(ranks):
        for layer, now in enumerate(whole):
            done = [other for other in range(layer) if now[other]]
            expect(not done, f"rank {rank}, layers before layer {layer} that are still whole: yours {done}, wanted []")
        expect_equal(f"weights after {STEPS} steps, rank {rank}", layers, one_process(STEPS)[0])


# --- Arithmetic ---

CASES = [(sizes, ranks, 8) for sizes in (SIZES, [8], [3, 3, 3, 3], [1, 1000, 7]) for ranks in (2, 1, 4, 64)]
CASES += [(SIZES, 2, 2)]


def right_costs(way: str, sizes: list[int], ranks: int, itemsize: int) -> list[float]:
    whole, share = sum(sizes) * itemsize, -(-sum(sizes) // ranks) * itemsize
    shares = sum(-(-size // ranks) for size in sizes) * itemsize
    return {
        "replicated": [whole, whole, whole, 2 * whole * (ranks - 1) / ranks],
        "optimizer sharded": [whole, whole, share, 2 * share * (ranks - 1)],
        "all sharded": [shares, shares, shares, 3 * shares * (ranks - 1)],
    }[way]


@check(
    "the bytes that a rank holds and sends, by arithmetic, in its tensors and in its calls",
    "which tensors are whole, and which are shares? where is padding? which calls does a step make?",
    ranks=2,
    seconds=SECONDS,
)
def arithmetic(work: ModuleType) -> object:
    seen = {way: [list(work.costs(way, *case)) for case in CASES] for way in work.WAYS}
    dist.init_process_group("gloo")
    for way in work.WAYS:
        model, optimizer = work.make_training(way, make_network())
        sent = watched(work, model, optimizer)["sent"]
        seen[way].append([*work.held(model, optimizer), sent])
    return seen


@arithmetic.judge
def _(*ranks: Any) -> None:
    for rank, seen in enumerate(ranks):
        for way, costs in seen.items():
            told = [
                f"layers of {sizes} numbers of {itemsize} bytes, {count} rank(s)" for sizes, count, itemsize in CASES
            ]
            cases = zip([*told, f"tensors and calls of rank {rank}"], costs, [*CASES, CASES[0]], strict=True)
            for where, found, case in cases:
                names = zip(
                    ("parameters", "gradients", "velocity", "sent"), found, right_costs(way, *case), strict=True
                )
                for name, yours, right in names:
                    expect(
                        abs(yours - right) < 1e-6, f"{way}, {where}: {name}: yours {yours:g} bytes, wanted {right:g}"
                    )
