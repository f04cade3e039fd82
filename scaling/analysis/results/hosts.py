"""The hosts of a run compared with each other."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeed:
    """One host's own step and own link, where ranks were spread over the hosts."""

    host: int
    hostname: str
    ranks: tuple[int, ...]
    step_ms: Measured | None = None
    """Mean step of its ranks without DDP, while every rank of the launch runs."""
    step_ratio: Measured | None = None
    """Relative to the median host."""
    link_gbit_s: Measured | None = None
    """busbw of a rank with one on another host, the better of two such hosts, all pairs at once; None below 3 hosts."""
    link_ratio: Measured | None = None
    """Relative to the median host."""
    slow_in: tuple[str, ...] = ()
    """`step`, `link`: what it is behind the median host in, by more than chance."""
