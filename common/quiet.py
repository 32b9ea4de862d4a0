"""Keeps the start of a run readable: what libraries write while they load, past Python, to standard error."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back_stderr(unless: bool = False) -> Iterator[None]:
    """Holds back what is written to file descriptor 2, and shows all of it if an exception follows.

    Args:
      unless: do nothing, for a user who has asked to see everything.
    """
    if unless:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
