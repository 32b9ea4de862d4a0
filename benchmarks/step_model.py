"""A model of the time of a step of data-parallel training, with four numbers of the machines.

A replica computes its share of the batch, and the gradients are added over all replicas by a ring:

    all-reduce of S bytes over N replicas = 2 (N - 1) (latency + S / N / bandwidth)

Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"; each replica
sends 2 (N - 1) messages of S / N bytes. gloo, PyTorch's library on CPUs, uses this algorithm; NCCL on GPUs uses it for
large messages.

Gradients are sent in buckets during the backward pass, as DistributedDataParallel does (Li et al. 2020, "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training"). The sending of a bucket starts when its gradients are
computed and the previous bucket has been sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

# DistributedDataParallel's defaults: the first bucket is smaller, so that sending begins early.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
BACKWARD_SHARE = 2 / 3  # of a step's computation: each product of the forward pass has two in the backward pass


@dataclass(frozen=True)
class Network:
    """The network between replicas: the least seconds of a message, and the bytes that a replica sends in a second."""

    latency_seconds: float
    bytes_per_second: float

    def all_reduce_seconds(self, num_bytes: float, replicas: int) -> float:
        return 2 * (replicas - 1) * (self.latency_seconds + num_bytes / replicas / self.bytes_per_second)

    @classmethod
    def fit(cls, measured: Sequence["AllReduce"]) -> "Network":
        """The network with the smallest sum of |log(modelled / measured)|; not of squares, since some are outliers."""
        seconds = np.array([measurement.seconds for measurement in measured])
        messages = np.array([2 * (measurement.replicas - 1) for measurement in measured])
        sent = (
            messages
            / [measurement.replicas for measurement in measured]
            * [measurement.num_bytes for measurement in measured]
        )

        def error(logarithms: NDArray[np.float64]) -> float:
            latency, per_byte = np.exp(logarithms)
            return float(np.abs(np.log((messages * latency + sent * per_byte) / seconds)).sum())

        start = np.log([float(np.min(seconds / messages)), float(np.min(seconds / sent))])
        latency, per_byte = np.exp(minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-6}).x)
        return cls(float(latency), float(1 / per_byte))


@dataclass(frozen=True)
class AllReduce:
    """A measured all-reduce."""

    replicas: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class Computation:
    """The computation of one replica alone: constant seconds of a step, and seconds for each of its examples."""

    step_seconds: float
    example_seconds: float

    def seconds(self, examples: float) -> float:
        return self.step_seconds + examples * self.example_seconds

    @classmethod
    def fit(cls, small: tuple[int, float], large: tuple[int, float]) -> "Computation":
        """From two pairs: a number of examples, and the seconds of a step with them."""
        per_example = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - small[0] * per_example), per_example)


def step_seconds(
    computation: Computation, examples: float, gradient_bytes: float, replicas: int, network: Network
) -> float:
    """Seconds of one step.

    Args:
      examples: number of examples of each replica.
      gradient_bytes: size of the gradients of all weights.
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
    """The size of each bucket in bytes."""
    first = min(FIRST_BUCKET_BYTES, gradient_bytes)
    rest = gradient_bytes - first
    whole = int(rest // BUCKET_BYTES)
    return [size for size in (first, *[BUCKET_BYTES] * whole, rest - whole * BUCKET_BYTES) if size]


def efficiency(
    computation: Computation, examples: float, gradient_bytes: float, replicas: int, network: Network, strong: bool
) -> float:
    """Speed of all replicas, divided by their number times the speed of one replica.

    Args:
      examples: number of examples of one replica; with `strong`, of all replicas together, each with its share.
    """
    share = examples / replicas if strong else examples
    alone = examples / computation.seconds(examples)
    together = share * replicas / step_seconds(computation, share, gradient_bytes, replicas, network)
    return together / replicas / alone
