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
class NcclGroup:
    """How NCCL joined the ranks of one world size, by its own log."""

    world_size: int
    transports: tuple[str, ...]
    """P2P/CUMEM, SHM, NET/IB/GDRDMA, ...: those of most channels first."""
    in_network: tuple[str, ...] = ()
    """Switches that add up while they pass on: `NVLS`, `SHARP`. A ring's formulas do not hold of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclChoice:
    """What NCCL chose for the messages between two sizes."""

    collective: str
    algorithm: str
    protocol: str
    bytes_min: int
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLog:
    """What NCCL said of itself in a launch."""

    version: str | None
    groups: tuple[NcclGroup, ...] = ()
    choices: tuple[NcclChoice, ...] = ()
    """Empty unless it was asked for them: it then says so of every collective, also of those that are measured."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """All levels that were swept, and the way that NCCL took."""

    levels: tuple[Level, ...] = ()
    nccl: NcclLog | None = None

    def nccl_group(self, world_size: int) -> NcclGroup | None:
        """How NCCL joined so many ranks; None where it did not say."""
        groups = self.nccl.groups if self.nccl else ()
        return next((group for group in groups if group.world_size == world_size), None)


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
