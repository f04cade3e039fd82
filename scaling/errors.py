"""Errors with an exit status, by who has to act.

ScalingError            exit 1   nothing could be measured, or a requested threshold is not met
└── InputError          exit 2   bad input: the message says what, where and what would be accepted; nothing was created

Errors of the file system that are not bugs (no space, no permission) also become one line (scaling.cli). Any other
exception is a bug of this program and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT)


def way_out(error: OSError) -> str:
    """What to do about a file that could not be written."""
    if error.errno in FULL:
        return "make room"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "make it writable"
    return "see that its folder is there and its file system answers"


class ScalingError(Exception):
    """A failure with a one-line message for the person at the terminal."""

    exit_code = 1


class InputError(ScalingError):
    """Bad input. The message says what, where, and what would be accepted."""

    exit_code = 2


@contextlib.contextmanager
def while_reading(what: object, expected: str) -> Iterator[None]:
    """InputError where a file cannot be read: which one, why, and what would be accepted."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what}: cannot be read ({why}); {expected}") from error
