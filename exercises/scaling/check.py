"""Checks of scaling."""

from types import ModuleType

import numpy as np

from exercises.checking import check, expect

FIT = 1e-4  # tolerance for a share from a search that ends near the best fit; every mistake is far larger


def amdahl(share: float, devices: int) -> float:
    return 10.0 * (share + (1 - share) / devices)


@check(
    "a typical round, whatever happens in one of three",
    "which number of three does one odd round not change, be it slow or fast?",
)
def median(work: ModuleType) -> None:
    found = work.typical({2: [6.0, 5.0, 4.0], 1: [10.0, 30.0, 10.0], 4: [2.5, 2.0, 9.0]})
    wanted = {1: 10.0, 2: 5.0, 4: 2.5}
    expect(found == wanted, f"10, 30, 10 s on one device, 6, 5, 4 on two and 2.5, 2, 9 on four: {found}")
    found = work.typical({1: [10.0, 30.0, 9.0, 11.0, 8.0]})
    expect(found == {1: 10.0}, f"five rounds of 10, 30, 9, 11 and 8 s: {found}")
    found = work.typical({1: [10.0]})
    expect(found == {1: 10.0}, f"one round of 10 s: {found}")


@check("the speed-up is how much faster the work is done", "which of the two times is the longer one?")
def faster(work: ModuleType) -> None:
    found = work.speed_up({1: 10.0, 2: 8.0, 4: 2.5})
    expect(found == {1: 1.0, 2: 1.25, 4: 4.0}, f"10 s on one device, 8 and 2.5 s on two and four: {found}")
    found = work.speed_up({4: 2.5, 1: 10.0})
    expect(found == {4: 4.0, 1: 1.0}, f"2.5 s on four devices, 10 s on one: {found}")
    found = work.speed_up({1: 10.0, 2: 12.5})
    expect(found == {1: 1.0, 2: 0.8}, f"10 s on one device, 12.5 s on two: {found}")


@check("the efficiency is the speed-up for each device", "what would be 100 %?")
def efficient(work: ModuleType) -> None:
    found = work.efficiency({1: 1.0, 2: 1.5, 3: 1.5, 4: 2.0})
    told = f"1.0, 1.5, 1.5 and 2.0 times as fast on 1, 2, 3 and 4 devices: {found}"
    expect(found == {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.5}, told)


@check("the serial share is found again", "a is what is left with endlessly many devices")
def exact(work: ModuleType) -> None:
    for share in (0.0, 0.05, 0.5, 1.0):
        found = work.serial_share({devices: amdahl(share, devices) for devices in (1, 2, 4, 8)})
        expect(abs(found - share) < FIT, f"of work with a serial share of {share:.0%} it found {found:.3%}")


@check("every number of devices has a say", "how many equations are there for 8 numbers of devices?")
def fitted(work: ModuleType) -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, 8)
    seconds = {devices: amdahl(0.1, devices) + one for devices, one in enumerate(noise, start=1)}
    rows = np.array([[1.0, 1.0 / devices] for devices in seconds])
    a, b = np.linalg.lstsq(rows, np.array(list(seconds.values())))[0]
    found = work.serial_share(seconds)
    expect(abs(found - a / (a + b)) < FIT, f"the best fit has a serial share of {a / (a + b):.3%}, not {found:.3%}")


@check("two devices that are slower than one are all serial", "a and b are seconds: can b be negative?")
def slower(work: ModuleType) -> None:
    found = work.serial_share({1: 10.0, 2: 12.0})
    expect(abs(found - 1) < FIT, f"10 s on one device and 12 s on two: a serial share of {found:.3%}")


@check("two devices that are more than twice as fast have nothing serial", "a and b are seconds: can a be negative?")
def superlinear(work: ModuleType) -> None:
    found = work.serial_share({1: 10.0, 2: 4.0})
    expect(abs(found) < FIT, f"10 s on one device and 4 s on two: a serial share of {found:.3%}")


@check("Amdahl's law predicts", "what becomes of the two parts of the work?")
def predicted(work: ModuleType) -> None:
    for share, devices, wanted in ((0.0, 8, 8.0), (1.0, 8, 1.0), (0.5, 2, 4 / 3), (0.1, 10**9, 10.0)):
        found = work.predict(share, devices)
        expect(
            abs(found - wanted) < 1e-6, f"serial share {share:.0%}, {devices} devices: {found:.4f}, not {wanted:.4f}"
        )


@check("where half of the devices' time is lost", "try share = 1/9 with 10 devices")
def half(work: ModuleType) -> None:
    for share, wanted in ((1.0, 2.0), (0.5, 3.0), (0.4, 3.5), (0.01, 101.0)):
        found = work.half_efficient(share)
        expect(abs(found - wanted) < 1e-9, f"serial share {share:.0%}: {found:g} devices, not {wanted:g}")
