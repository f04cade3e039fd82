"""Thrift's compact protocol, in which Parquet writes its footers: from bytes to fields and back.

Only the structure is read. Every field keeps its number, its type and its value, so what is not known here stays as it
is. https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = (*range(11), 12)
INTEGERS = (I16, I32, I64)
LONG = 15
"""Items from which on a list's header has no room for their number; a field's for a step of that many numbers."""

Fields = dict[int, tuple[int, Any]]
"""A struct: the type and the value of each field, by its number. A list's value: the type of its items, and a list."""


def read_struct(text: bytes) -> Fields:
    """The struct at the begin of some bytes; ValueError where they are none."""
    try:
        return _Reader(text).fields()
    except IndexError as error:
        raise ValueError("a struct that is cut off") from error


def write_struct(fields: Fields) -> bytes:
    """A struct as bytes."""
    out = bytearray()
    _write_fields(out, fields)
    return bytes(out)


class _Reader:
    """Reads one value after the other. IndexError at the end of the text."""

    def __init__(self, text: bytes) -> None:
        self._text, self._at = text, 0

    def fields(self) -> Fields:
        found: Fields = {}
        number = 0
        while (head := self._byte()) != STOP:
            step, kind = head >> 4, head & LONG
            number = number + step if step else self._integer()
            found[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind))
        return found

    def _value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == BINARY:
            return self._bytes(self._count())
        if kind == STRUCT:
            return self.fields()
        if kind in (LIST, SET):
            head = self._byte()
            count, of = head >> 4, head & LONG
            count = self._count() if count == LONG else count
            return of, [self._value(of) for _ in range(count)]
        if kind in (TRUE, FALSE, BYTE):  # in a list a truth value takes a byte
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        raise ValueError(f"a value of type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._text[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._text):
            raise IndexError
        return self._text[self._at - count : self._at]

    def _count(self) -> int:
        """Seven bits a byte, the lowest first."""
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _integer(self) -> int:
        """Zigzag: the sign is the lowest bit."""
        value = self._count()
        return value >> 1 ^ -(value & 1)


def _write_fields(out: bytearray, fields: Fields) -> None:
    before = 0
    for number, (kind, value) in sorted(fields.items()):
        step, before = number - before, number
        written = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        if step < LONG + 1:
            out.append(step << 4 | written)
        else:
            out.append(written)
            _write_integer(out, number)
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
    out.append(STOP)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in INTEGERS:
        _write_integer(out, value)
    elif kind == BINARY:
        _write_count(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_fields(out, value)
    elif kind in (LIST, SET):
        of, items = value
        if len(items) < LONG:
            out.append(len(items) << 4 | of)
        else:
            out.append(LONG << 4 | of)
            _write_count(out, len(items))
        for item in items:
            _write_value(out, of, item)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _write_count(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_count(out, value << 1 if value >= 0 else ~value << 1 | 1)
