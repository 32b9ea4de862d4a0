"""Numbers as text, for people."""

from collections.abc import Callable


def text(value: float | None, form: str = "{}") -> str:
    """The value as text; for None it is empty, and never a zero."""
    return "" if value is None else form.format(value)


def rate(value: float | None) -> str:
    """A whole number; from a million on in millions, so that the column still fits the terminal."""
    return f"{value / 1e6:.1f}M" if value and value >= 1e6 else text(value, "{:,.0f}")


def short_rate(value: float) -> str:
    """Three digits: `26.9k`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def difference(value: float | None) -> str:
    return "0" if value == 0 else text(value, "{:.0e}")


def mebibytes(value: float | None) -> str:
    return text(value and value / 2**20, "{:,.0f}")


def span(low: float | None, high: float | None, form: Callable[[float], str]) -> str:
    return "" if low is None or high is None else f"{form(low)}-{form(high)}"


def least_most(least: float, most: float, form: Callable[[float], str] = "{:.2f}".format, to: str = "-") -> str:
    """`1.05-1.21`, or one number if both are the same."""
    return to.join(dict.fromkeys((form(least), form(most))))


def seconds(value: float | None) -> str:
    """Seconds with two decimals below 1 second, so that a short time is not shown as 0.0; else with one decimal."""
    return text(value, "{:.2f}" if value is not None and value < 1 else "{:.1f}")


def points(then: float | None, now: float | None) -> str:
    """The change from one share to another, in percentage points: `+0.28`."""
    return "" if then is None or now is None else f"{100 * (now - then):+.2f}"
