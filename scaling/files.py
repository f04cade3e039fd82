"""Files that land by rename, and versions that are checked. Needs the standard library alone: workers use it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from scaling import codec
from scaling.errors import InputError

T = TypeVar("T")


def write_text(path: Path, text: str) -> None:
    """Write by rename, so that a reader sees the whole file or none."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Write a dataclass or plain value as JSON, by rename."""
    write_text(path, json.dumps(codec.encode(value), indent=indent, allow_nan=False) + "\n")


def read_json(
    path: Path, kind: type[T], schema: int, *, remedy: str = "it should be a file that `scaling` wrote"
) -> T:
    """Read a versioned file; InputError names the way out when it is older, newer or damaged (`remedy`)."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = data.get("schema")
    except (OSError, ValueError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read ({why}); {remedy}") from error
    if not isinstance(found, int):
        raise InputError(f"{path}: no file of a version of this program; {remedy}")
    if found != schema:
        way_out = "update scaling-harness" if found > schema else "run `scaling analyze` again"
        raise InputError(f"{path}: written in format {found}, this version reads format {schema}; {way_out}")
    try:
        return codec.decode(kind, data)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: damaged ({error}); {remedy}") from error
