"""The one door for files that are read or added to. Needs only the standard library, since workers use it.

A file may come from another machine or from an enemy, so it is opened only if it is a regular file (no pipe that nobody
writes, no device without end), read only up to a limit, and decoded strictly: UTF-8, JSON of bounded depth whose
numbers fit into 64 bits. What is refused raises RefusedError, a ValueError that says what was found and the limit.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from scaling.errors import InputError, let_go

TEXT_BYTES_MAX = 64 << 20
"""A document, a log of one tool or an environment: real ones have kilobytes, analysis.json some megabytes."""
YAML_BYTES_MAX = 1 << 20
LOG_BYTES_MAX = 1 << 30
"""A log or a host's telemetry: a week at a sample a second of eight GPUs has 700 MB."""
RECORDS_BYTES_MAX = 4 << 30
"""The records of one rank; a long run of many buckets has some hundred megabytes."""
TRACE_BYTES_MAX = 64 << 30
"""A profiler trace, which is read piece by piece."""
DEPTH_MAX = 64
"""Objects and lists inside each other; a plan has 5."""
INT_MAX = 2**63 - 1
DIGITS_MAX = 9
"""Digits of a number in a name."""

_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_ODD = (b"0" * 19, b"e000", b"e+000", b"NaN", b"Infinity")
"""What a text has, its digits written as 0, that holds a number of more than 64 bits; most texts have none of it."""
_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


class RefusedError(ValueError):
    """A file that this program does not read; the message says what was found and what would be accepted."""


def without_tilde(path: str | os.PathLike[str], asked: str) -> Path:
    """The path with its `~` replaced; InputError for a home folder that nobody has. `asked`: the option or key."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{asked}: no such home folder; a path that begins with / is expected") from None


def open_file(path: Path, limit_bytes: int) -> BinaryIO:
    """Open a regular file. OSError where there is none, RefusedError where it is no file or longer than the limit."""
    # O_NONBLOCK: opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    why = _refused(os.fstat(descriptor), limit_bytes)
    if why is not None:
        os.close(descriptor)
        raise why
    return os.fdopen(descriptor, "rb")


def open_to_write(path: Path, *, append: bool = False, mode: int = 0o666) -> BinaryIO:
    """Open a regular file, unbuffered, and make it where it is missing. OSError where something else is in its place.

    Others may write to the folder: a link is not followed, and a pipe not waited for.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | (os.O_APPEND if append else 0), mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link; a regular file is expected", str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if not append:
        os.ftruncate(descriptor, 0)
    return os.fdopen(descriptor, "wb", buffering=0)


def _refused(stats: os.stat_result, limit_bytes: int) -> RefusedError | None:
    if not stat.S_ISREG(stats.st_mode):
        kind = next((name for test, name in _KINDS.items() if test(stats.st_mode)), "no file")
        return RefusedError(f"it is {kind}; a regular file is expected")
    return _too_long(stats.st_size, limit_bytes) if stats.st_size > limit_bytes else None


def read_bytes(path: Path, limit_bytes: int = TEXT_BYTES_MAX) -> bytes:
    """A whole file; errors as in open_file."""
    with open_file(path, limit_bytes) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:  # it grew, or its size is not known beforehand
        raise _too_long(len(content), limit_bytes)
    return content


def read_text(path: Path, limit_bytes: int = TEXT_BYTES_MAX, *, strict: bool = True) -> str:
    """A whole file as text; bytes that are not UTF-8 are refused, or replaced where `strict` is false."""
    content = read_bytes(path, limit_bytes)
    if not strict:
        return content.decode("utf-8", "replace")
    return decode_text(content)


def read_tail(path: Path, most_bytes: int) -> bytes:
    """The end of a file of any length; errors as in open_file."""
    with open_file(path, INT_MAX) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes)


def log_text(path: Path) -> str:
    """The text of a log; empty where there is none that can be read."""
    with contextlib.suppress(OSError, RefusedError):
        return read_text(path, LOG_BYTES_MAX, strict=False)
    return ""


def system_text(path: Path) -> str | None:
    """What a file of the kernel's (/proc, /sys) says; None where there is none that can be read."""
    with let_go(OSError, RefusedError):
        return read_text(path, strict=False).strip()
    return None


def system_number(path: Path) -> int | None:
    """The number in such a file; None where it has none."""
    text = system_text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def as_number(text: str) -> int | None:
    """A number in a file's or a folder's name, in ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def decode_text(content: bytes) -> str:
    """Bytes as UTF-8; RefusedError where they are not."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(f"it is not UTF-8 (byte {error.start})") from None


def read_json(path: Path, limit_bytes: int = TEXT_BYTES_MAX) -> Any:
    """The value of a JSON file; OSError or RefusedError."""
    return parse_json(read_bytes(path, limit_bytes))


def parse_json(data: bytes, *, any_depth: bool = False) -> Any:
    """A JSON value of at most DEPTH_MAX levels, whose integers have 64 bits and whose numbers are finite.

    `any_depth`: the caller looks at every level itself, which is faster for many small values.
    """
    text = decode_text(data)
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise RefusedError(f"it is not JSON ({str(error)[:80]})") from None
    deep = not any_depth and text.count("[") + text.count("{") > DEPTH_MAX
    shape = data.translate(_SHAPE)
    if deep or any(odd in shape for odd in _ODD):
        _check(value)
    return value


def _check(value: Any) -> None:
    left = [(value, 1)]
    while left:
        node, depth = left.pop()
        if isinstance(node, dict | list):
            if depth > DEPTH_MAX:
                raise _too_deep()
            left += [(inner, depth + 1) for inner in (node.values() if isinstance(node, dict) else node)]
        elif isinstance(node, int):
            if not -INT_MAX - 1 <= node <= INT_MAX:
                raise RefusedError("it has an integer of more than 64 bits")
        elif isinstance(node, float) and not math.isfinite(node):
            raise RefusedError("it has a number that is not finite")


def _too_deep() -> RefusedError:
    return RefusedError(f"it is nested more than {DEPTH_MAX} levels deep")


def _too_long(size_bytes: int, limit_bytes: int) -> RefusedError:
    return RefusedError(f"it has {_size(size_bytes)}, more than the limit of {_size(limit_bytes)}")


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes} bytes"
