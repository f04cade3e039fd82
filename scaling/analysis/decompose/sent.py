"""The collectives of a step, as all ranks have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.network.bus import bus_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A collective of a step, the same on every rank but for its group."""

    kind: str
    phase: str
    unit: int
    bytes: int
    """As nccl-tests counts them."""
    ranks: int
    """Of its communicator."""
    axis: str
    """The mesh axis of its communicator: `shard`, `replicate` or `tensor`."""

    @property
    def moved(self) -> float:
        """Bytes that a rank's link carries: bytes x the bus factor of the kind."""
        return self.bytes * bus_factor(self.ranks, self.kind)

    @property
    def hops(self) -> int:
        """Steps of a ring."""
        return (2 if self.kind == "all_reduce" else 1) * (self.ranks - 1)


def by_kind(sent: Sequence[Sent]) -> list[tuple[int, ...]]:
    """Places of the collectives that have kind, phase and communicator in common, in the order of the first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for place, one in enumerate(sent):
        found.setdefault((one.kind, one.phase, one.axis), []).append(place)
    return [tuple(places) for places in found.values()]
