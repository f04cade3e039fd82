"""A trace file as a stream of typed events: unpacked, cut and decoded piece by piece, so that memory stays flat.

The file is a JSON object with `traceEvents` among its keys, or the bare list of events (both are
Chrome's trace format), plain or gzip. A piece is cut at the last `}, {` that it holds. That may hit a
string or a nested list; then the piece does not decode, and the exact place is found by counting brackets.

Only what lasts (phase X) becomes an event; arrows, names of threads and other phases are read over.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Union

import msgspec

from scaling.trace.events import Args, Event, Meta, Other
from scaling.trace.pieces import DamagedError, pieces

GROWN_MAX = 1 << 28
"""No head, tail or single event is longer than this."""

_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NO_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|-?\b(?:inf|infinity|nan)\b', re.IGNORECASE | re.DOTALL)
_BETWEEN = b" \t\r\n,"


_OTHERS = tuple(
    msgspec.defstruct(f"Other{k}", [], bases=(Other,), tag_field="ph", tag=phase, gc=False)
    for k, phase in enumerate("BEiICbnestfSTpFPONDMVvRc()")
)
_PHASES = (Event, *_OTHERS)
_EVENTS = msgspec.json.Decoder(list[Union[_PHASES]])  # type: ignore[valid-type]  # noqa: UP007
_ARGS = msgspec.json.Decoder(list[Args])
_SAID = attrgetter("args")
_META = msgspec.json.Decoder(Meta)


class TraceStream:
    """Iterates over the events of a file in lists; `meta`, `events` and `odd` are whole once that is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = Meta()
        self.events = 0
        """Of any phase, without the odd ones."""
        self.odd = 0
        """Events whose fields have types that no trace has; they are left out."""

    def __iter__(self) -> Iterator[list[Event | Other]]:
        for found in self._decoded():
            self.events += len(found)
            yield found

    def _decoded(self) -> Iterator[list[Event | Other]]:
        unread = pieces(self.path)
        held = b""
        for more in itertools.chain((self._head(unread),), unread):
            held = held.lstrip(_BETWEEN)  # a cut leaves the comma to what follows
            piece = more if held else more.lstrip(_BETWEEN)
            cut = _last_border(piece)
            if cut is None:
                held += piece
            else:
                try:
                    found = _EVENTS.decode(b"".join((b"[", held, memoryview(piece)[:cut], b"]")))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    held += piece
                    cut, closed = _exact(held)
                    if closed:
                        break
                    yield self._patient(held[:cut])
                    held = held[cut:]
                else:
                    yield found
                    held = piece[cut:]
            if len(held) > GROWN_MAX:
                raise DamagedError("one event is longer than 256 MiB")
        for piece in unread:
            held += piece
            if len(held) > GROWN_MAX:
                raise DamagedError("what follows the events is longer than 256 MiB")
        yield self._last(held)

    def said(self, events: list[Event]) -> tuple[list[Event], list[Args]]:
        """What each of `events` says of itself, beside those of them that say it in types that a trace has."""
        try:
            return events, _ARGS.decode(b"".join((b"[", b",".join(map(_SAID, events)), b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        kept, args = [], []
        for event in events:
            text = bytes(event.args).decode("utf-8", "replace")
            try:
                args.append(msgspec.convert(_plain(json.loads(text, strict=False)) or {}, Args))
                kept.append(event)
            except msgspec.ValidationError:
                self.odd += 1
        self.events -= len(events) - len(kept)
        return kept, args

    def _head(self, unread: Iterator[bytes]) -> bytes:
        """Everything after the bracket that opens the events."""
        buffer = b""
        for piece in unread:
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

    def _last(self, buffer: bytes) -> list[Event | Other]:
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

    def _patient(self, text: bytes) -> list[Event | Other]:
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
        found: list[Event | Other] = []
        for item in loose:
            other = isinstance(item, dict) and item.get("ph") != "X"
            try:
                found.append(Other() if other else msgspec.convert(_plain(item), Event))
            except msgspec.ValidationError:
                self.odd += 1
        return found


_RAW = ("args", "Input Dims", "Input type")


def _plain(item: Any) -> Any:
    """Without nulls, and with what is decoded later as text again, which is what `Raw` holds."""
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
