"""A fault that is injected on purpose, and what the verdicts have to say about it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scaling.analysis.results import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One injected fault and the verdicts that are accepted for it."""

    name: str
    overrides: tuple[str, ...]
    """Of the run, with the fault; where a key stands twice the later one counts."""
    accepted: tuple[str, ...]
    """One of these causes has to be the first verdict."""
    possible: tuple[str, ...] = ()
    """Other causes that may be named too."""
    expected_ms: float | None = None
    """What the fault adds to a step."""
    attributed_ms: Callable[[Point], float | None] | None = None
    """Reads from the point what the analysis attributes to the fault."""
    rank: int | None = None
    """Rank of the straggler."""
    phase: str = ""
    """Phase of the straggler."""
    contended: bool = False
    """The run has to warn of contention; causes may then have low confidence only."""

    @property
    def settings(self) -> list[str]:
        """Overrides for `scaling run`, each key once."""
        return list({text.split("=", 1)[0]: text for text in self.overrides}.values())


def loss_ms(*causes: str) -> Callable[[Point], float | None]:
    """Reads what the waterfall has for some causes together, ms."""

    def found(point: Point) -> float | None:
        shares = [getattr(point.loss, cause) for cause in causes]
        known = [share.value for share in shares if share is not None]
        return sum(known) * point.step_ms.value if known and point.step_ms else None

    return found


def straggler_ms(point: Point) -> float | None:
    """What the late rank costs a step, ms."""
    return point.straggler.cost_ms.value if point.straggler else None


INJECTS = {"forward": "compute"}
"""Phase of a step -> the override `inject.NAME_ms` that stalls it, where their names differ."""


def stalled(phase: str, stall_ms: float, rank: int | None = None) -> Iterable[str]:
    """Overrides that stall a phase, on one rank or on all."""
    if rank is not None:
        yield f"inject.rank={rank}"
    yield f"inject.{INJECTS.get(phase, phase)}_ms={stall_ms:g}"
