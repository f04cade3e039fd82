"""The settings of a run, checked and frozen. `scaling.config.compose` makes them once; everything after reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from scaling.settings.bounds import AtLeast, Distinct, NotEmpty, Nullable, OneOf, Positive, Text
from scaling.settings.parallel import SPREAD, Fsdp, Parallel, Pipeline
from scaling.settings.topology import Cluster, Topology
from scaling.units import format_bytes, format_rate, parse_bytes, parse_rate_bit_s

MODES = ("weak", "strong")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
LAUNCHERS = ("local", "emulated", "slurm")
WORLD_SIZE_MAX = 2**17
"""The largest world size that predictions accept."""

DEFAULT_BUCKET_MB = 25
"""torch's default of `ddp.bucket_cap_mb`. With the default, DDP limits the first bucket to 1 MiB."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
"""Collectives that the size sweep can run."""
MESSAGES = ("send", "recv")
"""What one rank sends another: each of the two has it under its own kind."""
KINDS = (*COLLECTIVES, "all_to_all", "reduce", "gather", "scatter", *MESSAGES)
"""Kinds of collectives and messages in the order in which records number them."""
FABRIC_BYTES_MIN = 2**10
"""The size sweep's smallest message."""
SWEEP_SHARE = 0.01
"""Largest share of the budget for one message of the sweep."""
WARMUP_SHARE = 0.25
"""The warm-up's share of the budget, on top of it. A shorter warm-up leaves the rounds no more than the budget."""
LEAST_ROUNDS = 3
"""Fewer rounds give no interval."""

