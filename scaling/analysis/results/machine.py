"""What a run ran on: its machines, hosts and ranks compared with each other, its links, and its device's ceilings."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured, at


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
    hosts: tuple[HostSteps, ...]
    """Those with the slowest ranks, the slowest first."""


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
    """Time at `to_bytes` over time at `from_bytes`; in an unsteady range how far apart neighbours are at least, but
    for their bytes."""


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
    receives: tuple[str, ...] = ()
    """Transports of the `[receive]` lines alone, which show GPUDirect RDMA where it counts."""
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
    others: tuple[str, ...] = ()
    """The best figure of each swept collective beside what others reach on such a machine (docs/links.md)."""

    def nccl_group(self, world_size: int) -> NcclGroup | None:
        """How NCCL connected `world_size` ranks; None where the log does not say."""
        return at(world_size, self.nccl.groups) if self.nccl else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingResult:
    """The best rate of one kind of work on this device, of n tries (0: a data sheet): disturbances only slow down."""

    name: str
    unit: str
    size: int
    best: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of a step's time."""

    name: str
    """A key of `scaling.analysis.decompose.kernels.MEANS`."""
    ms: Measured
    share: float
    means: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowKernel:
    """One operator on the same shapes and types: what it took in a step, and what its ceiling allows."""

    operator: str
    shapes: str
    layer: str
    """The first that calls it; empty where that is not known, or outside of all."""
    layers: int
    calls: float
    ms: Measured
    """All calls of a step."""
    least_ms: Measured
    part: str
    """The name of the step's part that it belongs to."""
    elementwise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Where a step's time goes. The parts and what is not explained sum to the step."""

    parts: tuple[StepPart, ...]
    unexplained_ms: Measured
    slowest: tuple[SlowKernel, ...]
    """Those that lose most against their ceiling."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineResult:
    """A step of one rank, without DDP, against the ceilings of its device."""

    rank: int
    device: str
    precision: str
    batch: int
    flops: int
    bytes: int
    operators: int
    """Calls a step."""
    step_ms: Measured
    said: str
    """What limits the step, as a sentence."""
    bound: str
    """compute, memory, launch, input, host_transfer, or `none`: no ceiling explains the step."""
    least_ms: dict[str, Measured]
    """By bound: the least time for that kind of work alone."""
    achieved_flop_s: Measured
    mfu: Measured | None
    """Model FLOPs utilisation: the step's FLOPs over what the peak would have done meanwhile. A forward that
    checkpointing runs again does not count."""
    ceilings: tuple[CeilingResult, ...]
    hfu: Measured | None = None
    """Hardware FLOPs utilisation: the same with all FLOPs that the device did."""
    peak: CeilingResult | None = None
    """The peak in this precision: the data sheet's, else the best of what was measured of product and convolution."""
    peak_is: str = ""
    """What the peak is, as a phrase."""
    above: str = ""
    """Why a utilisation is above 1; empty where none is."""
    where: StepTime | None = None
    """None where no kernel was timed."""
