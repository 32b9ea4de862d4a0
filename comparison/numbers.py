"""Numbers as text, for people."""

from collections.abc import Callable


def text(value: float | None, form: str = "{}") -> str:
    """Empty where there is nothing to say; never a zero."""
    return "" if value is None else form.format(value)


def rate(value: float | None) -> str:
    """In millions where there are many, so that no column outgrows the terminal."""
    return f"{value / 1e6:.1f}M" if value and value >= 1e6 else text(value, "{:,.0f}")


def short_rate(value: float) -> str:
    """Three digits: `26.9k`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def difference(value: float | None) -> str:
    return "0" if value == 0 else text(value, "{:.0e}")


def mebibytes(value: int | None) -> str:
    return text(value and value / 2**20, "{:,.0f}")


def span(low: float | None, high: float | None, form: Callable[[float], str]) -> str:
    return "" if low is None or high is None else f"{form(low)}-{form(high)}"


def least_most(least: float, most: float) -> str:
    """`1.05-1.21`, or one number where they are alike."""
    return "-".join(dict.fromkeys((f"{least:.2f}", f"{most:.2f}")))


def seconds(value: float | None) -> str:
    """Never a bare 0.0 for what took some time."""
    return text(value, "{:.2f}" if value is not None and value < 1 else "{:.1f}")


def points(then: float, now: float) -> str:
    """From one share to another, in percentage points: `+0.28`."""
    return f"{100 * (now - then):+.2f}"
