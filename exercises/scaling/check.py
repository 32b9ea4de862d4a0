"""Checks of scaling."""

from types import ModuleType
from typing import Any

import numpy as np

from exercises.checking import check, expect

FIT = 1e-4  # tolerance for a share from a search that ends near the best fit; every mistake is far larger


def amdahl(share: float, devices: int) -> float:
    return 10.0 * (share + (1 - share) / devices)


def items(found: Any) -> Any:
    """A dictionary as pairs: JSON has no numbers as keys."""
    return list(found.items()) if isinstance(found, dict) else found


@check(
    "a typical round, whatever happens in one of three",
    "which number of three does one odd round not change, be it slow or fast?",
)
def median(work: ModuleType) -> object:
    rounds = (
        {2: [6.0, 5.0, 4.0], 1: [10.0, 30.0, 10.0], 4: [2.5, 2.0, 9.0]},
        {1: [10.0, 30.0, 9.0, 11.0, 8.0]},
        {1: [10.0]},
    )
    return [items(work.typical(one)) for one in rounds]


@median.judge
def _(seen: Any) -> None:
    several, five, one = map(dict, seen)
    wanted = {1: 10.0, 2: 5.0, 4: 2.5}
    expect(several == wanted, f"10, 30, 10 s on one device, 6, 5, 4 on two and 2.5, 2, 9 on four: {several}")
    expect(five == {1: 10.0}, f"five rounds of 10, 30, 9, 11 and 8 s: {five}")
    expect(one == {1: 10.0}, f"one round of 10 s: {one}")


@check("the speed-up is how much faster the work is done", "which of the two times is the longer one?")
def faster(work: ModuleType) -> object:
    return [items(work.speed_up(one)) for one in ({1: 10.0, 2: 8.0, 4: 2.5}, {4: 2.5, 1: 10.0}, {1: 10.0, 2: 12.5})]


@faster.judge
def _(seen: Any) -> None:
    three, backwards, slower = map(dict, seen)
    expect(three == {1: 1.0, 2: 1.25, 4: 4.0}, f"10 s on one device, 8 and 2.5 s on two and four: {three}")
    expect(backwards == {4: 4.0, 1: 1.0}, f"2.5 s on four devices, 10 s on one: {backwards}")
    expect(slower == {1: 1.0, 2: 0.8}, f"10 s on one device, 12.5 s on two: {slower}")


@check("the efficiency is the speed-up for each device", "what would be 100 %?")
def efficient(work: ModuleType) -> object:
    return items(work.efficiency({1: 1.0, 2: 1.5, 3: 1.5, 4: 2.0}))


@efficient.judge
def _(seen: Any) -> None:
    found = dict(seen)
    told = f"1.0, 1.5, 1.5 and 2.0 times as fast on 1, 2, 3 and 4 devices: {found}"
    expect(found == {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.5}, told)


SHARES = (0.0, 0.05, 0.5, 1.0)


@check("the serial share is found again", "a is what is left with endlessly many devices")
def exact(work: ModuleType) -> object:
    return [work.serial_share({devices: amdahl(share, devices) for devices in (1, 2, 4, 8)}) for share in SHARES]


@exact.judge
def _(seen: Any) -> None:
    for share, found in zip(SHARES, seen, strict=True):
        expect(abs(found - share) < FIT, f"of work with a serial share of {share:.0%} it found {found:.3%}")


def noisy_seconds() -> dict[int, float]:
    noise = np.random.default_rng(0).normal(0, 0.2, 8)
    return {devices: amdahl(0.1, devices) + one for devices, one in enumerate(noise, start=1)}


@check("every number of devices has a say", "how many equations are there for 8 numbers of devices?")
def fitted(work: ModuleType) -> object:
    return work.serial_share(noisy_seconds())


@fitted.judge
def _(found: Any) -> None:
    seconds = noisy_seconds()
    rows = np.array([[1.0, 1.0 / devices] for devices in seconds])
    a, b = np.linalg.lstsq(rows, np.array(list(seconds.values())))[0]
    expect(abs(found - a / (a + b)) < FIT, f"the best fit's serial share: yours {found:.3%}, wanted {a / (a + b):.3%}")


@check("two devices that are slower than one are all serial", "a and b are seconds: can b be negative?")
def slower(work: ModuleType) -> object:
    return work.serial_share({1: 10.0, 2: 12.0})


@slower.judge
def _(found: Any) -> None:
    expect(abs(found - 1) < FIT, f"10 s on one device and 12 s on two: a serial share of {found:.3%}")


@check("two devices that are more than twice as fast have nothing serial", "a and b are seconds: can a be negative?")
def superlinear(work: ModuleType) -> object:
    return work.serial_share({1: 10.0, 2: 4.0})


@superlinear.judge
def _(found: Any) -> None:
    expect(abs(found) < FIT, f"10 s on one device and 4 s on two: a serial share of {found:.3%}")


PREDICTIONS = ((0.0, 8, 8.0), (1.0, 8, 1.0), (0.5, 2, 4 / 3), (0.1, 10**9, 10.0))


@check("Amdahl's law predicts", "what becomes of the two parts of the work?")
def predicted(work: ModuleType) -> object:
    return [work.predict(share, devices) for share, devices, _ in PREDICTIONS]


@predicted.judge
def _(seen: Any) -> None:
    for (share, devices, wanted), found in zip(PREDICTIONS, seen, strict=True):
        expect(
            abs(found - wanted) < 1e-6,
            f"serial share {share:.0%}, {devices} devices: yours {found:.4f}, wanted {wanted:.4f}",
        )


HALVES = ((1.0, 2.0), (0.5, 3.0), (0.4, 3.5), (0.01, 101.0))


@check("where half of the devices' time is lost", "try share = 1/9 with 10 devices")
def half(work: ModuleType) -> object:
    return [work.half_efficient(share) for share, _ in HALVES]


@half.judge
def _(seen: Any) -> None:
    for (share, wanted), found in zip(HALVES, seen, strict=True):
        expect(
            abs(found - wanted) < 1e-9, f"devices for a serial share of {share:.0%}: yours {found:g}, wanted {wanted:g}"
        )
