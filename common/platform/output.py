"""Standard output whose reader may end: a program whose output is piped into `head` goes on without it."""

import io
import os
import sys
from typing import cast


class PipeFile(io.FileIO):
    """Standard output. After its reader has ended, further output is dropped."""

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return cast(int, super().write(data))
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # also for compiled code and child processes
            os.close(nowhere)
            return len(data)


def ignore_broken_pipe() -> None:
    """Makes `print` use a `PipeFile`, and show characters that the terminal lacks as escapes."""
    stream = sys.stdout
    if stream is sys.__stdout__ and isinstance(stream, io.TextIOWrapper):
        stream.flush()
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(PipeFile(stream.fileno(), "w", closefd=False)),
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering or stream.write_through,
        )
