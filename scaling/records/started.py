"""launch.json: what `scaling launch` started, and how each launch of the script ended."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from scaling.errors import ScalingError
from scaling.records.files import read_json
from scaling.records.paths import RunFolder
from scaling.spec.ended import Ended
from scaling.spec.topology import Topology

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLaunch(Ended):
    """One launch: done, failed, timeout or interrupted."""

    index: int
    world_size: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All launches of one script."""

    schema: int
    id: str
    created: str
    version: str
    topology: Topology
    script: tuple[str, ...]
    """The script and its arguments."""
    probe: bool
    """Whether the script opens a Probe; without, one is opened for it."""
    world_sizes: tuple[int, ...]
    repeats: int
    launches: tuple[ScriptLaunch, ...] = ()


def read_started(folder: RunFolder) -> Started | None:
    """launch.json; None where it is missing or damaged: every number can be made without it."""
    with contextlib.suppress(ScalingError):
        return read_json(folder.started, Started, SCHEMA)
    return None
