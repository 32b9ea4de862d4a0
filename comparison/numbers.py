"""Numbers as text, for people: in tables, sentences and charts.

A form is a format specification, or a function that returns text. Python and Vega read these specifications alike.
"""

from collections.abc import Callable, Sequence
from typing import Any

ACCURACY, SHARE = ".2%", ".0%"
LOSS = ".4f"
RATIO = ".2f"
COUNT = ",.0f"
DIFFERENCE = ".0e"  # of losses

Form = str | Callable[[Any], str]


def text(value: Any, form: Form) -> str:
    """The value as text; for None it is empty, and never a zero."""
    if value is None:
        return ""
    return format(value, form) if isinstance(form, str) else form(value)


def rate(value: float) -> str:
    """A whole number; from a million on in millions, so that the column still fits the terminal."""
    return f"{value / 1e6:.1f}M" if value >= 1e6 else format(value, COUNT)


def short_rate(value: float) -> str:
    """Three digits: `26.9k`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def difference(value: float) -> str:
    """Of losses."""
    return "0" if value == 0 else format(value, DIFFERENCE)


def mebibytes(value: float) -> str:
    return format(value / 2**20, COUNT)


def seconds(value: float) -> str:
    """Seconds with two decimals below 1 second, so that a short time is not shown as 0.0; else with one decimal."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def span(low: float | None, high: float | None, form: Form = RATIO, to: str = "-") -> str:
    """`1.05-1.21`; empty if an end is not known."""
    return "" if low is None or high is None else f"{text(low, form)}{to}{text(high, form)}"


def least_most(values: Sequence[float], form: Form = RATIO) -> str:
    """`1.05 to 1.21`: the lowest and the highest value, or one number if both read the same."""
    return " to ".join(dict.fromkeys((text(min(values), form), text(max(values), form))))
