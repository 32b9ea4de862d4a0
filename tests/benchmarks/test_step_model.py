"""The model of a step's time: its formulas are compared with cases that can be computed by hand."""

import pytest

from benchmarks.step_model import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    AllReduce,
    Computation,
    Network,
    buckets,
    efficiency,
    step_seconds,
)

NETWORK = Network(latency_seconds=0.001, bytes_per_second=1000.0)


def test_a_ring_of_four_sends_six_messages_of_a_quarter():
    assert NETWORK.all_reduce_seconds(4000, 4) == pytest.approx(6 * (0.001 + 1.0))
    assert NETWORK.all_reduce_seconds(4000, 1) == 0


def test_latency_and_bandwidth_are_recovered():
    measured = [
        AllReduce(replicas, size, NETWORK.all_reduce_seconds(size, replicas))
        for replicas in (2, 3, 4)
        for size in (1, 100, 10_000)
    ]
    found = Network.fit(measured)
    assert found.latency_seconds == pytest.approx(0.001, rel=1e-3)
    assert found.bytes_per_second == pytest.approx(1000, rel=1e-3)


def test_computation_is_found_from_two_batch_sizes():
    assert Computation.fit((10, 0.3), (20, 0.5)) == Computation(pytest.approx(0.1), pytest.approx(0.02))


def test_buckets_are_those_of_ddp():
    assert buckets(1000) == [1000]
    whole = FIRST_BUCKET_BYTES + 2 * BUCKET_BYTES + 7
    assert buckets(whole) == [FIRST_BUCKET_BYTES, BUCKET_BYTES, BUCKET_BYTES, 7]


def test_one_bucket_is_sent_after_the_computation_and_others_beside_it():
    computation = Computation(0.0, 0.3)
    assert step_seconds(computation, 10, 1000, 1, NETWORK) == pytest.approx(3.0)
    assert step_seconds(computation, 10, 1000, 2, NETWORK) == pytest.approx(3.0 + 2 * (0.001 + 0.5))
    # Two buckets. The first is ready after 1 + 2 x 1/26 of the 3 seconds, and its 0.5 s overlap with the computation.
    # The time of the last bucket does not overlap.
    fast = Network(0.0, 2 * FIRST_BUCKET_BYTES)
    size = FIRST_BUCKET_BYTES + BUCKET_BYTES
    assert step_seconds(computation, 10, size, 2, fast) == pytest.approx(3.0 + BUCKET_BYTES / FIRST_BUCKET_BYTES / 2)
    # A network that takes longer than the computation is never idle once it has begun.
    slow = Network(0.0, FIRST_BUCKET_BYTES)
    first = 1 + 2 * FIRST_BUCKET_BYTES / size
    assert step_seconds(Computation(0.0, 0.1), 10, size, 2, slow) >= size / FIRST_BUCKET_BYTES
    assert step_seconds(computation, 10, size, 2, slow) == pytest.approx(max(first + 1, 3.0) + 25)


def test_efficiency_is_one_without_a_network_to_wait_for_and_falls_with_it():
    computation, free = Computation(0.0, 0.01), Network(0.0, float("inf"))
    for strong in (False, True):
        assert efficiency(computation, 32, 10_000, 8, free, strong) == pytest.approx(1.0)
    assert (
        efficiency(computation, 32, 320, 8, NETWORK, strong=True)
        < efficiency(computation, 32, 320, 8, NETWORK, False)
        < 1
    )
    # The fixed time of a step is not divided among replicas. With strong scaling, it alone lowers the efficiency here.
    assert efficiency(Computation(0.1, 0.1), 10, 1, 2, free, strong=True) == pytest.approx(1.1 / (0.6 * 2))
