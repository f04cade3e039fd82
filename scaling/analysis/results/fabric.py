"""What the links gave, and laws fitted over world sizes."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One message size of the fabric sweep, in nccl-tests' terms."""

    collective: str
    bytes: int
    time_us: Measured
    algbw_gbit_s: Measured
    busbw_gbit_s: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A group's own curve: time = 2(n-1) (alpha + m beta / n) for an all-reduce of m bytes."""

    name: str
    world_size: int
    alpha_us: Measured | None
    busbw_gbit_s: Measured | None
    """1/beta: the bandwidth the large sizes tend to."""
    nominal_gbit_s: float | None
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """All levels that were swept."""

    levels: tuple[Level, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KarpFlatt:
    """Serial fraction by Karp and Flatt (1990), strong scaling only."""

    world_size: int
    serial_fraction: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Usl:
    """Universal Scalability Law (Gunther 2007): contention sigma and coherency kappa."""

    sigma: Measured
    kappa: Measured
    peak_world_size: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Scaling laws fitted over world sizes."""

    karp_flatt: tuple[KarpFlatt, ...] = ()
    usl: Usl | None = None
