"""Standard output and error that outlast their reader: a program goes on when it can't print any more."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, cast


class LastingFile(io.FileIO):
    """A file descriptor for printing. When it can't be written to, one line says so, and further output is dropped.

    Attributes:
      failed: whether something was lost, for another reason than that its reader has ended, as `head` does.
    """

    failed = False

    def __init__(self, number: int, program: str) -> None:
        super().__init__(number, "w", closefd=False)
        self._program = program

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return cast(int, super().write(data))
        except OSError as error:
            LastingFile.failed |= error.errno != errno.EPIPE
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # also for compiled code and child processes
            os.close(nowhere)
            with suppress(OSError):
                os.write(2, f"{self._program}: prints no more: {error.strerror}\n".encode())
            return len(data)


def make_output_last(program: str) -> None:
    """Makes this process print with `LastingFile`. Closed descriptors become those of the null device."""
    for number in range(3):  # in this order: a new descriptor is the lowest one that is free
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        elif isinstance(stream, io.TextIOWrapper):
            stream.flush()
            if stream is not getattr(sys, f"__{name}__") or isinstance(stream.buffer, LastingFile):
                continue
            raw = LastingFile(number, program)
            whole = stream.write_through  # as with PYTHONUNBUFFERED: nothing waits in a buffer
            lasting = io.TextIOWrapper(
                cast(Any, raw) if whole else io.BufferedWriter(cast(Any, raw)),
                encoding=stream.encoding,
                errors="backslashreplace",  # printing a character that the terminal lacks must not fail
                line_buffering=stream.line_buffering,
                write_through=whole,
            )
            setattr(sys, name, lasting)
