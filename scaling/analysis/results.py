"""What the analysis found: frozen results, one class per object of analysis.json.

Field names are the JSON keys (a trailing underscore is dropped). A measured number is a
`Measured`, or the whole object is None: never 0 for "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis import measured
from scaling.analysis.traced import Traced

SCHEMA = 1
Measured = measured.Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What was measured, on what."""

    id: str
    model: str
    topology: str
    precision: str
    mode: str
    task: str
    backend: str
    device: str
    started: str
    duration_s: float
    synthetic: bool
    launches: int
    device_name: str = ""
    """What the device calls itself; empty where nobody asked it."""


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
    """Of all gradients once. Less than `bytes_per_step` where accumulation reduces in every micro-step."""
    free_speedup: Measured | None = None
    """How many times faster a step were at most if communication took no time and compute stayed as it is."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something to change: exact overrides, the line of one's own code they stand for, the predicted gain.

    The gain is a ratio of throughputs: above 1 is faster.
    """

    overrides: str
    code: str
    predicted_gain: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A named cause at one world size. `share` is what removing it would save, over the plain step."""

    cause: str
    world_size: int
    share: Measured | None
    confidence: str
    evidence: tuple[str, ...]
    try_: tuple[Remedy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What stands against the numbers."""

    contended_blocks: int
    dropped_samples: int
    clock_bound_us: float | None
    reached: tuple[str, ...] = ()
    """How well the efficiency is known, and what knowing it better would take."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """How a trial ended."""

    world_size: int
    status: str
    error: str | None = None
    rank: int | None = None
    launches: tuple[int, ...] = ()
    """Those that its numbers come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingResult:
    """The best that one kind of work reached on this device: best of n, disturbances only slow."""

    name: str
    unit: str
    size: int
    best: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorResult:
    """One operator of the step, all its calls: the least time that the ceilings allow it, and which one binds."""

    name: str
    layer: str
    count: int
    flops: int
    bytes: int
    least_ms: Measured
    bound: str
    """`compute`, `memory` or `launch`."""


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
    """What binds it, in words."""
    bound: str
    """compute, memory, launch, input, host_transfer, or `none`: no ceiling explains the step."""
    least_ms: dict[str, Measured]
    """By bound: the least time of its kind of work, were there no other."""
    achieved_flop_s: Measured
    mfu: Measured | None
    """Achieved over the measured matrix-product ceiling of the precision."""
    ceilings: tuple[CeilingResult, ...]
    top: tuple[OperatorResult, ...]
    """The operators that must take longest."""
    mfu_at: dict[str, Measured] = field(default_factory=dict)
    """By world size: of the plain step, DDP and waiting included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """What one rank held at the first and the last block of a launch, and by how much it grew a step."""

    launch: int
    rank: int
    kind: str
    """`host` or `device`."""
    begin_bytes: int
    end_bytes: int
    steps: int
    growth_bytes_per_step: Measured
    leak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles over the requests of all ranks; None where there were too few requests for one."""

    p50: Measured | None = None
    p90: Measured | None = None
    p99: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Replicas of a model on every rank of a world size, at one batch."""

    world_size: int
    batch: int
    precision: str
    autocast: bool
    compile: bool
    status: str
    latency_ms: Latency = field(default_factory=Latency)
    samples_per_s: Measured | None = None
    """Of all ranks together."""
    peak_bytes: int | None = None
    knee: bool = False
    """The smallest batch with about all of the best throughput."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Training steps under DDP at one batch."""

    world_size: int
    batch: int
    """Samples a rank and step, over all accumulation steps."""
    accumulation_steps: int
    precision: str
    checkpointing: bool
    status: str
    step_ms: Measured | None = None
    samples_per_s: Measured | None = None
    exposed_ms: Measured | None = None
    """What a step waits for communication, mean over ranks; late peers included."""
    peak_bytes: int | None = None
    knee: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTry:
    """One batch of a search."""

    batch: int
    status: str
    rank: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The largest batch that fits, a rank and step."""

    precision: str
    autocast: bool
    compile: bool
    checkpointing: bool
    accumulation_steps: int
    limit_bytes: int | None
    found: int
    proved: int | None
    """What ran in fresh processes, with a margin."""
    step: int
    """How finely batches were told apart."""
    tries: tuple[BatchTry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The whole of analysis.json."""

    schema: int
    run: RunInfo
    points: tuple[Point, ...]
    fabric: Fabric
    fits: Fits
    inference: tuple[Inference, ...]
    verdicts: tuple[Verdict, ...]
    quality: Quality
    trials: tuple[TrialOutcome, ...]
    roofline: RooflineResult | None = None
    memory: tuple[MemoryGrowth, ...] = ()
    trace: tuple[Traced, ...] | None = None
    """What traces of other tools show beyond this, one object a world size; None for a run of one's own."""
    training: tuple[Training, ...] = ()
    largest_batch: tuple[LargestBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one rank's typical step, ms from the step's first begin."""

    rank: int
    lane: str
    """`compute` or `link`."""
    name: str
    """input, forward, backward, exposed_transfer, exposed_skew, optimizer, host, or bucket k."""
    begin_ms: float
    end_ms: float
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One typical step of a world size: the step whose length is nearest to the mean."""

    world_size: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHistory:
    """Plain and probe steps of rank 0 in the order in which they ran; columns of equal length.

    Parts are None in the steps of the plain arm, which takes two stamps only.
    """

    world_size: int
    columns: dict[str, tuple[float | None, ...]]
    """`time_s` since the launch began, `step_ms`, and each part in ms as `<part>_ms`."""
    arm: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A throughput ratio as a product: ratio = compute x fabric x left (scaling/analysis/split.py)."""

    compute: Measured
    """What the devices make of it."""
    fabric: Measured
    """What the links make of it."""
    left: Measured
    """What neither explains."""
    alone: Measured
    """How many times as fast a rank alone computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComparison:
    """What samples cost in either run. Ratios are B over A, above 1: B gives more for it."""

    base: Cost = field(default_factory=Cost)
    other: Cost = field(default_factory=Cost)
    per_usd: Measured | None = None
    """Samples a dollar."""
    per_joule: Measured | None = None
    """Samples a joule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One thing that is not the same in both; None where a run does not have it."""

    of: str
    """`settings`: what was asked; `environment`: what it ran on."""
    key: str
    base: str | None
    other: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparison:
    """B over A at one world size: throughput ratio (above 1: B is faster)."""

    world_size: int
    ratio: Measured | None
    distinguishable: bool
    """Whether the ratio's interval leaves 1 by more than the machine itself moved between the runs (`control`)."""
    causes: dict[str, Measured | None]
    """Difference of step time B - A by cause, ms: compute and each loss cause."""
    control: Measured | None = None
    """The same ratio of a rank alone, on one and the same machine: an A/A pair, 1 but for the machine's drift."""
    split: Split | None = None
    """None at one rank, for runs that are not comparable, and where the records of a run are gone."""
    cost: CostComparison = field(default_factory=CostComparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseComparison:
    """One case in two runs, for instance on two devices: B over A."""

    world_size: int
    batch: int
    setting: dict[str, str | int | bool]
    """precision and what else the case is, as its row in `inference` or `training` has it."""
    samples_per_s: tuple[Measured | None, ...]
    """Of A and of B."""
    ratio: Measured | None
    distinguishable: bool
    usd_per_million_samples: tuple[Measured | None, ...] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side; the first is the base."""

    schema: int
    base: RunInfo
    other: RunInfo
    comparable: bool
    reasons: tuple[str, ...]
    points: tuple[PointComparison, ...]
    roofline: tuple[str, ...] = ()
    """Which ceiling each of them hits."""
    cases: tuple[CaseComparison, ...] = ()
    settings: tuple[SettingDifference, ...] = ()
    """What else differs, of what was asked and of what it ran on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestCase:
    """One injected cause and what was said of it."""

    name: str
    injected: str
    """Overrides."""
    accepted: tuple[str, ...]
    first: str
    """The first verdict's cause."""
    hit: bool
    false_alarms: tuple[str, ...]
    """Causes named that the arithmetic excludes."""
    expected_ms: float | None
    """What the fault costs a step by arithmetic."""
    attributed_ms: float | None
    error: float | None
    """attributed / expected - 1."""
    step_ms: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """How well the verdicts find what was put in on purpose."""

    schema: int
    cases: tuple[SelfTestCase, ...]
    hit_rate: float
    """A fraction of 1."""
    false_alarms: int
    attribution_error: float | None
    """Median of |error|."""
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A remedy measured beside the settings that it is to better. Gains are ratios of throughput, above 1 faster."""

    schema: int
    run: str
    world_size: int
    cause: str
    remedy: str
    """Overrides."""
    code: str
    predicted_gain: Measured | None
    measured_gain: Measured | None
    aa_floor: Measured | None
    """The present settings against themselves."""
    how: str
    """`interleaved` blocks of one launch, or `alternating` launches."""
    verdict: str
    """held, not_held or not_distinguishable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """One world size under other settings. Numbers are None where `cannot` says why nothing can be said."""

    world_size: int
    hosts: int
    from_world_size: int
    """What it was predicted from."""
    step_ms: Measured | None = None
    samples_per_s: Measured | None = None
    speedup: Measured | None = None
    efficiency: Measured | None = None
    loss: Loss | None = None
    cannot: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """A measured world size, predicted as if it had been left out."""

    world_size: int
    from_world_size: int
    predicted_ms: Measured
    measured_ms: Measured
    error: float
    """Predicted over measured, less 1."""
    held: bool
    """Whether the predicted interval holds the measured value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a run would take under other settings, and how well the same model tells what the run did measure."""

    schema: int
    run: RunInfo
    changes: tuple[str, ...]
    topology: str
    points: tuple[PredictedPoint, ...]
    half_at: int | None
    """The first world size with an efficiency below a half; None: none up to `looked_up_to`."""
    looked_up_to: int
    backtest: tuple[Backtest, ...]
    backtest_missing: str | None
    """Why there is no back-test."""
    notes: tuple[str, ...]
