"""A trace file as a stream of typed events: unpacked, cut and decoded piece by piece, so that memory stays flat.

The file is a JSON object with `traceEvents` among its keys, or the bare list of events (both are
Chrome's trace format), plain or gzip. A piece is cut at the last `}, {` that it holds. That may hit a
string or a nested list; then the piece does not decode, and the exact place is found by counting brackets.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

PIECE = 1 << 18
"""Bytes that are decoded at a time."""
GROWN_MAX = 1 << 28
"""No head, tail or single event is longer than this."""

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NO_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|-?\b(?:inf|infinity|nan)\b', re.IGNORECASE | re.DOTALL)
_BETWEEN = b" \t\r\n,"


class DamagedError(Exception):
    """The file cannot be read as a trace; the message says why."""


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


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds, fractions kept, NaN where it has none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    tid: int | float | str | None = None
    ts: float = math.nan
    dur: float = math.nan
    args: Args | None = None


class DistributedInfo(msgspec.Struct, gc=False):
    """Who wrote the trace, in the job."""

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
    schema_version: int | str | None = msgspec.field(default=None, name="schemaVersion")


class _Tail(Meta, gc=False):
    events: list[Event] = msgspec.field(default_factory=list, name="traceEvents")


_EVENTS = msgspec.json.Decoder(list[Event])
_META = msgspec.json.Decoder(Meta)
_TAIL = msgspec.json.Decoder(_Tail)


class TraceStream:
    """Iterates over the events of a file in lists; `meta` and `odd` are whole once that is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = Meta()
        self.odd = 0
        """Events whose fields have types that no trace has; they are left out."""

    def __iter__(self) -> Iterator[list[Event]]:
        pieces = _pieces(self.path)
        buffer = self._head(pieces)
        for piece in pieces:
            buffer += piece
            if len(buffer) < PIECE:
                continue
            buffer = buffer.lstrip(_BETWEEN)  # a cut may have left the comma to this piece
            cut = _last_border(buffer)
            if cut is None:
                if len(buffer) > GROWN_MAX:
                    raise DamagedError("one event is longer than 256 MiB")
                continue
            try:
                yield _EVENTS.decode(b"[" + buffer[:cut] + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError):
                cut, closed = _exact(buffer)
                if closed:
                    break
                yield self._patient(buffer[:cut])
            buffer = buffer[cut:]
        for piece in pieces:
            buffer += piece
            if len(buffer) > GROWN_MAX:
                raise DamagedError("what follows the events is longer than 256 MiB")
        yield self._last(buffer)

    def _head(self, pieces: Iterator[bytes]) -> bytes:
        """Everything after the bracket that opens the events."""
        buffer = b""
        for piece in pieces:
            buffer += piece
            start = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if start[:1] == b"[":
                return start[1:].lstrip(_BETWEEN)
            if start[:1] not in (b"{", b""):
                break
            found = _OPENING.search(buffer)
            if found:
                self.meta = _meta(start[: found.end() - (len(buffer) - len(start))] + b"]}")
                return buffer[found.end() :].lstrip(_BETWEEN)
            if len(buffer) > GROWN_MAX:
                break
        if not buffer.strip():
            raise DamagedError("it is empty")
        try:
            json.loads(buffer)
        except ValueError:
            raise DamagedError("it is not JSON") from None
        raise DamagedError('it is JSON but no trace: there is no "traceEvents" in it')

    def _last(self, buffer: bytes) -> list[Event]:
        """What is left after the last whole piece: some events, the closing bracket, the other keys."""
        buffer = buffer.lstrip(_BETWEEN)
        cut, closed = _exact(buffer)
        if not closed and buffer:
            raise DamagedError("it ends in the middle of its events")
        if not closed:
            raise DamagedError("its list of events is not closed")
        rest = buffer[cut:].lstrip().removeprefix(b"]")
        if rest.strip() not in (b"", b"}"):
            late = _meta(b"{" + rest.lstrip(b", \t\r\n"))
            known = {f: getattr(late, f) or getattr(self.meta, f) for f in Meta.__struct_fields__}
            self.meta = Meta(**known)
        return self._patient(buffer[:cut])

    def _patient(self, text: bytes) -> list[Event]:
        """Decode what may hold NaN, broken text or odd types: those events are left out and counted."""
        text = text.rstrip(_BETWEEN)
        try:
            return _EVENTS.decode(b"[" + text + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        clean = _NO_NUMBER.sub(lambda m: m[1] or "null", text.decode("utf-8", "replace"))
        try:
            loose = json.loads("[" + clean + "]", strict=False)
        except ValueError as error:
            raise DamagedError(f"its events are not JSON ({error})") from None
        events = []
        for item in loose:
            try:
                events.append(msgspec.convert(_plain(item), Event))
            except msgspec.ValidationError:
                self.odd += 1
        return events


def _plain(item: Any) -> Any:
    """Without nulls, and with shapes as text again, which is what `Raw` holds."""
    if isinstance(item, dict):
        item = {k: v for k, v in item.items() if v is not None}
    if isinstance(item, dict) and isinstance(item.get("args"), dict):
        shapes = {k: msgspec.Raw(json.dumps(item["args"][k]).encode()) for k in _RAW if k in item["args"]}
        return {**item, "args": {**item["args"], **shapes}}
    return item


_RAW = ("Input Dims", "Input type")


def _meta(text: bytes) -> Meta:
    try:
        return _META.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Meta()  # keys nobody needs may be odd; ranks are then found by the file's name


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
        if sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
            if depth < 0:
                return last, True
            if depth == 0:
                last = token.end()
    return last, False


def _pieces(path: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked, PIECE at most at a time."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == b"\x1f\x8b":
                yield from _unpacked(file)
            else:
                while piece := file.read(PIECE):
                    yield piece
    except OSError as error:
        raise DamagedError(f"it cannot be opened ({error.strerror})") from None


def _unpacked(file: Any) -> Iterator[bytes]:
    packed, decoder, ended = b"", zlib.decompressobj(wbits=31), False
    while packed := (packed or file.read(PIECE // 8)):
        if ended:  # one gzip member may follow another
            if packed.strip(b"\0") == b"":
                packed = b""
                continue
            decoder = zlib.decompressobj(wbits=31)
        try:
            yield decoder.decompress(packed, PIECE)
        except zlib.error as error:
            raise DamagedError(f"its gzip stream is damaged ({error})") from None
        ended = decoder.eof
        packed = decoder.unused_data if ended else decoder.unconsumed_tail
    if not ended:
        raise DamagedError("its gzip stream is cut off: the file was not written or copied to its end")
