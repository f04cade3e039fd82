"""The hosts of a run beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host by its own step and its own link, where ranks were spread over the hosts."""

    host: int
    hostname: str
    ranks: tuple[int, ...]
    step_ms: Measured | None = None
    """Of its ranks without DDP, every rank of the launch at work."""
    step_ratio: Measured | None = None
    """Over the median host's."""
    link_gbit_s: Measured | None = None
    """busbw of a rank with one on another host, the better of two such hosts, all pairs at once; None below 3 hosts."""
    link_ratio: Measured | None = None
    """Over the median host's."""
    slow_in: tuple[str, ...] = ()
    """`step`, `link`: what it is behind the median host in, by more than chance."""
