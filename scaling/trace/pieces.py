"""The bytes of a trace file, unpacked where it is gzip, a piece at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

Gzip: type[gzip.GzipFile]
GzipError: type[Exception]
try:
    from isal.igzip import IGzipFile as Gzip
    from isal.isal_zlib import IsalError as GzipError  # type: ignore[assignment]  # its stub has an instance
except ImportError:  # it is built for x86 and ARM; the standard library takes three times as long
    Gzip, GzipError = gzip.GzipFile, zlib.error

PIECE = 1 << 18
"""Bytes that are decoded at a time."""


class DamagedError(Exception):
    """The file cannot be read as a trace; the message says why."""


def pieces(path: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked, PIECE at a time."""
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == b"\x1f\x8b"
            unpacked = Gzip(fileobj=file) if packed else file
            while piece := unpacked.read(PIECE):
                yield piece
    except EOFError:
        raise DamagedError(
            "its gzip stream is cut off: the file was not written or copied to its end"
        ) from None
    except (gzip.BadGzipFile, GzipError) as error:
        raise DamagedError(f"its gzip stream is damaged ({error})") from None
    except OSError as error:
        raise DamagedError(f"it cannot be opened ({error.strerror})") from None
