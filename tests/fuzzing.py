"""Damaged inputs for fuzz tests: hypothesis generates them, and shrinks those that make a reader fail."""

import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.platform.errors import UserError

QUICK, THOROUGH = 100, 10_000
# For tests with the argument `cases`, the number of inputs: 100 fixed ones, or 10,000 new ones in a slow test.
how_many = pytest.mark.parametrize("cases", [QUICK, pytest.param(THOROUGH, marks=pytest.mark.slow)])


def try_out(cases: int, check: Callable[..., None], *strategies: st.SearchStrategy) -> None:
    """Calls `check` `cases` times with values drawn from `strategies`; one that takes 5 s of processor time fails."""
    thorough = cases > QUICK

    @functools.wraps(check)
    def limited(*drawn: object, **named: object) -> None:
        begun = time.process_time()  # not the clock, which also counts other programs
        check(*drawn, **named)
        assert time.process_time() - begun < 5

    configured = settings(
        max_examples=cases,
        derandomize=not thorough,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=thorough,
    )
    configured(given(*strategies)(limited))()


@st.composite
def damaged(draw: st.DrawFn, *contents: bytes) -> bytes:
    """One of `contents`, unchanged or with bytes changed, inserted, removed, duplicated, cut off or set to 0xff."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(0, 4))):
        # The most interesting bytes are at the beginning.
        start = draw(st.one_of(st.integers(0, min(200, len(content))), st.integers(0, len(content))))
        stop = min(len(content), start + draw(st.integers(1, 8)))
        kind = draw(st.sampled_from(["change", "put in", "leave out", "double", "cut off", "huge"]))
        new = draw(st.binary(min_size=1, max_size=8))
        if kind == "change":
            content[start : start + len(new)] = new
        elif kind == "put in":
            content[start:start] = new
        elif kind == "leave out":
            del content[start:stop]
        elif kind == "double":
            content[start:start] = content[start:stop]
        elif kind == "cut off":
            del content[start:]
        else:
            content[start:stop] = b"\xff" * (stop - start)
    return bytes(content)


# Values that somebody might put into a JSON file in place of others.
HOSTILE: list[object] = [10**400, -(10**400), 2**63, -1, 0, 1, 1e308, 5e-324, math.nan, math.inf, None, True, [], {}]
HOSTILE += ["", "\x1b[31m", "<script>", "```\n# heading", "../../x", "\u202e", "x" * 10_000, "1970-01-01T00:00:00Z"]


@st.composite
def edited(draw: st.DrawFn, content: bytes) -> bytes:
    """Lines of JSON with a value replaced, or repeated if it is in a list, in one of the lines."""
    lines = [json.loads(line) for line in content.splitlines()] if content.startswith(b'{"') else [json.loads(content)]
    place: object = draw(st.sampled_from(lines))
    while isinstance(place, dict | list) and place:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.integers(0, 3)) == 0:
            if isinstance(place, list) and draw(st.booleans()):
                place.append(place[key])
            else:
                place[key] = draw(st.sampled_from(HOSTILE))
            break
        place = place[key]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@contextmanager
def line_or_result() -> Iterator[None]:
    """Accepts a `UserError` with a text of 1 to 1,999 characters; any other exception is a defect and is raised."""
    try:
        yield
    except UserError as error:
        text = " ".join(str(error).split())
        assert text and len(text) < 2000, text
