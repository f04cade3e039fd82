"""The machine whose cores a run's ranks share: how much longer they take there. Pure: no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass

SIDE_BY_SIDE = 1.1
"""Ranks on the same cores slow one another down by about this much, through caches and memory."""
HOP_S = 1.5e-4
"""Processor time that a rank takes for a hop of Gloo's ring, most of it to wake its thread (64 ranks on two cores)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cores that the run has, and how many other programs want them."""

    cores: int
    beside: float = 0.0
    """Processes that run beside this one."""

    def slower(self, processes: int) -> float:
        """How many times longer compute takes in each of some processes at once than in a single one."""
        if processes <= 1:
            return 1.0
        alone = min(1.0, self.cores / (1 + self.beside))
        together = min(1.0, self.cores / (processes + self.beside))
        return alone / together * SIDE_BY_SIDE

    def shared(self, processes: int) -> float:
        """How many times longer compute takes in each of some processes than on a core of its own."""
        crowd = (processes + self.beside) / self.cores
        return crowd * SIDE_BY_SIDE if processes > 1 and crowd > 1 else 1.0

    def hops_s(self, ranks: int, at_work: int) -> float:
        """What Gloo's all-reduce among some ranks takes beside its bytes, while `at_work` ranks do the same here."""
        return 2 * (ranks - 1) * HOP_S * self.shared(at_work)
