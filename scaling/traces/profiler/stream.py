"""A trace file as a stream of typed events: unpacked, cut and decoded piece by piece, so that memory stays flat.

The file is a JSON object with `traceEvents` among its keys, or the bare list of events (both are
Chrome's trace format), plain or gzip. A piece is cut at the last `}, {` that it holds. That may hit a
string or a nested list. The piece then fails to decode, and the exact place is found by counting brackets.

Only phase X (events with a duration) becomes an event; arrows, names of threads and other phases are skipped.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Union

import msgspec

from scaling.reading import TRACE_BYTES_MAX, RefusedError, open_file, parse_json


class Args(msgspec.Struct, gc=False):
    """What an event says of itself, as far as it is used here."""

    stream: int | float | str | None = None
    correlation: int | float | str | None = None
    grid: tuple[int, ...] | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | float | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | float | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | float | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    seq: int | float | None = msgspec.field(default=None, name="Seq")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")


class TraceEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One event that lasts; times in microseconds, fractions kept, NaN where it has none."""

    cat: str = ""
    name: str = ""
    tid: int | float | str | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: msgspec.Raw = msgspec.Raw(b"{}")
    """Decoded on demand (`TraceStream.said`): the arguments of operators are long and rarely needed."""


class Other(msgspec.Struct, gc=False):
    """An event of another phase, such as an arrow, a counter or the name of a thread: counted and skipped."""


class DistributedInfo(msgspec.Struct, gc=False):
    """The rank that wrote the trace, and its job."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    pg_config: list[dict[str, Any]] | dict[str, Any] | None = None


class Meta(msgspec.Struct, gc=False):
    """The keys beside `traceEvents`."""

    distributed: DistributedInfo | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[dict[str, Any]] | None = msgspec.field(default=None, name="deviceProperties")
    host_name: str | None = None
    base_ns: int | None = msgspec.field(default=None, name="baseTimeNanoseconds")


Gzip: type[gzip.GzipFile]
GzipError: type[Exception]
try:
    from isal.igzip import IGzipFile as Gzip
    from isal.isal_zlib import IsalError as GzipError  # type: ignore[assignment]  # its stub has an instance
except ImportError:  # isal exists for x86 and ARM only; the standard library takes three times as long
    Gzip, GzipError = gzip.GzipFile, zlib.error

PIECE = 1 << 18
"""Bytes that are decoded at a time."""
GROWN_MAX = 1 << 26
"""No head and no tail is longer than this."""
EVENT_MAX = 1 << 22
"""No single event is longer than this."""
UNPACKED_MAX, GROWTH_MAX = 1 << 28, 200
"""A gzip file may grow to this length, or to this many times its own; traces grow to 10 to 30 times theirs."""

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
"""Strings and brackets; a quote alone opens a string that goes on behind what is there."""
_NO_NUMBER = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|-?\b(?:inf|infinity|nan)\b', re.IGNORECASE | re.DOTALL)
_BETWEEN = b" \t\r\n,"
_LEAD = b"\xef\xbb\xbf \t\r\n"
_OPENING_MAX = 4096
"""The key of the events is found where it is not stretched over more than this."""
_NO_EVENTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""No JSON, other fields, text that is not UTF-8, or nested without end."""


_OTHERS = tuple(
    msgspec.defstruct(f"Other{k}", [], bases=(Other,), tag_field="ph", tag=phase, gc=False)
    for k, phase in enumerate("BEiICbnestfSTpFPONDMVvRc()")
)
_PHASES = (TraceEvent, *_OTHERS)
_EVENTS = msgspec.json.Decoder(list[Union[_PHASES]])  # type: ignore[valid-type]  # noqa: UP007
_ARGS = msgspec.json.Decoder(list[Args])
_SAID = attrgetter("args")
_META = msgspec.json.Decoder(Meta)


class DamagedError(Exception):
    """The file cannot be read as a trace; the message says why."""


