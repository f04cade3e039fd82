"""Convert frozen dataclasses to plain JSON values and back. Needs only the standard library, since workers use it.

JSON keys that are Python keywords are fields with an underscore at the end: `try` is `try_`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Hashable
from typing import Any, TypeVar

from scaling.spec.settings import HELD, out_of_bounds

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Dataclasses, mappings and sequences as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name.rstrip("_"): encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


def decode(kind: type[T], data: Any) -> T:
    """Build `kind` from plain JSON values. Missing keys take the default.

    ValueError for unknown keys, wrong types, and values out of the HELD bounds of a field (spec.settings);
    TypeError for a missing key.
    """
    return typing.cast("T", _decode(kind, data, kind.__name__))


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        value = _decode(args[0], data, where)
        wrong = out_of_bounds((note for note in args[1:] if isinstance(note, HELD)), value)
        if wrong is not None:
            raise ValueError(f"{where}={wrong[0]}: {wrong[1]}")
        return value
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        (kind,) = (a for a in args if a is not type(None))
        return _decode(kind, data, where)
    if origin in (tuple, list) and not isinstance(data, list | tuple):
        raise ValueError(f"{where}: expected a list, found {type(data).__name__}")
    if origin is tuple:
        return tuple(_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if origin is list:
        return [_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(data)]
    if (origin is dict or dataclasses.is_dataclass(kind)) and not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
    if origin is dict:
        return {k: _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast("Hashable", kind))
        names = {f.name.rstrip("_"): f.name for f in dataclasses.fields(kind)}
        unknown = set(data) - set(names)
        if unknown:
            raise ValueError(f"{where}: unknown key {min(unknown)!r}")
        values = {names[k]: _decode(hints[names[k]], v, f"{where}.{k}") for k, v in data.items()}
        return kind(**values)  # type: ignore[operator]
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind in (int, float, str, bool) and type(data) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(data).__name__}")
    return data


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)
