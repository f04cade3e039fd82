"""What a person asked for, checked and frozen. Made once by `scaling.config`, read by everything after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scaling.cluster import Cluster
from scaling.fabric import Topology

MODES = ("weak", "strong")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")
TASKS = ("train", "inference")
OWN_LOOP = "own loop"
"""What stands for the launcher, the topology and the measure of a loop that is not the harness's own."""
LAUNCHERS = ("local", "emulated", "slurm")
TRACKING_MODES = ("offline", "online", "disabled")
OBJECTIVES = ("samples_per_s", "efficiency", "step_ms")
WORLD_SIZE_MAX = 2**17
"""As far as anything is predicted."""

DEFAULT_BUCKET_MB = 25
"""torch's default of `ddp.bucket_cap_mb`, with which the first bucket has a limit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A workload's factory and what it is called with."""

    name: str
    target: str
    """Dotted path of a callable that returns a `Workload`; resolved in the worker only."""
    args: dict[str, Any]
    synthetic: bool = False
    """Compute is made of sleeps; said wherever the results are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where batches come from."""

    name: str = "synthetic"
    target: str | None = None
    """Dotted path of a torch Dataset; None: batches that the model makes up before anything is timed."""
    args: dict[str, Any] = field(default_factory=dict)
    workers: int = 0
    """Processes a rank that make batches; 0: the training process makes each one itself."""
    prefetch: int = 2
    """Batches that each worker may make ahead."""
    pin_memory: bool = True
    """Page-lock batches on their way to a CUDA device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp:
    """Arguments of DistributedDataParallel, as torch names them."""

    bucket_cap_mb: float = DEFAULT_BUCKET_MB
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    find_unused_parameters: bool = False
    comm_hook: str = "none"
    """What becomes of the gradients on the wire, of COMM_HOOKS."""


OVERRUN = 1.5
"""Fewer rounds than the least have no interval at all: they are worth half as long again."""
FABRIC_BYTES_MIN = 2**10
"""The size sweep's smallest message."""
WARMUP_MIN = 4
"""Steps: the first three are not timed, and what a step takes has to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How long to measure, and how precisely."""

    name: str
    rounds_min: int
    rounds_max: int
    steps: int
    """Timed steps of a block."""
    lead_in: int
    """Steps at the start of a block that are run and dropped."""
    warmup_max: int
    target_half_width: float | None
    """Stop when the efficiency's 95 % half-width is below this fraction; None: stop by time."""
    budget_s: float
    """Of a launch, start-up excluded; the least number of rounds may take OVERRUN times as long."""
    fabric_bytes_max: int
    collectives: tuple[str, ...] = ("all_reduce",)
    """What the size sweep runs, of records.COLLECTIVES."""
    step_timeout_s: float
    """A rank that shows no progress for this long beyond its expected time is taken for hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inject:
    """Faults put in on purpose; docs/config.md says where each acts."""

    rank: int | None = None
    compute_ms: float = 0.0
    input_ms: float = 0.0
    host_ms: float = 0.0
    link_rate_bit_s: int | None = None
    wrong_no_sync: bool = False
    contention: int = 0
    fail_after_blocks: int | None = None
    """Raise in that rank after so many blocks: what a failing training script does."""
    memory_limit_bytes: int | None = None
    """That rank's memory limit, where it is less than the others'."""

    @property
    def active(self) -> bool:
        """Whether anything at all is injected."""
        return self != Inject(rank=self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vary:
    """Settings that are measured beside each other in one launch, in every combination; empty: the run's own."""

    precision: tuple[str, ...] = ()
    autocast: tuple[bool, ...] = ()
    compile: tuple[bool, ...] = ()
    checkpointing: tuple[bool, ...] = ()
    accumulation_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Where W&B runs go."""

    mode: str = "offline"
    project: str = "scaling"
    entity: str | None = None
    group: str | None = None
    job_type: str = "scaling"
    tags: tuple[str, ...] = ()
    notes: str | None = None
    alerts: bool = False
    """Whether W&B is to send an alert where a run is slower than the one before, throttled, or not whole."""
    objective: str = "samples_per_s"
    """What a sweep is told of a run: this figure at the largest world size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a GPU costs; a rank is taken for one."""

    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One run: a model, a precision and a topology, over a list of world sizes."""

    model: Model
    topology: Topology
    world_sizes: tuple[int, ...]
    mode: str
    batch_per_rank: int
    global_batch: int
    """Only read when `mode` is strong."""
    precision: str
    measure: Measure
    accumulation_steps: int = 1
    compile: bool = False
    """torch.compile, each wrapper on its own."""
    channels_last: bool = False
    checkpointing: bool = False
    """Activations are computed again in backward rather than kept."""
    fused_optimizer: bool = False
    ddp: Ddp = field(default_factory=Ddp)
    task: str = "train"
    repeats: int = 1
    seed: int = 0
    threads: int = 1
    """Compute threads a rank, the same in every arm."""
    launcher: str = "local"
    cluster: Cluster = field(default_factory=Cluster)
    """Only read when `launcher` is slurm."""
    inject: Inject = field(default_factory=Inject)
    data: Data = field(default_factory=Data)
    env: dict[str, str] = field(default_factory=dict)
    tracking: Tracking = field(default_factory=Tracking)
    cost: Cost = field(default_factory=Cost)
    batches: tuple[int, ...] = ()
    """Samples a rank and step, each measured beside the others."""
    batch_max: bool = False
    """Find the largest batch that fits first, and measure up to it."""
    memory_limit_bytes: int | None = None
    """A rank's; on CUDA the card's own where there is none."""
    vary: Vary = field(default_factory=Vary)

    @property
    def by_case(self) -> bool:
        """Whether a table of cases is measured (scaling/cases.py), and not where a training step goes."""
        return self.task == "inference" or bool(self.batches) or self.batch_max or self.vary != Vary()

    @property
    def own_loop(self) -> bool:
        """Whether somebody's own training loop was probed: one world size, blocks of consecutive steps."""
        return self.launcher == OWN_LOOP

    def batch_at(self, world_size: int) -> int:
        """Samples of one rank in one optimizer step, over all accumulation steps."""
        return self.global_batch // world_size if self.mode == "strong" else self.batch_per_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A run under other settings; None: as in the run."""

    changes: tuple[str, ...]
    """As they were asked for, `key=value`."""
    world_sizes: tuple[int, ...]
    topology: Topology
    elsewhere: bool
    """Whether links or hosts differ from the run's."""
    bucket_cap_mb: float | None
    accumulation: int | None
    batch_per_rank: int
    global_batch: int
    compute_scale: float
    compression: float
    without_straggler: bool

    def batch_at(self, world_size: int, mode: str) -> int:
        """Samples a rank and optimizer step; where they do not come out even, of the rank that has most."""
        return -(-self.global_batch // world_size) if mode == "strong" else self.batch_per_rank
