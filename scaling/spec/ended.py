"""How something ended: a case, a trial or a launch."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1
"""Version of cases.json."""
LEFT_OUT = "left_out"
"""Status of what the budget leaves no time for, as was said."""
SETTLED = ("done", LEFT_OUT)
"""Statuses of what is neither missing nor failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The status in which something ended and, where it failed, the error and the rank that had it."""

    status: str
    error: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Ended):
    """How one case ended at one world size: fits, oom, failed or left_out."""

    world_size: int
    case: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Contents of one launch's cases.json."""

    schema: int
    outcomes: tuple[Outcome, ...]
