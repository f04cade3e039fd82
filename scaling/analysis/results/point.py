"""One world size: how long a step takes, how its time is spent, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.results.lost_time import Drift, Goodput, Pause, Stall
from scaling.analysis.results.measured import AtSize, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimes:
    """Mean step time of each arm, ms; docs/method.md describes the arms."""

    bare_one: Measured | None = None
    bare_all: Measured | None = None
    ddp_solo: Measured | None = None
    plain: Measured | None = None
    probe: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """A step of the probe arm by part, ms, mean over ranks. The parts add up to the step."""

    input: Measured | None = None
    forward: Measured | None = None
    backward: Measured | None = None
    exposed_transfer: Measured | None = None
    exposed_skew: Measured | None = None
    exposed_enqueue: Measured | None = None
    """Waiting for the host to enqueue a collective that all ranks are ready for; None where it cost nothing."""
    optimizer: Measured | None = None
    host: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """1 - efficiency by cause, each a fraction of the plain step at this world size. The terms add up to it."""

    small_batch: Measured | None = None
    neighbours: Measured | None = None
    strategy_overhead: Measured | None = None
    straggler: Measured | None = None
    imbalance: Measured | None = None
    """Ranks that wait for those with more tokens in their step; None where tokens are not told, or have no effect."""
    link_latency: Measured | None = None
    link_bandwidth: Measured | None = None
    communication: Measured | None = None
    """What all ranks wait alike, in place of the link's two terms where details cannot split it."""
    overlap: Measured | None = None
    input: Measured | None = None
    host: Measured | None = None
    clocks: Measured | None = None
    slower_compute: Measured | None = None
    """Only in a study of separate launches, which have no arms to split it by: forward, backward and optimizer of the
    typical ranks, beyond what they take at the smallest world size."""
    unexplained: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The late rank, the phase it is late in, and what it costs the others."""

    rank: int
    phase: str
    """step: not known."""
    by_itself: bool | None
    """Whether the rank is slow in bare_one too, that is, without the others; None where that is not known."""
    cost_ms: Measured
    skew_ms: Measured
    """How much longer the others wait in a step than it does."""
    host: int | None = None
    """Its host, if that has several ranks and all of them are late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPhase:
    """A part of an own loop's step that the loop names, mean over ranks and steps."""

    name: str
    ms: Measured
    waits_ms: Measured
    """What of that is waits for communication."""
    late_rank: int | None = None
    late_ms: Measured | None = None
    """By how much that rank is done later by itself than the latest of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBalance:
    """How the tokens of an own loop's steps are spread over the ranks, and what that costs."""

    per_step: Measured
    """Tokens per rank and step, mean over the ranks."""
    most_over_mean: Measured
    """Largest token count of any rank divided by the mean over ranks, averaged over steps; 1.0 is perfect balance."""
    rank: int | None
    """The rank that has most over all steps; None where that is chance."""
    rank_extra: Measured | None
    """How many more it has in a step than the mean rank."""
    per_token_us: Measured | None
    """A rank's own time a token; None where the ranks' tokens do not vary enough from step to step to tell."""
    per_square_us: Measured | None = None
    """What a squared token takes beside; None where the squares are not told, or have no sure effect. With it, numbers
    of tokens but `per_step` are of tokens that take as long."""
    saves_ms: Measured | None
    """What a step would save if each rank had the mean of its tokens; None where they have no sure effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The probe's own cost, and the same statistic between alternate plain blocks (ratios near 1)."""

    probe_over_plain: Measured | None = None
    aa_floor: Measured | None = None
    equal_arms_apart: Measured | None = None
    """By how much two equal arms come out apart by chance (scaling.analysis.statistics.rounds); no interval."""

    @property
    def floor(self) -> float:
        """How far apart equal arms come out by chance: the fraction to which a difference between arms is known."""
        alternate = self.aa_floor.departure() if self.aa_floor else 0.0
        if self.equal_arms_apart is None:
            return alternate
        seen = abs(self.aa_floor.value - 1) if self.aa_floor else 0.0
        return max(self.equal_arms_apart.value, seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket of gradients. Ready times count from the start of backward; transfer is what it takes alone."""

    bytes: int
    ready_ms: Measured | None
    transfer_ms: Measured | None
    skew_ms: Measured | None
    shared_ms: Measured | None = None
    """For how long other communicators' collectives went over the same link at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The collectives of a step that have kind, phase and communicator in common."""

    kind: str
    phase: str
    """Part of the step in which they are launched."""
    communicator: str
    """Its mesh axis: `shard`, `replicate` or `tensor`."""
    ranks: int
    """Ranks of the communicator."""
    calls: int
    bytes: int
    """Bytes of all calls, as nccl-tests counts them."""
    transfer_ms: Measured | None = None
    """What they, and the same ones of other groups on their link, have of it; sharing it with others counts half."""
    exposed_transfer_ms: Measured | None = None
    """Part of the step in which a rank waits for them while data moves."""
    exposed_skew_ms: Measured | None = None
    """Part in which it waits for other ranks."""
    busbw_gbit_s: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOfKind:
    """The link's part of the loss that collectives of one kind and phase have."""

    kind: str
    phase: str
    latency: Measured | None = None
    bandwidth: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The mesh of one world size."""

    strategy: str
    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """Traffic of one step."""

    bytes_per_step: int
    """Payload that each rank reduces in a step; of a loop whose collectives are not told apart, all that it begins."""
    buckets: tuple[Bucket, ...]
    busbw_gbit_s: Measured | None
    curve_share: Measured | None
    nominal_share: Measured | None
    hidden_share: Measured | None
    gradient_bytes: int | None = None
    """Size of all gradients. `bytes_per_step` is smaller if a communication hook compresses them."""
    reductions: int | None = None
    """How often a step reduces each gradient: 1, unless no_sync is missing in accumulation. None: not known."""
    free_speedup: Measured | None = None
    """Upper bound of the speedup if communication took no time and compute stayed the same."""
    host_lead_ms: Measured | None = None
    """How far the host is ahead of the device where it enqueues a bucket; None where no host enqueues."""
    starved_share: Measured | None = None
    """Fraction of the buckets at which the device had caught up with the host, and so waited for it."""
    least_share: Measured | None = None
    """Shortest duration of the collectives on any one rank's clock, over their duration by all clocks together."""
    collectives: tuple[Collective, ...] = ()
    """By kind, phase and communicator."""
    unclaimed_bytes: int | None = None
    """Own loops: what a rank sends in a step and nobody was seen to wait for.

    No rank is named late where it is more than a small share, or where the loop asked for its end instead of waiting.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Memory of a rank in its plain blocks, bytes: of the one whose peak is the largest. None: not known.

    The parts need not be held at the same time, so they may add up to more than the peak.
    """

    peak_bytes: int | None = None
    """The training's own: the harness's bytes are subtracted."""
    parameters_bytes: int | None = None
    """With the module's buffers."""
    gradients_bytes: int | None = None
    """With DDP's buckets, where gradients are no views of them."""
    optimizer_bytes: int | None = None
    activations_bytes: int | None = None
    """What one forward leaves for its backward, with its batch."""
    unsharded_bytes: int | None = None
    """Sharded training: most of gathered parameters at once, with the buffers into which they are gathered."""
    communicators_bytes: int | None = None
    """Outside of torch's allocator, so beside the peak; the largest of any rank."""
    harness_bytes: int | None = None
    """What the measurement itself held at the same time."""
    computed_parameters_bytes: int | None = None
    """By arithmetic, from the whole model and the mesh, like the next three."""
    computed_gradients_bytes: int | None = None
    computed_optimizer_bytes: int | None = None
    computed_unsharded_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoading:
    """How the batches were made."""

    workers: int
    """Worker processes of each rank; 0: the training process makes the batches."""
    make_ms: Measured
    """Time to make one batch in one worker."""
    make_cpu_ms: Measured | None
    wait_share: Measured | None
    """Share of the step that would be saved if every batch were ready."""
    workers_needed: int | None
    """Workers of each rank so that no step waits."""
    cores_needed: float | None
    """Cores of a host to train without waiting and make batches at that rate."""
    cores: int | None
    """Cores that a host has."""
    slowest_rank: int | None = None
    """The rank whose steps spend most in input, where that is clearly more than the mean over ranks."""
    slowest_input_ms: Measured | None = None
    """What it spends."""
    others_input_ms: Measured | None = None
    """What the others spend on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A rank whose device slowed itself down."""

    rank: int
    blocks: int
    of: int
    """Blocks with telemetry."""
    reasons: tuple[str, ...]
    """As NVML names them: hw_slowdown, sw_thermal, hw_thermal, hw_power_brake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClocks:
    """SM clocks of the devices of ranks that are not late, and the devices that slowed themselves down."""

    alone_mhz: Measured | None = None
    beside_mhz: Measured | None = None
    """While all ranks run without DDP."""
    together_mhz: Measured | None = None
    """With DDP over the group."""
    throttled: tuple[Throttled, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """What samples cost at one world size; each rank counts as one GPU."""

    usd_per_million_samples: Measured | None = None
    """None without a price (cost.usd_per_gpu_hour)."""
    power_w: Measured | None = None
    """Sum over all ranks' GPU boards during plain steps."""
    samples_per_joule: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigures(AtSize):
    """How well one world size does, measured or predicted."""

    hosts: int
    step_ms: Measured | None = None
    """Mean over ranks and steps."""
    samples_per_s: Measured | None = None
    """Throughput of all ranks together."""
    speedup: Measured | None = None
    """Throughput over that of the base world size (one rank, where one rank ran the batch)."""
    efficiency: Measured | None = None
    """A fraction of 1."""
    loss: Loss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(KeyFigures):
    """One measured world size."""

    status: str
    """done, or how the trial ended."""
    warmup_steps: int | None = None
    base_world_size: int = 1
    """Efficiency and speedup are relative to this world size: one rank, unless no rank ran the whole batch alone."""
    efficiency_loaded: Measured | None = None
    arms_ms: ArmTimes = field(default_factory=ArmTimes)
    parts_ms: StepParts = field(default_factory=StepParts)
    closure: Measured | None = None
    """The step as simulated from its parts, over the measured step: 1 where the parts explain it."""
    mfu: Measured | None = None
    """Model FLOPs utilisation of the plain step; `hfu` counts what checkpointing runs again too. See RooflineResult."""
    hfu: Measured | None = None
    tokens_per_s: Measured | None = None
    """Sum over ranks; None where neither the model tells the tokens of a sample, nor an own loop those of its steps."""
    straggler: Straggler | None = None
    tokens: TokenBalance | None = None
    """None where the loop does not tell its tokens (Probe.tokens)."""
    phases: tuple[NamedPhase, ...] = ()
    """Those that an own loop names (Probe.phase), in the order of first use."""
    overhead: Overhead = field(default_factory=Overhead)
    comm: Comm | None = None
    memory: PeakMemory = field(default_factory=PeakMemory)
    loader: DataLoading | None = None
    """None where the data were synthetic."""
    clocks: DeviceClocks | None = None
    """None where no device reported its clock."""
    cost: SampleCost = field(default_factory=SampleCost)
    pauses: tuple[Pause, ...] = ()
    stalls: tuple[Stall, ...] = ()
    """The steps of both are in no other figure."""
    drifts: tuple[Drift, ...] = ()
    goodput: Goodput | None = None
    """Own loops alone."""
    parallel: Degrees | None = None
    loss_by_kind: tuple[LossOfKind, ...] = ()
    """`link_latency` and `link_bandwidth` of `loss`, by kind and phase of the collective that is waited for."""
