"""How long a step of data-parallel training takes: a model with four numbers of the machines.

A replica computes its share of the batch, and the gradients are added over all replicas by a ring:

    all-reduce of S bytes over N replicas = 2 (N - 1) (latency + S / N / bandwidth)

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"; each replica
sends 2 (N - 1) messages of S / N bytes. gloo, PyTorch's library on CPUs, does it in this way, and so does NCCL on GPUs
with large messages.

Gradients are sent in buckets while the backward pass goes on, as DistributedDataParallel does (Li et al. 2020, "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training"): a bucket starts when its gradients are there and the
one before has been sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

# DistributedDataParallel's own: the first bucket is smaller, so that sending begins early.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
BACKWARD_SHARE = 2 / 3  # of a step's computation: each product of the forward pass has two in the backward pass


@dataclass(frozen=True)
class Network:
    """What connects replicas: seconds that a message takes at least, and bytes that each one sends in a second."""

    latency_seconds: float
    bytes_per_second: float

    def all_reduce_seconds(self, num_bytes: float, replicas: int) -> float:
        return 2 * (replicas - 1) * (self.latency_seconds + num_bytes / replicas / self.bytes_per_second)

    @classmethod
    def fit(cls, measured: Sequence["AllReduce"]) -> "Network":
        """The one whose relative errors are smallest: the sum of their logarithms' amounts, since some are outliers."""
        seconds = np.array([one.seconds for one in measured])
        messages = np.array([2 * (one.replicas - 1) for one in measured])
        sent = messages / [one.replicas for one in measured] * [one.num_bytes for one in measured]

        def error(logarithms: NDArray[np.float64]) -> float:
            latency, per_byte = np.exp(logarithms)
            return float(np.abs(np.log((messages * latency + sent * per_byte) / seconds)).sum())

        start = np.log([float(np.min(seconds / messages)), float(np.min(seconds / sent))])
        latency, per_byte = np.exp(minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-6}).x)
        return cls(float(latency), float(1 / per_byte))


@dataclass(frozen=True)
class AllReduce:
    """One that was measured."""

    replicas: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class Computation:
    """Of one replica without others: seconds of a step whatever its examples, and seconds for each of these."""

    step_seconds: float
    example_seconds: float

    def seconds(self, examples: float) -> float:
        return self.step_seconds + examples * self.example_seconds

    @classmethod
    def fit(cls, small: tuple[int, float], large: tuple[int, float]) -> "Computation":
        """From the seconds of a step with two numbers of examples."""
        per_example = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - small[0] * per_example), per_example)


def step_seconds(
    computation: Computation, examples: float, gradient_bytes: float, replicas: int, network: Network
) -> float:
    """Of one step.

    Args:
      examples: of each replica.
      gradient_bytes: of all weights.
    """
    computing = computation.seconds(examples)
    if replicas == 1:
        return computing
    sent = ready = 0.0
    for bucket in buckets(gradient_bytes):
        ready += bucket
        there = computing * (1 - BACKWARD_SHARE * (1 - ready / gradient_bytes))
        sent = max(sent, there) + network.all_reduce_seconds(bucket, replicas)
    return sent


def buckets(gradient_bytes: float) -> list[float]:
    """Bytes of each."""
    first = min(FIRST_BUCKET_BYTES, gradient_bytes)
    rest = gradient_bytes - first
    whole = int(rest // BUCKET_BYTES)
    return [one for one in (first, *[BUCKET_BYTES] * whole, rest - whole * BUCKET_BYTES) if one]


def efficiency(
    computation: Computation, examples: float, gradient_bytes: float, replicas: int, network: Network, strong: bool
) -> float:
    """Speed of all replicas as a share of that many times one's.

    Args:
      examples: of one replica alone; with `strong` those of all together, so that each has its share.
    """
    share = examples / replicas if strong else examples
    alone = examples / computation.seconds(examples)
    together = share * replicas / step_seconds(computation, share, gradient_bytes, replicas, network)
    return together / replicas / alone
