"""YAML that may come from elsewhere: bounded in depth and size before an object is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf._utils import get_yaml_loader

from scaling.errors import InputError
from scaling.reading import DEPTH_MAX, YAML_BYTES_MAX, RefusedError, read_text

NODES_MAX = 20_000
"""Keys, values and lists, with every alias written out; a run's own config.yaml has some hundred."""


def load_file(path: Path) -> Any:
    """The values of a YAML file; InputError where it cannot be read."""
    try:
        text = read_text(path, YAML_BYTES_MAX)
    except (OSError, RefusedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read ({why})") from error
    return load(text, str(path))


def load(text: str, where: str) -> Any:
    """The values of a YAML text, read as OmegaConf does but for interpolations; InputError where it is none."""
    try:
        _check(text)
        return get_yaml_loader()(text).get_single_data()  # a SafeLoader that reads 1e-4 as a number
    except (yaml.YAMLError, ValueError, TypeError) as error:  # ValueError: a date or number that there is not
        raise InputError(
            f"{where}: not the YAML that is expected ({' '.join(str(error).split())[:160]})"
        ) from error


def _check(text: str) -> None:
    """RefusedError for a text that is nested too deep or grows too large where its aliases are written out."""
    sizes = [0]  # nodes so far inside each open list or mapping
    names: list[str | None] = []
    anchored: dict[str, int] = {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            names.append(event.anchor)
            if len(sizes) > DEPTH_MAX:
                raise RefusedError(f"nested more than {DEPTH_MAX} levels deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, name = sizes.pop(), names.pop()
        elif isinstance(event, yaml.ScalarEvent):
            size, name = 1, event.anchor
        elif isinstance(event, yaml.AliasEvent):
            size, name = (
                anchored.get(event.anchor, NODES_MAX),
                None,
            )  # unknown here: it stands inside what it names
        else:
            continue
        sizes[-1] += size
        if name is not None:
            anchored[name] = size
        if sizes[-1] > NODES_MAX:
            raise RefusedError(f"more than {NODES_MAX} values, with its aliases written out")
