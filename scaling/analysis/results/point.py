"""One world size: how long a step takes, where it goes, what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Mean step time of each arm, ms."""

    bare_one: Measured | None = None
    bare_all: Measured | None = None
    ddp_solo: Measured | None = None
    plain: Measured | None = None
    probe: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A step of the probe arm, ms, mean over ranks; they add up to it."""

    input: Measured | None = None
    forward: Measured | None = None
    backward: Measured | None = None
    exposed_transfer: Measured | None = None
    exposed_skew: Measured | None = None
    optimizer: Measured | None = None
    host: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """1 - efficiency by cause, each a fraction of the plain step at this world size; they add up to it."""

    small_batch: Measured | None = None
    neighbours: Measured | None = None
    ddp_overhead: Measured | None = None
    straggler: Measured | None = None
    link_latency: Measured | None = None
    link_bandwidth: Measured | None = None
    overlap: Measured | None = None
    input: Measured | None = None
    host: Measured | None = None
    clocks: Measured | None = None
    unexplained: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The late rank, the phase it is late in, and what it costs the others."""

    rank: int
    phase: str
    by_itself: bool | None
    """Whether it is slow alone too (bare_one); None where that was not measured."""
    cost_ms: Measured
    skew_ms: Measured
    host: int | None = None
    """Its host, where that has several ranks and all of them are late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The probe's own cost, and the same statistic between alternate plain blocks (ratios near 1)."""

    probe_over_plain: Measured | None = None
    aa_floor: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of gradients, ms after the start of backward; transfer is its share of the busy link."""

    bytes: int
    ready_ms: Measured | None
    transfer_ms: Measured | None
    skew_ms: Measured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """Gradient traffic of one step."""

    bytes_per_step: int
    """Reduced in a step, payload of a rank."""
    buckets: tuple[Bucket, ...]
    busbw_gbit_s: Measured | None
    curve_share: Measured | None
    nominal_share: Measured | None
    hidden_share: Measured | None
    gradient_bytes: int | None = None
    """Of all gradients once, as DDP has them. `bytes_per_step` is less where a communication hook sends less."""
    reductions: int | None = None
    """How often a step reduces each gradient: 1 unless no_sync was left out of accumulation. None: not known."""
    free_speedup: Measured | None = None
    """How many times faster a step were at most if communication took no time and compute stayed as it is."""
    least_share: Measured | None = None
    """The shortest that any rank saw the collectives take, by its own clock, over what all clocks make of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak bytes of a rank (the largest rank)."""

    peak_bytes: int | None = None
    communicators_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """How the batches were made."""

    workers: int
    """Processes a rank; 0: the training process."""
    make_ms: Measured
    """One batch, in one worker."""
    make_cpu_ms: Measured | None
    wait_share: Measured | None
    """Of the step: what it would not take had every batch been ready."""
    workers_needed: int | None
    """A rank, so that no step waits."""
    cores_needed: float | None
    """A host, to train without waiting and make batches that fast."""
    cores: int | None
    """That a host has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A rank whose device slowed itself down."""

    rank: int
    blocks: int
    of: int
    """Blocks of which it is known."""
    reasons: tuple[str, ...]
    """As NVML names them: hw_slowdown, sw_thermal, hw_thermal, hw_power_brake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """SM clocks of the devices of the ranks that are not late, and which devices slowed themselves down."""

    alone_mhz: Measured | None = None
    beside_mhz: Measured | None = None
    """With all ranks at work, without DDP."""
    together_mhz: Measured | None = None
    """With DDP over the group."""
    throttled: tuple[Throttled, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What samples cost at one world size. A rank is taken for a GPU."""

    usd_per_million_samples: Measured | None = None
    """None without a price (cost.usd_per_gpu_hour)."""
    power_w: Measured | None = None
    """Of all ranks' GPU boards, in plain steps."""
    samples_per_joule: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One world size."""

    world_size: int
    hosts: int
    status: str
    warmup_steps: int | None = None
    step_ms: Measured | None = None
    samples_per_s: Measured | None = None
    speedup: Measured | None = None
    efficiency: Measured | None = None
    base_world_size: int = 1
    """What efficiency and speedup are over: one rank, or so many where none ran the whole batch alone."""
    efficiency_loaded: Measured | None = None
    arms_ms: Arms = field(default_factory=Arms)
    parts_ms: Parts = field(default_factory=Parts)
    closure: Measured | None = None
    loss: Loss | None = None
    straggler: Straggler | None = None
    overhead: Overhead = field(default_factory=Overhead)
    comm: Comm | None = None
    memory: Memory = field(default_factory=Memory)
    loader: Loader | None = None
    """None where batches were made up."""
    clocks: Clocks | None = None
    """None where no device told."""
    cost: Cost = field(default_factory=Cost)
