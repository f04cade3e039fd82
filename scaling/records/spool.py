"""Objects that are gone through several times, in order: in memory while small, else their arrays in a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaling.records.pile import Scratch

MEMORY_BYTES = 32 << 20
"""Arrays with so many bytes in all stay in memory."""
SMALL_BYTES = 1 << 12
"""So does an array with fewer."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array in the file."""

    begin: int
    """Bytes."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Again(Protocol[T_co]):
    """Objects that can be gone through again."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T_co]: ...


class Spool(Generic[T]):
    """Objects of one kind: arrays, or dataclasses and tuples with some. Arrays in the file are read each time."""

    def __init__(self, scratch: Scratch | None = None) -> None:
        """`scratch`: where the file lies; None: all stay in memory."""
        self._scratch = scratch
        self._kept: list[Any] = []
        self._bytes = 0
        self._file: Any = None
        self._end = 0

    def add(self, one: T) -> None:
        """One more. OSError where it cannot be written."""
        self._kept.append(one if self._scratch is None else _changed(one, np.ndarray, self._put))

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[T]:
        for one in self._kept:
            yield _changed(one, _Stored, self._get)

    def _put(self, array: NDArray[Any]) -> NDArray[Any] | _Stored:
        if array.nbytes < SMALL_BYTES or self._scratch is None:
            return array
        self._bytes += array.nbytes
        if self._bytes <= MEMORY_BYTES:
            return array
        if self._file is None:
            self._file = TemporaryFile(dir=self._scratch.path)  # noqa: SIM115  # it lives as long as this object
        stored = _Stored(self._end, array.dtype, array.shape)
        self._end += self._file.write(np.ascontiguousarray(array).data)
        self._file.flush()
        return stored

    def _get(self, stored: _Stored) -> NDArray[Any]:
        found = np.empty(stored.shape, stored.dtype)
        if os.preadv(self._file.fileno(), [found.data], stored.begin) != found.nbytes:
            raise OSError(f"{self._file.name}: shorter than what was written to it")
        return found


class Changed(Generic[T]):
    """Objects after a change, which is made each time they are gone through."""

    def __init__(self, of: Again[T], change: Callable[[T], T]) -> None:
        self._of, self._change = of, change

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[T]:
        return map(self._change, self._of)


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """A value, with those of a kind in it changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_changed(each, kind, change) for each in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, _Stored)):
        return value
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    after = {name: _changed(each, kind, change) for name, each in fields.items()}
    different = {name: each for name, each in after.items() if each is not fields[name]}
    return dataclasses.replace(value, **different) if different else value
