"""Frozen dataclasses to JSON and back, with the standard library alone (workers use it too).

A field whose name ends in an underscore loses it in JSON (`try_` <-> `try`), since some of
the keys are Python's own words.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

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
    """Build `kind` from plain JSON values; unknown keys raise ValueError, missing ones take the default."""
    return typing.cast("T", _decode(kind, data, kind.__name__))


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        (kind,) = (a for a in args if a is not type(None))
        return _decode(kind, data, where)
    if origin is tuple:
        return tuple(_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if origin is list:
        return [_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(data)]
    if origin is dict:
        return {k: _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
        hints = typing.get_type_hints(kind)
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
