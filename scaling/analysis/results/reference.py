"""What others' trainings kept at a world size, from published figures."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.size import AtSize


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTraining:
    """One published series at this world size."""

    efficiency: float
    """Throughput a device over that at the base world size, from the published figures; they have no interval."""
    series: str
    source: str
    model: str
    device: str
    network: str
    strategy: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersKept(AtSize):
    """All published series that have both this world size and the run's base, in the run's kind of scaling."""

    base_world_size: int
    mode: str
    alike: tuple[str, ...]
    """In what they are like the run: `device`, `strategy`; the others differ in it or are of any kind."""
    others: tuple[OtherTraining, ...]
    """By efficiency, the lowest first."""
    terms: str
    """What the sources ask to be said; empty for most."""

    @property
    def low(self) -> float:
        """The lowest efficiency."""
        return self.others[0].efficiency

    @property
    def high(self) -> float:
        """The highest efficiency."""
        return self.others[-1].efficiency
