"""What the ranks of a run ran on, with equal ranks grouped.

The hosts of a run compared with each other.

How far the ranks' own steps are apart, of more ranks than a table can show.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """Hosts and ranks that are equal in everything shown here; None where a rank could not tell."""

    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    """Compute threads of each rank."""
    device_name: str | None = None
    device_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    kernel: str | None = None
    python: str | None = None
    torch: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """Variables with the same value on all of them."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """One rank's own step."""

    rank: int
    step_ms: Measured
    ratio: Measured
    """Relative to the median rank of each round."""
    slow: bool
    """Whether it is slower than the median rank by more than chance, among all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSteps:
    """A host and the slowest of its ranks."""

    host: int
    hostname: str
    ranks: int
    """Of this host, in all."""
    ratio: float
    """Mean of its ranks' own steps over the median rank's."""
    slowest: tuple[OwnStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread:
    """The own steps of all ranks at the largest world size: without DDP, while every rank is at work.

    Each rank's is its mean over the rounds; percentiles are over ranks.
    """

    world_size: int
    least_ms: float
    p5_ms: float
    median_ms: float
    p95_ms: float
    most_ms: float
    slow: int
    """Ranks that are slower than the median rank by more than chance."""
    edges_ms: tuple[float, ...]
    """Of equally wide bins from the least to the most."""
    counts: tuple[int, ...]
    """Ranks in each bin."""
    hosts: tuple[HostSteps, ...]
    """Those with the slowest ranks, the slowest first."""
