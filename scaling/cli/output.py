"""Output of the verbs: text or a JSON document on standard output, messages on standard error.

Names, errors and notes come from files of others, so all text goes through scaling.plain; no verb prints by itself.

Standard output and error that may be closed, or go away, without an effect on what is measured.

`scaling run ... | head -1` closes the pipe before the report is printed, `2>&-` starts the program without standard
error, and a terminal that is closed answers every write with an error. What cannot be printed is then dropped.
"""

from __future__ import annotations

import errno
import io
import json
import os
import select
import sys
from typing import Any, TextIO

from scaling.plain import message, plain
from scaling.records import files


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, on standard output unless another file is given. A newline inside one becomes a space."""
    print(*(plain(line).replace("\n", " ") for line in lines), sep="\n", file=file, flush=file is not None)


def print_json(document: Any) -> None:
    """Print one JSON document on standard output; in ASCII, with control characters escaped."""
    print(json.dumps(files.encode(document), indent=1).replace("\x7f", "\\u007f"))


def warn(error: object) -> None:
    """Print one line on standard error."""
    say(message(f"scaling: {error}"), file=sys.stderr)


GONE = (errno.EPIPE, errno.EIO)
"""Errors of a write to a pipe without a reader, and to a terminal that was closed."""


class _Tolerant(io.FileIO):
    """A standard stream that takes writes for nothing once its reader is gone, or after a write that failed."""

    def write(self, data: Any, /) -> int:
        try:
            while (size := super().write(data)) is None:  # whoever gave us the stream made it not block
                select.select([], [self.fileno()], [])
        except OSError as error:
            _discard(self.fileno(), os.O_WRONLY)
            if self.fileno() == 1 and error.errno not in GONE:
                raise OSError(error.errno, error.strerror, "standard output") from error
            return memoryview(data).nbytes
        return size


def tolerate_closed() -> None:
    """Make this program's standard streams tolerant. Streams that somebody has replaced are left as they are."""
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:  # else the next file that is opened would get its number, and what is printed
            _discard(descriptor, mode)
    if sys.stdout is sys.__stdout__:
        sys.stdout = _stream(sys.__stdout__, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _stream(sys.__stderr__, 2)


def _discard(descriptor: int, mode: int) -> None:
    sink = os.open(os.devnull, mode)  # gets the descriptor's own number where that is the first free one
    os.dup2(sink, descriptor)
    if sink != descriptor:
        os.close(sink)
    os.set_inheritable(descriptor, True)


def _stream(was: TextIO | None, descriptor: int) -> TextIO:
    raw = _Tolerant(descriptor, "w", closefd=False)
    errors = was.errors if was else "strict"
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=was.encoding if was else "utf-8",
        errors="backslashreplace" if errors == "strict" else errors,  # for names that the encoding lacks
        line_buffering=descriptor == 2 or raw.isatty(),
    )