def pieces(path: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked, PIECE at a time."""
    try:
        with open_file(path, TRACE_BYTES_MAX) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            unpacked = Gzip(fileobj=file) if packed else file
            left = max(UNPACKED_MAX, GROWTH_MAX * size_bytes) if packed else TRACE_BYTES_MAX
            while piece := unpacked.read(PIECE):
                left -= len(piece)
                if left < 0:
                    raise DamagedError(f"it unpacks to more than {GROWTH_MAX} times its size")
                yield piece
    except RefusedError as error:
        raise DamagedError(str(error)) from None
    except EOFError:
        raise DamagedError(
            "its gzip stream is cut off: the file was not written or copied to its end"
        ) from None
    except (gzip.BadGzipFile, GzipError) as error:
        raise DamagedError(f"its gzip stream is damaged ({error})") from None
    except OSError as error:
        raise DamagedError(f"it cannot be opened ({error.strerror})") from None


class TraceStream:
    """Iterates over the events of a file in lists; `meta`, `events` and `odd` are complete after the last list."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = Meta()
        self.events = 0
        """Events of any phase, without the odd ones."""
        self.odd = 0
        """Events that are left out because a field has a type that no trace uses."""

    def __iter__(self) -> Iterator[list[TraceEvent | Other]]:
        for batch in self._decoded():
            self.events += len(batch)
            yield batch

    def _decoded(self) -> Iterator[list[TraceEvent | Other]]:
        unread = pieces(self.path)
        pending, tried = b"", 0
        for more in itertools.chain((self._head(unread),), unread):
            pending = pending.lstrip(_BETWEEN)  # after a cut the comma is still there
            piece = more if pending else more.lstrip(_BETWEEN)
            cut = _last_border(piece)
            whole = True
            # A long event is looked through a few times, not at each piece.
            if cut is None or len(pending) < 2 * tried:
                pending += piece
            else:
                try:
                    batch = _EVENTS.decode(b"".join((b"[", pending, memoryview(piece)[:cut], b"]")))
                except _NO_EVENTS:
                    pending, whole = pending + piece, False
                else:
                    yield batch
                    pending, tried = piece[cut:], 0
            if not whole or len(pending) > EVENT_MAX:
                cut, closed = _exact(pending)
                if closed:
                    break
                if len(pending[cut:].lstrip(_BETWEEN)) > EVENT_MAX:
                    raise DamagedError(f"one event is longer than {EVENT_MAX >> 20} MiB")
                yield self._patient(pending[:cut])
                pending = pending[cut:]
                tried = 0 if cut else len(pending)
        tail = [pending]
        length = len(pending)
        for piece in unread:
            tail.append(piece)
            length += len(piece)
            if length > GROWN_MAX:
                raise DamagedError(f"what follows the events is longer than {GROWN_MAX >> 20} MiB")
        yield self._last(b"".join(tail))

    def said(self, events: list[TraceEvent]) -> tuple[list[TraceEvent], list[Args]]:
        """The events whose arguments can be decoded, and these arguments."""
        try:
            return events, _ARGS.decode(b"".join((b"[", b",".join(map(_SAID, events)), b"]")))
        except _NO_EVENTS:
            pass
        kept, args = [], []
        for event in events:
            text = bytes(event.args).decode("utf-8", "replace")
            try:
                args.append(msgspec.convert(_plain(json.loads(text, strict=False)) or {}, Args))
                kept.append(event)
            except (msgspec.ValidationError, ValueError, RecursionError):
                self.odd += 1
        self.events -= len(events) - len(kept)
        return kept, args

    def _head(self, unread: Iterator[bytes]) -> bytes:
        """Everything after the bracket that opens the events."""
        buffer = bytearray()
        for piece in unread:
            seen = max(0, len(buffer) - _OPENING_MAX)
            buffer += piece
            start = bytes(buffer[:_OPENING_MAX]).lstrip(_LEAD)
            if start[:1] == b"[":
                return bytes(buffer).lstrip(_LEAD)[1:].lstrip(_BETWEEN)
            if start[:1] not in (b"{", b""):
                break
            opening = _OPENING.search(buffer, seen)
            if opening:
                self.meta = _meta(bytes(buffer[: opening.end()]).lstrip(_LEAD) + b"]}")
                return bytes(buffer[opening.end() :]).lstrip(_BETWEEN)
            if len(buffer) > GROWN_MAX:
                raise DamagedError(f"what precedes the events is longer than {GROWN_MAX >> 20} MiB")
        if not buffer.strip():
            raise DamagedError("it is empty")
        try:
            parse_json(bytes(buffer))
        except RefusedError:
            raise DamagedError("it is not JSON") from None
        raise DamagedError('it is JSON but no trace: there is no "traceEvents" in it')

    def _last(self, buffer: bytes) -> list[TraceEvent | Other]:
        """Decode the end of the file: the last events, the closing bracket, the other keys."""
        buffer = buffer.lstrip(_BETWEEN)
        cut, closed = _exact(buffer)
        if not closed and buffer:
            raise DamagedError("it ends in the middle of its events")
        if not closed:
            raise DamagedError("its list of events is not closed")
        rest = buffer[cut:].lstrip().removeprefix(b"]")
        if rest.strip() not in (b"", b"}"):
            late = _meta(b"{" + rest.lstrip(b", \t\r\n"))
            keys = {f: getattr(late, f) or getattr(self.meta, f) for f in Meta.__struct_fields__}
            self.meta = Meta(**keys)
        return self._patient(buffer[:cut])

    def _patient(self, text: bytes) -> list[TraceEvent | Other]:
        """Decode events one by one where some hold NaN, broken text or odd types; those are left out and counted."""
        text = text.rstrip(_BETWEEN)
        try:
            return _EVENTS.decode(b"[" + text + b"]")
        except _NO_EVENTS:
            pass
        clean = _NO_NUMBER.sub(lambda m: m[1] or "null", text.decode("utf-8", "replace"))
        try:
            loose = json.loads("[" + clean + "]", strict=False)
        except RecursionError:
            raise DamagedError("its events are nested without end") from None
        except ValueError as error:
            raise DamagedError(f"its events are not JSON ({error})") from None
        batch: list[TraceEvent | Other] = []
        for item in loose:
            other = isinstance(item, dict) and item.get("ph") != "X"
            try:
                batch.append(Other() if other else msgspec.convert(_plain(item), TraceEvent))
            except (msgspec.ValidationError, RecursionError):
                self.odd += 1
        return batch


_RAW = ("args", "Input Dims", "Input type")


def _plain(item: Any) -> Any:
    """Without nulls, and with the fields that are decoded later as text, which is what `Raw` holds."""
    if not isinstance(item, dict):
        return item
    return {
        key: msgspec.Raw(json.dumps(value).encode()) if key in _RAW else value
        for key, value in item.items()
        if value is not None
    }


def _meta(text: bytes) -> Meta:
    try:
        return _META.decode(text)
    except _NO_EVENTS:
        return Meta()  # without these keys, the rank comes from the file's name


def _last_border(buffer: bytes) -> int | None:
    """End of the last `}` that is followed by a comma and a `{`."""
    end = len(buffer)
    while True:
        at = buffer.rfind(b"},", 0, end)
        if at < 0:
            return None
        if buffer[at + 2 : at + 258].lstrip()[:1] == b"{":
            return at + 1
        end = at + 1


def _exact(buffer: bytes) -> tuple[int, bool]:
    """End of the last whole event, and whether the list of events is closed right after it."""
    depth, last = 0, 0
    for token in _TOKENS.finditer(buffer):
        sign = buffer[token.start()]
        if sign == b'"'[0] and token.end() - token.start() == 1:
            break
        if sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
            if depth < 0:
                return last, True
            if depth == 0:
                last = token.end()
    return last, False
