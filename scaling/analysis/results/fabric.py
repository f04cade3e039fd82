"""What the links reached, what NCCL logged, and laws fitted over world sizes."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured, at


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One message size of the fabric sweep, in nccl-tests' terms."""

    collective: str
    bytes: int
    time_us: Measured
    algbw_gbit_s: Measured
    busbw_gbit_s: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """Two sizes between which the time of a collective does what its bytes do not explain."""

    collective: str
    kind: str
    """falls: the larger message takes less time; jumps: it takes far more than its bytes; unsteady: both, in turns."""
    from_bytes: int
    to_bytes: int
    factor: float
    """Time at `to_bytes` over time at `from_bytes`; in an unsteady range the largest such factor between neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLevel(AtSize):
    """A group's own curve: time = 2(n-1) (alpha + m beta / n) for an all-reduce of m bytes."""

    name: str
    alpha_us: Measured | None
    busbw_gbit_s: Measured | None
    """1/beta: the bandwidth that large messages approach."""
    nominal_gbit_s: float | None
    curve: tuple[CurvePoint, ...]
    host_latency_us: Measured | None = None
    """What the host adds to a small all-reduce that it starts on an idle device; None where that was not measured."""
    fit_error: float | None = None
    """Median of |T - fitted| / T over the sizes of the all-reduce: how far the line with one alpha and beta is off."""
    cliffs: tuple[Cliff, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclGroup(AtSize):
    """How NCCL connected the ranks of one world size, from its log."""

    transports: tuple[str, ...]
    """P2P/CUMEM, SHM, NET/IB/GDRDMA, ...: the one with the most channels first."""
    in_network: tuple[str, ...] = ()
    """Switches that reduce in the network: `NVLS`, `SHARP`. The formulas of a ring do not apply to them."""


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
    """What NCCL logged in a launch."""

    version: str | None
    groups: tuple[NcclGroup, ...] = ()
    choices: tuple[NcclChoice, ...] = ()
    """Empty unless NCCL was asked to log them, which it then does for every collective, measured ones included."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """All levels that were swept, and what NCCL logged."""

    levels: tuple[FabricLevel, ...] = ()
    nccl: NcclLog | None = None

    def nccl_group(self, world_size: int) -> NcclGroup | None:
        """How NCCL connected `world_size` ranks; None where the log does not say."""
        return at(world_size, self.nccl.groups) if self.nccl else None
