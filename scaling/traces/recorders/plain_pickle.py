"""Read a pickle that holds nothing but plain data: numbers, strings, lists, tuples, dictionaries.

A pickle is a program for a stack machine. This one knows the instructions that build plain data and no others: none
that imports a name, calls something or sets a state. So a file cannot make anything run. Python's own module is not
used, because a subclass that forbids names still lets a file reserve any amount of memory or hash for ever.

What the bytes of instructions mean: Lib/pickletools.py of CPython.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from scaling.reading import DEPTH_MAX, RefusedError

SHARED_MAX = 16
"""Values that a byte of the file may stand for: a call stack's frame is written once and referred to with two bytes."""
_WORDS: dict[int, Any] = {0x4E: None, 0x88: True, 0x89: False}
_NUMBERS = {0x4A: "<i", 0x4B: "<B", 0x4D: "<H", 0x47: ">d"}
_TEXTS = {0x58: "<I", 0x8C: "<B", 0x8D: "<Q"}
_BYTES = {0x42: "<I", 0x43: "<B", 0x54: "<i", 0x55: "<B", 0x8E: "<Q"}
_LONGS = {0x8A: "<B", 0x8B: "<i"}
_PUTS, _GETS = {0x71: "<B", 0x72: "<I"}, {0x68: "<B", 0x6A: "<I"}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PROTOCOLS = (2, 3, 4, 5)
_LONG_BYTES_MAX = 9


def read_pickle(data: bytes) -> Any:
    """The value of a pickle. RefusedError where it is damaged, or would build anything but plain data."""
    machine = _Machine(data)
    try:
        value = machine.run()
    except RefusedError:
        raise
    except (IndexError, struct.error, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"its pickle is damaged near byte {machine.at}") from error
    _require_small(value, SHARED_MAX * len(data) + 1000)
    return value


class _Machine:
    """The stack machine. What an instruction takes is always there, or Python raises one of the errors above."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The value on top of the stack at the end."""
        if self.data[:1] != b"\x80" or self.data[1] not in _PROTOCOLS:
            raise RefusedError("it is no pickle of protocol 2 to 5")
        self.at = 2
        others: dict[int, Callable[[], None]] = {
            0x28: lambda: self.marks.append(len(self.stack)),
            0x5D: lambda: self.stack.append([]),
            0x7D: lambda: self.stack.append({}),
            0x29: lambda: self.stack.append(()),
            0x74: lambda: self.stack.append(tuple(self._marked())),
            0x6C: lambda: self.stack.append(self._marked()),
            0x64: lambda: self.stack.append(_pairs({}, self._marked())),
            0x61: lambda: self._extend([self.stack.pop()]),
            0x65: lambda: self._extend(self._marked()),
            0x73: self._set_one,
            0x75: lambda: self._set(self._marked()),
            0x30: lambda: self._drop(self.stack.pop()),
            0x94: lambda: self.memo.__setitem__(len(self.memo), self.stack[-1]),
            0x95: lambda: self._drop(self._number("<Q")),
        }
        while True:
            code = self.data[self.at]
            self.at += 1
            if code == 0x2E:
                if len(self.stack) != 1 or self.marks:
                    raise IndexError
                return self.stack[0]
            if code in _WORDS:
                self.stack.append(_WORDS[code])
            elif code in _NUMBERS:
                self.stack.append(self._number(_NUMBERS[code]))
            elif code in _TEXTS:
                self.stack.append(self._take(self._number(_TEXTS[code])).decode())
            elif code in _BYTES:
                self.stack.append(self._take(self._number(_BYTES[code])))
            elif code in _LONGS:
                self.stack.append(self._long(self._number(_LONGS[code])))
            elif code in _PUTS:
                self.memo[self._number(_PUTS[code])] = self.stack[-1]
            elif code in _GETS:
                self.stack.append(self.memo[self._number(_GETS[code])])
            elif code in _TUPLES:
                many = _TUPLES[code]
                if len(self.stack) < many:
                    raise IndexError
                self.stack[-many:] = [tuple(self.stack[-many:])]
            elif code in others:
                others[code]()
            else:
                raise RefusedError(
                    f"its pickle has an instruction (0x{code:02x} at byte {self.at - 1}) that builds more than plain "
                    "data; it is not run"
                )

    @staticmethod
    def _drop(value: Any) -> None:
        """What a program may take from the stack, or the length of a frame, and not use."""

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _take(self, many: int) -> bytes:
        if not 0 <= many <= len(self.data) - self.at:
            raise IndexError
        self.at += many
        return self.data[self.at - many : self.at]

    def _long(self, many: int) -> int:
        if many > _LONG_BYTES_MAX:
            raise RefusedError("it has an integer of more than 64 bits")
        return int.from_bytes(self._take(many), "little", signed=True)

    def _marked(self) -> list[Any]:
        begin = self.marks.pop()
        found = self.stack[begin:]
        del self.stack[begin:]
        return found

    def _extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(values)

    def _set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _set(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise TypeError
        _pairs(self.stack[-1], values)


def _pairs(into: dict[Any, Any], values: list[Any]) -> dict[Any, Any]:
    """Keys are strings or numbers: a tuple of tuples could take for ever to hash."""
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) not in (str, int):
            raise RefusedError("its pickle has a key that is neither a string nor a whole number")
        into[key] = value
    return into


def _require_small(value: Any, most: int) -> None:
    """Refuse what holds itself, is nested deeply, or is far larger than its file: whoever walks it would not end."""
    left, seen = [(value, 1)], 0
    while left:
        one, depth = left.pop()
        seen += 1
        if depth > DEPTH_MAX:
            raise RefusedError(f"it is nested more than {DEPTH_MAX} levels deep")
        if seen > most:
            raise RefusedError(f"it unfolds to more than {most} values")
        if isinstance(one, dict):
            left += [(inner, depth + 1) for inner in one.values()]
        elif isinstance(one, list | tuple):
            left += [(inner, depth + 1) for inner in one]
