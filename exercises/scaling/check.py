"""Checks of scaling."""

from collections.abc import Callable
from copy import deepcopy
from types import ModuleType
from typing import Any

import numpy as np

from exercises.checking import CheckFunctions, check, expect

CLOSE = 1e-4  # a search may end near the right number; every mistake is farther away


def calls(title: str, hint: str, *cases: tuple) -> Callable[[Callable[[ModuleType], Any]], CheckFunctions]:
    """Marks what chooses a function of the work: the check calls this function.

    Each case has the arguments, what is to be returned, and a hint; "" is the check's hint.
    """

    def mark(choose: Callable[[ModuleType], Any]) -> CheckFunctions:
        @check(title, hint)
        def observe(work: ModuleType) -> object:
            function, seen = choose(work), []
            for *arguments, _, _ in cases:
                given = deepcopy(arguments)
                found = function(*given)
                pairs = list(found.items()) if isinstance(found, dict) else found  # JSON has no numbers as keys
                seen.append((pairs, given == arguments))
            return function.__name__, seen

        @observe.judge
        def _(seen: Any) -> None:
            for (*arguments, wanted, hint), (found, unchanged) in zip(cases, seen[1], strict=True):
                call = f"{seen[0]}({', '.join(map(str, arguments))})"
                found = dict(found) if isinstance(wanted, dict) else found
                expect(close(found, wanted), f"{call}: yours {shown(found)}, wanted {shown(wanted)}", hint)
                expect(unchanged is True, f"{call} changes its argument", "who else uses the dictionary?")

        return observe

    return mark


def close(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(close(found[key], wanted[key]) for key in wanted)
    return abs(found - wanted) < CLOSE * max(1, wanted)


def shown(value: Any) -> Any:
    return {key: shown(one) for key, one in value.items()} if isinstance(value, dict) else round(value, 4)


@calls(
    "a typical round, whatever happens in one of three",
    "which number of three does one odd round not change, be it slow or fast?",
    ({2: [6.0, 5.0, 4.0], 1: [10.0, 30.0, 10.0], 4: [2.5, 2.0, 9.0]}, {1: 10.0, 2: 5.0, 4: 2.5}, ""),
    ({1: [10.0, 30.0, 9.0, 11.0, 8.0]}, {1: 10.0}, "does your rule hold for any number of rounds?"),
    ({1: [10.0]}, {1: 10.0}, "does your rule hold for any number of rounds?"),
)
def median(work: ModuleType) -> Any:
    return work.typical


@calls(
    "the speed-up is how much faster the work is done",
    "which two times does each factor compare, and which of them is above?",
    ({1: 10.0, 2: 8.0}, {1: 1.0, 2: 1.25}, ""),
    ({1: 10.0, 2: 8.0, 4: 2.5}, {1: 1.0, 2: 1.25, 4: 4.0}, "with how many devices is each number compared?"),
    ({4: 2.5, 1: 10.0}, {4: 4.0, 1: 1.0}, "must one device be the first key?"),
    ({1: 10.0, 2: 12.5}, {1: 1.0, 2: 0.8}, "two devices can be slower than one: which of them has the factor 1?"),
    ({1: 10.0, 2: 4.0}, {1: 1.0, 2: 2.5}, "does the docstring name a largest factor?"),
)
def faster(work: ModuleType) -> Any:
    return work.speed_up


@calls(
    "the efficiency is the speed-up for each device",
    "what would be 100 %?",
    ({1: 1.0, 2: 1.5, 3: 1.5}, {1: 1.0, 2: 0.75, 3: 0.5}, ""),
    ({4: 2.0, 1: 1.0}, {4: 0.5, 1: 1.0}, "where in the dictionary is the number of devices?"),
    ({1: 1.0, 2: 2.5}, {1: 1.0, 2: 1.25}, "what does the docstring say of more than N times as fast?"),
)
def efficient(work: ModuleType) -> Any:
    return work.efficiency


OWN_ROW = "does each time stand in an equation with its own number of devices?"


@calls(
    "the serial share is found again",
    "what is left with endlessly many devices? what share is it?",
    *(
        ({devices: 10 * share + 10 * (1 - share) / devices for devices in sweep}, share, hint)
        for sweep, hint in (((1, 2), ""), ((1, 2, 4, 8), OWN_ROW), ((8, 1, 4, 2), OWN_ROW))
        for share in (0.0, 0.05, 0.5, 1.0)
    ),
)
def exact(work: ModuleType) -> Any:
    return work.serial_share


NOISY = {1: 10.03, 2: 5.47, 3: 4.13, 4: 3.27, 5: 2.69, 6: 2.57, 7: 2.55, 8: 2.31}
LINE = np.linalg.lstsq(np.array([[1, 1 / devices] for devices in NOISY]), np.array(list(NOISY.values())))[0]


@calls(
    "every number of devices has a say",
    "do all 8 equations count alike, or does one count more than the others?",
    (NOISY, float(LINE[0] / LINE.sum()), ""),
)
def fitted(work: ModuleType) -> Any:
    return work.serial_share


@calls(
    "no times give a serial share below 0 or above 1",
    "a and b are seconds: which numbers can they not be?",
    ({1: 10.0, 2: 12.0}, 1.0, "a and b are seconds: can b be negative?"),
    ({1: 10.0, 2: 4.0}, 0.0, "a and b are seconds: can a be negative?"),
)
def bounded(work: ModuleType) -> Any:
    return work.serial_share


@calls(
    "Amdahl's law predicts",
    "how long do the two parts of the work take on so many devices?",
    (0.0, 8, 8.0, ""),
    (1.0, 8, 1.0, ""),
    (0.5, 2, 4 / 3, ""),
    (0.1, 10**9, 10.0, ""),
)
def predicted(work: ModuleType) -> Any:
    return work.predict


@calls(
    "where half of the devices' time is lost",
    "try share = 1/9 with 10 devices",
    (1.0, 2.0, ""),
    (0.5, 3.0, ""),
    (0.4, 3.5, "must it be a whole number?"),
    (1e-4, 10_001.0, "how large can the number become?"),
)
def half(work: ModuleType) -> Any:
    return work.half_efficient
