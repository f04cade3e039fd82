"""What a person asked for, checked and frozen. Made once by `scaling.config`, read by everything after it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

MODES = ("weak", "strong")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")
TASKS = ("train", "inference")
OWN_LOOP = "own loop"
"""What stands for the launcher, the topology and the measure of a loop that is not the harness's own."""
LAUNCHERS = ("local", "emulated", "slurm")
PLACEMENTS = ("packed", "spread")
TRACKING_MODES = ("offline", "online", "disabled")
OBJECTIVES = ("samples_per_s", "efficiency", "step_ms")
WORLD_SIZE_MAX = 2**17
"""As far as anything is predicted."""
NUMA_BINDINGS = ("none", "node", "socket", "exclusive", "core-complex")
RUNTIMES = ("pyxis", "apptainer")

SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)
"""Names of settings that are never shown."""

DEFAULT_BUCKET_MB = 25
"""torch's default of `ddp.bucket_cap_mb`, with which the first bucket has a limit of its own."""
TCP_PAYLOAD_SHARE = 1448 / 1514
"""TCP payload over Ethernet frame at MTU 1500 with timestamps: what a shaped link can carry for its users."""


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
class Link:
    """One host's link to the others. `rate_bit_s` is the line rate in one direction, None where unknown."""

    rate_bit_s: int | None = None
    share: float | None = None
    """Of the rate, what an all-reduce is known to reach; None where that is not known."""
    latency_us: float | None = None
    """Of one hop; None where that is not known."""
    source: str = ""
    """Where these come from; printed beside every number that is divided by the rate."""

    @property
    def nominal_bit_s(self) -> float | None:
        """What the link can carry for TCP's users, bit/s."""
        return None if self.rate_bit_s is None else self.rate_bit_s * TCP_PAYLOAD_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(Link):
    """What joins ranks of one host; the rate is that of a rank."""

    name: str
    ranks: int
    """How many it joins; ranks fill one group before the next."""
    link_class: str = ""
    """As `nvidia-smi topo -m` names it (NV12, PIX, SYS), or `measured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network card, and the devices of its host that are nearest to it."""

    name: str
    near: tuple[int, ...]
    link_class: str = ""
    rate_bit_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts, ranks on each, and what joins them."""

    name: str
    kind: str
    """`local`, `emulated` or `slurm`: which launcher it takes."""
    hosts: int
    ranks_per_host: int
    device: str
    """`cpu` or `cuda`."""
    backend: str
    """`gloo` or `nccl`: what carries the gradients."""
    link: Link = field(default_factory=Link)
    levels: tuple[Level, ...] = ()
    """Within a host, from the innermost out; only predictions read them."""
    islands: tuple[tuple[int, ...], ...] = ()
    """Devices of a host that its nearest class of link joins; drawn, not computed with."""
    numa: tuple[tuple[int, ...], ...] = ()
    nics: tuple[Nic, ...] = ()
    placement: str = "packed"
    """`packed`: ranks fill one host before the next; `spread`: they go round the hosts, one each at a time."""
    note: str = ""
    """Said wherever the results are shown, for instance that an emulated link is scaled down."""

    @property
    def capacity(self) -> int:
        """The largest world size it holds."""
        return self.hosts * self.ranks_per_host

    @property
    def spread(self) -> bool:
        """Whether ranks go round the hosts."""
        return self.placement == "spread"

    def host_of(self, rank: int) -> int:
        """The host a rank runs on."""
        return rank % self.hosts if self.spread else rank // self.ranks_per_host

    def local_of(self, rank: int) -> int:
        """A rank's place on its host."""
        return rank // self.hosts if self.spread else rank % self.ranks_per_host

    def hosts_of(self, world_size: int) -> int:
        """How many hosts the first `world_size` ranks touch."""
        return min(world_size, self.hosts) if self.spread else -(-world_size // self.ranks_per_host)

    def shares(self, world_size: int) -> tuple[int, ...]:
        """How many of the first `world_size` ranks each host runs."""
        hosts = [self.host_of(rank) for rank in range(world_size)]
        return tuple(hosts.count(host) for host in range(self.hosts_of(world_size)))

    def started(self, world_size: int) -> tuple[int, ...]:
        """The first `world_size` ranks in the order in which torchrun numbers their processes: host by host."""
        return tuple(sorted(range(world_size), key=lambda rank: (self.host_of(rank), self.local_of(rank))))

    def nominal_bit_s(self, world_size: int) -> float | None:
        """What a ring over the first `world_size` ranks can have of a host's link; None where that is not known.

        Packed, one edge of the ring leaves each host. Spread ranks that share a host share its link
        between as many edges as the backend's order of the ring has, which is the backend's to choose.
        """
        shared = self.spread and world_size > self.hosts
        return self.link.nominal_bit_s if self.hosts_of(world_size) > 1 and not shared else None


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
    """Faults put in on purpose. They act at world sizes of 2 or more, in every arm but bare_one and replay."""

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
class Container:
    """What the workers of a Slurm job run in; nothing where `image` is None."""

    image: str | None = None
    runtime: str = "pyxis"
    """`pyxis` (srun's --container-image, with enroot) or `apptainer`."""
    mounts: tuple[str, ...] = ()
    """`SOURCE:TARGET`, beside the run folder and this program, which are always there."""
    python: str = "python3"
    """The interpreter in the image that has torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a Slurm job asks for, and what it finds on the nodes. Most fields are sbatch's options of that name."""

    name: str = "default"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    """The limit as Slurm writes it; None: from the plan."""
    constraint: str | None = None
    reservation: str | None = None
    gres: str | None = None
    """In place of `gpus_per_node`, for sites that want it so."""
    gpus_per_node: str | None = None
    """None: as many as ranks where the device is cuda, unless `gres` is given."""
    cpus_per_rank: int | None = None
    """None: whatever the node's share is."""
    exclusive: bool = True
    requeue: bool = True
    """After a preemption or the head node's death the job starts again and goes on with what is left."""
    signal_s: int = 120
    """SIGTERM comes so long before the time limit: to end the launch, analyse and report."""
    interface: str | None = None
    """Network interface of Gloo and of NCCL's sockets; None: theirs to find."""
    numa_binding: str = "node"
    """torchrun's --numa-binding where the device is cuda and torch and numactl are there to do it; `none`."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the workers on this cluster; `env` of the run wins."""
    setup: tuple[str, ...] = ()
    """Shell lines at the start of the job: modules, proxies."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch, by their long names; an empty text is an option without a value."""
    container: Container = field(default_factory=Container)


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
        """Samples a rank and optimizer step."""
        return max(1, self.global_batch // world_size) if mode == "strong" else self.batch_per_rank