AtLeastOne = Annotated[int, AtLeast(1)]
Milliseconds = Annotated[float, AtLeast(0)]
MemoryLimit = Annotated[int | None, Text("memory_limit", parse_bytes, format_bytes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a run measures, and what follows from it for whoever plans it, checks it and tells of it."""

    name: str
    by_cases: bool = False
    """A table of cases (cases.py) is measured, and no step is taken apart."""
    followed: bool = False
    """A Probe followed the user's loop: one world size, blocks of consecutive steps, phases in the loop's own order."""
    blocks: str = "compute blocks"
    """What shows whether other programs ran."""
    longer: str = ""
    """How to get more rounds; empty: by the settings of the measurement."""


TRAINING = Kind(name="training")
CASES = Kind(name="cases", by_cases=True)
TRACES = Kind(name="traces")
FOLLOWED = Kind(name="own loop", followed=True, blocks="blocks of steps", longer="probe more steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A workload's factory and its arguments."""

    name: str
    target: str
    """Dotted path of a callable that returns a `Workload`; resolved in the worker only."""
    args: dict[str, Any]
    synthetic: bool = False
    """Compute is made of sleeps; every report says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where batches come from."""

    name: str = "synthetic"
    target: str | None = None
    """Dotted path of a torch Dataset; None: batches that the model makes up before anything is timed."""
    args: dict[str, Any] = field(default_factory=dict)
    workers: Annotated[int, AtLeast(0)] = 0
    """Processes a rank that make batches; 0: the training process makes each one itself."""
    prefetch: AtLeastOne = 2
    """Batches that each worker may make ahead."""
    pin_memory: bool = True
    """Page-lock batches on their way to a CUDA device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp:
    """Arguments of DistributedDataParallel, as torch names them."""

    bucket_cap_mb: Annotated[float, Positive()] = DEFAULT_BUCKET_MB
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    find_unused_parameters: bool = False
    comm_hook: Annotated[str, OneOf(("none", "fp16", "bf16", "powersgd"))] = "none"
    """How gradients are compressed for the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How long to measure, and how precisely."""

    name: str
    rounds_min: AtLeastOne
    rounds_max: AtLeastOne
    steps: AtLeastOne
    """Timed steps of a block."""
    lead_in: int
    """Steps at the start of a block that are run and dropped."""
    warmup_max: Annotated[int, AtLeast(4)]
    """Steps. The first three are not timed, and at least one must be timed to estimate a step's duration."""
    target_half_width: float | None
    """Stop when the efficiency's 95 % half-width is below this fraction; None: stop by time."""
    budget_s: Annotated[float, AtLeast(1)]
    """Time for the rounds of a launch. Start-up is extra, and so is the warm-up (WARMUP_SHARE)."""
    fabric_bytes_max: Annotated[int, Text("fabric_max", parse_bytes, format_bytes), AtLeast(FABRIC_BYTES_MIN)]
    records_bytes_max: Annotated[int, Text("records_max", parse_bytes, format_bytes), AtLeast(1)] = 2**35
    """For the rank files of a run on all hosts together. Beyond it only some rounds have details (settings.sample)."""
    collectives: Annotated[tuple[str, ...], OneOf(COLLECTIVES), NotEmpty("[all_reduce]")] = ("all_reduce",)
    """Collectives of the size sweep."""
    step_timeout_s: Annotated[float, AtLeast(1)]
    """A launch that makes no progress for this long, and for a few steps, counts as hung (timeouts.py)."""
    start_timeout_s: Annotated[float, AtLeast(1)] = 300.0
    """Ranks that are idle for this long before they have met and built the model count as hung."""

    @property
    def longest_s(self) -> float:
        """The longest time that a launch may take, start-up excluded."""
        return (1 + WARMUP_SHARE) * self.budget_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Inject:
    """Injected faults; docs/config.md says where each acts."""

    rank: int | None = None
    compute_ms: Milliseconds = 0.0
    input_ms: Milliseconds = 0.0
    backward_ms: Milliseconds = 0.0
    optimizer_ms: Milliseconds = 0.0
    host_ms: Milliseconds = 0.0
    link_rate_bit_s: Annotated[int | None, Text("link_rate", parse_rate_bit_s, format_rate)] = None
    wrong_no_sync: bool = False
    contention: Annotated[int, AtLeast(0)] = 0
    fail_after_blocks: int | None = None
    """Raise in that rank after this many blocks, as a failing training script would."""
    memory_limit_bytes: MemoryLimit = None
    """Memory limit of that rank, if it is lower than the others'."""

    @property
    def stalls_s(self) -> float:
        """What the stalls add to a step with one micro-step, s."""
        each = (self.compute_ms, self.input_ms, self.backward_ms, self.optimizer_ms, self.host_ms)
        return sum(each) / 1e3

    @property
    def active(self) -> bool:
        return self != Inject(rank=self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vary:
    """Settings that are measured side by side in one launch, in every combination; empty: the run's setting."""

    precision: Annotated[tuple[str, ...], OneOf(PRECISIONS), Distinct(), Nullable()] = ()
    autocast: Annotated[tuple[bool, ...], Distinct(), Nullable()] = ()
    compile: Annotated[tuple[bool, ...], Distinct(), Nullable()] = ()
    checkpointing: Annotated[tuple[bool, ...], Distinct(), Nullable()] = ()
    accumulation_steps: Annotated[tuple[int, ...], AtLeast(1), Distinct(), Nullable()] = ()
    parallel: Annotated[tuple[str, ...], OneOf(SPREAD), Distinct(), Nullable()] = ()
    """Strategies. Each one's step is taken apart, so it goes with none of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Whether and where runs are logged to W&B."""

    mode: Annotated[str, OneOf(("offline", "online", "disabled"))] = "offline"
    project: str = "scaling"
    entity: str | None = None
    group: str | None = None
    job_type: str = "scaling"
    tags: tuple[str, ...] = ()
    notes: str | None = None
    GONE: ClassVar = ("alerts", "objective")
    """Settings that files of earlier versions have, which are read without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Price of a GPU; a rank counts as one GPU."""

    usd_per_gpu_hour: Annotated[float | None, Positive(such_as="2.5")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One run: a model, a precision and a topology, over a list of world sizes."""

    model: Model
    topology: Topology
    world_sizes: Annotated[tuple[int, ...], Nullable(), NotEmpty("[1,2]")]
    mode: Annotated[str, OneOf(MODES)]
    batch_per_rank: AtLeastOne
    global_batch: Annotated[int, AtLeast(1), Nullable()]
    """Only read when `mode` is strong."""
    precision: Annotated[str, OneOf(PRECISIONS)]
    measure: Measure
    accumulation_steps: AtLeastOne = 1
    compile: bool = False
    """Apply torch.compile to each wrapper separately."""
    channels_last: bool = False
    checkpointing: bool = False
    """Recompute activations in backward to save memory."""
    fused_optimizer: bool = False
    parallel: Parallel = field(default_factory=Parallel)
    ddp: Ddp = field(default_factory=Ddp)
    fsdp: Fsdp = field(default_factory=Fsdp)
    pipeline: Pipeline = field(default_factory=Pipeline)
    """Only of a loop of one's own."""
    task: Annotated[str, OneOf(("train", "inference"))] = "train"
    repeats: AtLeastOne = 1
    seed: Annotated[int, AtLeast(0)] = 0
    threads: Annotated[int, AtLeast(1), Nullable()] = 1
    """Compute threads a rank, the same in every arm."""
    launcher: Annotated[str, OneOf(LAUNCHERS)] = "local"
    """Only read if the plan's source is the harness."""
    cluster: Cluster = field(default_factory=Cluster)
    """Only read when `launcher` is slurm."""
    inject: Inject = field(default_factory=Inject)
    data: Data = field(default_factory=Data)
    env: dict[str, str] = field(default_factory=dict)
    tracking: Tracking = field(default_factory=Tracking)
    cost: Cost = field(default_factory=Cost)
    batches: tuple[int, ...] = ()
    """Batches to measure side by side, samples per rank and step."""
    batch_max: bool = False
    """First find the largest batch that fits, then measure batches up to it."""
    memory_limit_bytes: MemoryLimit = None
    """Memory limit of a rank; None: on CUDA, the device's memory."""
    vary: Vary = field(default_factory=Vary)

    @property
    def kind(self) -> Kind:
        """What these settings measure in the harness's own loops."""
        varied = replace(self.vary, parallel=()) != Vary()
        cases = self.task == "inference" or bool(self.batches) or self.batch_max or varied
        return CASES if cases else TRAINING

    @property
    def strategies(self) -> tuple[Spec, ...]:
        """The settings of each strategy that is measured side by side, in order; where none is varied, these alone.

        A strategy that `parallel` names too has the degrees given there.
        """
        hosts = self.topology.ranks_per_host
        given = {self.parallel.name: self.parallel}
        varied = [given.get(name) or Parallel.preset(name, hosts) for name in self.vary.parallel]
        vary = replace(self.vary, parallel=())
        return tuple(replace(self, parallel=parallel, vary=vary) for parallel in varied) or (self,)

    @property
    def tensor_degrees(self) -> tuple[int, ...]:
        """Over how many ranks layers are divided, ascending; none where none are."""
        meshes = [strategy.parallel.mesh(n) for strategy in self.strategies for n in self.world_sizes]
        return tuple(sorted({mesh.tensor for mesh in meshes} - {1}))

    @property
    def compiles(self) -> bool:
        """Whether some step of the run goes through torch.compile."""
        return self.compile or any(self.vary.compile)

    @property
    def batch_setting(self) -> tuple[str, int]:
        """The key and the value that set a step's samples."""
        key = "global_batch" if self.mode == "strong" else "batch_per_rank"
        return key, getattr(self, key)

    def batch_at(self, world_size: int) -> int:
        """Samples of one rank in one optimizer step, over all accumulation steps."""
        return self.global_batch // world_size if self.mode == "strong" else self.batch_per_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Settings of a prediction; None: as in the measured run."""

    changes: tuple[str, ...] = ()
    """The overrides as given, `key=value`."""
    world_sizes: tuple[int, ...]
    topology: Topology
    elsewhere: bool = False
    """Whether links or hosts differ from the run's."""
    bucket_cap_mb: float | None = None
    accumulation_steps: Annotated[int | None, AtLeast(1)] = None
    batch_per_rank: AtLeastOne
    global_batch: AtLeastOne
    compute_scale: Annotated[float, Positive()] = 1.0
    gradient_compression: Annotated[float, Positive()] = 1.0
    without_straggler: bool = False

    def batch_at(self, world_size: int, mode: str) -> int:
        """Samples a rank and optimizer step; if they do not divide evenly, those of the rank that has most."""
        return -(-self.global_batch // world_size) if mode == "strong" else self.batch_per_rank
