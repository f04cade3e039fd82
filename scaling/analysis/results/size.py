"""Results that belong to one world size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class AtSize:
    """Something that was found at one world size."""

    world_size: int


Found = TypeVar("Found", bound=AtSize)


def at(world_size: int, results: Iterable[Found]) -> Found | None:
    """The first result of a world size; None where there is none."""
    return next((one for one in results if one.world_size == world_size), None)
