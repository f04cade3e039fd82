"""Write files by rename, check versions on reading, make folders; frozen dataclasses as plain JSON values and back.

Needs only the standard library, since workers use it.

JSON keys that are Python keywords are fields with an underscore at the end: `try` is `try_`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import secrets
import shutil
import types
import typing
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from scaling import reading
from scaling.errors import InputError, ScalingError, while_reading
from scaling.settings.bounds import HELD, out_of_bounds


def encode(value: Any) -> Any:
    """Dataclasses, mappings and sequences as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name.rstrip("_"): encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    return value


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What a tree of plain values holds but None, by its keys with dots between them."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def decode(kind: type[T], data: Any) -> T:
    """Build `kind` from plain JSON values. Missing keys take the default; those in `kind.GONE` are left out.

    ValueError for unknown keys, wrong types, and values out of the HELD bounds of a field (settings.bounds);
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
    if origin in (tuple, list):
        if not isinstance(data, list | tuple):
            raise ValueError(f"{where}: expected a list, found {type(data).__name__}")
        return origin(_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if (origin is dict or dataclasses.is_dataclass(kind)) and not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
    if origin is dict:
        return {k: _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast("Hashable", kind))
        names = {f.name.rstrip("_"): f.name for f in dataclasses.fields(kind)}
        unknown = set(data) - set(names) - set(getattr(kind, "GONE", ()))
        if unknown:
            raise ValueError(f"{where}: unknown key {min(unknown)!r}")
        values = {n: _decode(hints[n], data[k], f"{where}.{k}") for k, n in names.items() if k in data}
        return kind(**values)  # type: ignore[operator]
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind in (int, float, str, bool) and type(data) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(data).__name__}")
    return data


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


T = TypeVar("T")


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    """Write by rename, so that a reader sees the whole file or the one before. `private`: for this user alone."""
    # Others may write to the folder, so the name is new: O_EXCL follows no link that waits for it.
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(part)):
            error.filename = str(path)  # what the user knows, not the name in between
        raise


def write_json(path: Path, value: Any, *, indent: int | None = 1, private: bool = False) -> None:
    """Write a dataclass or plain value as JSON, by rename."""
    text = json.dumps(encode(value), indent=indent, allow_nan=False) + "\n"
    write_text(path, text, private=private)


def remove(parent: Path, name: str) -> None:
    """Remove a folder by its name in `parent`, which is held open, so that nobody can have another one removed."""
    try:
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        shutil.rmtree(f"/proc/self/fd/{handle}/{name}", ignore_errors=True)
    finally:
        os.close(handle)


def add_line(path: Path, value: Any) -> None:
    """Append a value as a line of JSON, in one write: processes of one host may share the file, without a lock.

    OSError where the disk has no room for the whole line.
    """
    line = json.dumps(encode(value), allow_nan=False).encode() + b"\n"
    with reading.open_to_write(path, append=True, mode=0o600) as file:
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_json(
    path: Path, kind: type[T], schema: int, *, remedy: str = "it should be a file that `scaling` wrote"
) -> T:
    """Read a versioned file. InputError where it is older, newer or damaged; `remedy` says what to do then."""
    with while_reading(path, remedy):
        data = reading.read_json(path)
    written = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(written, int):
        raise InputError(f"{path}: has no format number, so no version of this program wrote it; {remedy}")
    if written != schema:
        way_out = "update scaling-harness" if written > schema else "run `scaling analyze` again"
        raise InputError(
            f"{path}: written in format {written}, this version reads format {schema}; {way_out}"
        )
    try:
        return decode(kind, data)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: damaged ({error}); {remedy}") from error


def read_if_whole(path: Path, kind: type[T], schema: int) -> T | None:
    """Read a versioned file without which every number can be made; None where it is missing or damaged."""
    with contextlib.suppress(ScalingError):
        return read_json(path, kind, schema)
    return None


def check_writable(path: Path, asked: str) -> None:
    """InputError where no folder could be made or written to. `asked`: what the user gave. Creates nothing."""
    parent = next(p for p in [path, *path.absolute().parents] if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{asked}: {parent} cannot be written to; name a folder that can")


def make_folder(path: Path, asked: str) -> None:
    """Make a folder and those above it where they are missing; InputError where that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{asked}: cannot be made ({error.strerror}); name a folder that can") from error
