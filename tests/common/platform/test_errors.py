import signal

import pytest

from common.platform.errors import describe_signal


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGILL, "signal 4 (SIGILL: an instruction that the processor does not execute"),
        (signal.SIGKILL, "signal 9 (SIGKILL: the system was out of memory"),
        (signal.SIGUSR1, f"signal {int(signal.SIGUSR1)} (SIGUSR1)"),
        (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}"),
        (1000, "signal 1000"),
    ],
)
def test_a_signal_is_reported_with_what_it_usually_means(number, told):
    assert describe_signal(int(number)).startswith(told)


def test_whatever_number_it_has_there_is_something_to_tell():
    assert all(describe_signal(number).startswith(f"signal {number}") for number in range(1, 129))
