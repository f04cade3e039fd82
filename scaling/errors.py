"""Errors with an exit status, by who has to act.

ScalingError            exit 1   nothing could be measured, or a requested threshold is not met
└── InputError          exit 2   bad input: the message says what, where and what would be accepted; nothing was created

Errors of the file system that are not bugs (no space, no permission) also become one line (scaling.cli). Any other
exception is a bug of this program and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import dis
import errno
import itertools
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


@contextlib.contextmanager
def let_go(*kinds: type[Exception]) -> Iterator[None]:
    """Drop an error of what is inside, of any kind or of these, unless a signal's handler raised it."""
    try:
        yield
    except Exception as error:
        raise_from_signal(error)
        if kinds and not isinstance(error, kinds):
            raise


def raise_from_signal(error: BaseException) -> None:
    """Raise what a signal's handler raised: it may interrupt any line, and is meant for the training."""
    chain = [error]  # it may have been caught meanwhile, and another one raised
    for each in chain:
        if _from_handler(each):
            raise each
        chain += [
            e for e in (each.__cause__, each.__context__) if e is not None and id(e) not in map(id, chain)
        ]


def _from_handler(error: BaseException) -> bool:
    """Whether a function of its traceback was given a number and the frame that it interrupted, as handlers are.

    Python's own handler of Ctrl-C has no frame, but neither did a statement raise its error.
    """
    trace = last = error.__traceback__
    while trace is not None:
        frame, code, last = trace.tb_frame, trace.tb_frame.f_code, trace
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)  # *args
        if count and frame.f_back is not None:
            variables = frame.f_locals
            given = [variables.get(name) for name in code.co_varnames[:count]]
            given += next((value for value in given[::-1] if type(value) is tuple), ())
            if any(
                value is frame.f_back and type(before) is int for before, value in itertools.pairwise(given)
            ):
                return True
        trace = trace.tb_next
    if last is None or not isinstance(error, KeyboardInterrupt):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] != dis.opmap["RAISE_VARARGS"]
