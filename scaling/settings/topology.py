"""Hosts, their ranks, and the links between them; a Slurm job, and its ranks' container.

Frozen facts, checked by `scaling.config.topology`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from scaling.settings.bounds import AtLeast, Between, Fraction, Matches, Nullable, OneOf, Positive, Text
from scaling.units import format_bytes, format_rate, parse_bytes, parse_rate_bit_s

KINDS = ("local", "emulated", "slurm")
CPU, GPU, SIMULATED = "cpu", "cuda", "sim"
SIMULATED_PREFIX = "simulated_"
"""A topology with this before its name is not measured: a run there is simulated."""
DEVICE_NAMES = {CPU: "CPU", GPU: "CUDA device", "xpu": "XPU", SIMULATED: "simulated accelerator"}
"""Types of device, as torch names them. ROCm's are `cuda`."""
BACKEND_OF = {CPU: "gloo", GPU: "nccl", "xpu": "xccl", SIMULATED: "simccl"}
"""The back end that reduces on each type of device; Gloo does so through the host for any of them. RCCL is `nccl`."""
COUNT_MAX = 2**17
"""Hosts, and ranks of a host, of any topology."""
TCP_PAYLOAD_SHARE = 1448 / 1514
"""TCP payload over Ethernet frame at MTU 1500 with timestamps: the share of a shaped link that carries data."""
MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Variable that, set to 1, lets NCCL join several ranks of one device (NCCL, src/init.cc)."""
MULTI_RANK_NCCL = (2, 30)
"""From this version on, NCCL can."""

Rate = Annotated[int | None, Text("rate", parse_rate_bit_s, format_rate)]
"""bit/s; a text such as 200mbit in YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One host's link to the others. `rate_bit_s` is the line rate in one direction, None where unknown."""

    rate_bit_s: Rate = None
    share: Annotated[float | None, Fraction()] = None
    """Share of the rate that an all-reduce is known to reach; None if not known."""
    latency_us: Annotated[float | None, AtLeast(0)] = None
    """Latency of one hop; None if not known."""
    source: str = ""
    """Source of these values; printed beside every number that is divided by the rate."""

    @property
    def nominal_bit_s(self) -> float | None:
        """Rate that the link can carry as TCP payload, bit/s."""
        return None if self.rate_bit_s is None else self.rate_bit_s * TCP_PAYLOAD_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(Link):
    """Links between ranks of one host; the rate is one rank's."""

    name: str
    ranks: Annotated[int, Between(1, COUNT_MAX)]
    """Number of ranks in a group that these links join; ranks fill one group before the next."""
    link_class: str = ""
    """Name in `nvidia-smi topo -m` (NV12, PIX, SYS), or `measured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network card, and the devices of its host that are nearest to it."""

    name: str
    near: tuple[int, ...] = ()
    link_class: str = ""
    rate_bit_s: Rate = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDevice:
    """How a simulated accelerator behaves (device=sim). The defaults are of the order of a data centre's GPU."""

    clock: Annotated[str, OneOf(("virtual", "real"))] = "virtual"
    """`virtual`: times are those of the model, exact and the same in each run; `real`: its streams sleep."""
    tflops: Annotated[float, Positive()] = 60.0
    memory_gb_s: Annotated[float, Positive()] = 2000.0
    host_gb_s: Annotated[float, Positive()] = 25.0
    launch_us: Annotated[float, AtLeast(0)] = 5.0
    """What launching a kernel takes the host."""
    kernel_us: Annotated[float, AtLeast(0)] = 2.0
    """What a kernel takes whatever its size."""
    link_us: Annotated[float, AtLeast(0)] = 20.0
    link_gb_s: Annotated[float, Positive()] = 20.0
    """GB/s of what a rank puts on the wire in a collective."""
    connections: Annotated[int, Between(1, 1024)] = 8
    """In-order work queues that its streams share, as CUDA_DEVICE_MAX_CONNECTIONS sets them."""
    wait_us: Annotated[float, AtLeast(0)] = 0.0
    """From an event to a stream that waited for it."""
    slowdown: Annotated[float, AtLeast(0)] = 0.0
    """A kernel takes 1 + this times as long while its device transfers."""
    null_work: bool = True
    """Synchronous collectives give no Work, as NCCL's do from torch 2.8 on."""
    capacity_bytes: Annotated[int, Text("capacity", parse_bytes, format_bytes)] = 80 * 2**30
    arithmetic: bool = False
    """Compute what kernels return. Without it those with large results leave zeros, so a step of a large model takes
    little of this machine's time; simulated times are the same. The doctor and verifications always compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts, their ranks, and the links between them."""

    name: str
    kind: Annotated[str, OneOf(KINDS)]
    """Launcher that this topology needs."""
    hosts: Annotated[int, Between(1, COUNT_MAX)] = 1
    ranks_per_host: Annotated[int, Between(1, COUNT_MAX), Nullable()]
    device: Annotated[str, OneOf(tuple(DEVICE_NAMES), auto=True)]
    backend: Annotated[str, OneOf(tuple(BACKEND_OF.values()), auto=True)]
    """Library that reduces the gradients."""
    link: Link = field(default_factory=Link)
    levels: tuple[Level, ...] = ()
    """Links within a host, innermost first; only predictions read them."""
    islands: tuple[tuple[int, ...], ...] = ()
    """Devices of a host that the nearest class of link joins; shown in the plan, not used in calculations."""
    numa: tuple[tuple[int, ...], ...] = ()
    nics: tuple[Nic, ...] = ()
    placement: Annotated[str, OneOf(("packed", "spread"))] = "packed"
    """`packed`: ranks fill one host before the next; `spread`: they go round the hosts, one each at a time."""
    accelerator: str = ""
    """Name of its devices, as their driver has it; only simulations read it."""
    simulated: SimulatedDevice = field(default_factory=SimulatedDevice)
    note: str = ""
    """Note that every report shows, for instance that an emulated link is scaled down."""

    @property
    def capacity(self) -> int:
        """The largest world size that fits."""
        return self.hosts * self.ranks_per_host

    @property
    def accelerated(self) -> bool:
        """Whether ranks compute on accelerators."""
        return self.device != CPU

    @property
    def on_device(self) -> bool:
        """Whether the back end reduces on the devices, in the order of their streams."""
        return self.accelerated and self.backend == BACKEND_OF.get(self.device)

    @property
    def is_simulated(self) -> bool:
        """Whether ranks compute on simulated accelerators, whose times are a model's."""
        return self.device == SIMULATED

    @property
    def device_name(self) -> str:
        """The type of device, in words."""
        return DEVICE_NAMES.get(self.device, self.device)

    @property
    def spread(self) -> bool:
        """Whether ranks go round the hosts."""
        return self.placement == "spread"

    def host_of(self, rank: int) -> int:
        return rank % self.hosts if self.spread else rank // self.ranks_per_host

    def local_of(self, rank: int) -> int:
        """A rank's place on its host."""
        return rank // self.hosts if self.spread else rank % self.ranks_per_host

    def hosts_of(self, world_size: int) -> int:
        """How many hosts the first `world_size` ranks touch."""
        return min(world_size, self.hosts) if self.spread else -(-world_size // self.ranks_per_host)

    def shares(self, world_size: int) -> tuple[int, ...]:
        """How many of the first `world_size` ranks each host runs."""
        ranks = Counter(self.host_of(rank) for rank in range(world_size))
        return tuple(ranks[host] for host in range(self.hosts_of(world_size)))

    def started(self, world_size: int) -> tuple[int, ...]:
        """The first `world_size` ranks in the order in which torchrun numbers their processes: host by host."""
        return tuple(sorted(range(world_size), key=lambda rank: (self.host_of(rank), self.local_of(rank))))

    def nominal_bit_s(self, world_size: int, at_work: int = 0) -> float | None:
        """Rate of a host's link for a ring over the first `world_size` ranks, bit/s; None if not known.

        With packed ranks, one edge of the ring leaves each host. Spread ranks on one host share its link among
        several edges; how many depends on the backend's order of the ring, so the rate is then not known.
        `at_work`: number of ranks that communicate at the same time, in this and in other rings.
        """
        shared = self.spread and max(world_size, at_work) > self.hosts
        return self.link.nominal_bit_s if self.hosts_of(world_size) > 1 and not shared else None


NO_GPUS = "none"
"""`cluster.gpus_per_node` of a cluster whose Slurm has no generic resource gpu: whole nodes bring their GPUs."""
START_S, START_IN_IMAGE_S = 180, 900
"""Default limits on a launch's start-up, without and with an image: pyxis may unpack many gigabytes each time."""

OneWord = Annotated[str | None, Matches(r"[^\s'\"\\;`$]+", "one word is expected, without spaces and quotes")]
"""A value that is written into a job's script unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container of a Slurm job's workers; none if `image` is None."""

    image: str | None = None
    runtime: Annotated[str, OneOf(("pyxis", "apptainer", "singularity"))] = "pyxis"
    """`pyxis` (srun's --container-image, with enroot), `apptainer`, or its other name `singularity`."""
    mounts: Annotated[
        tuple[str, ...], Matches(r"/[^\s:,]*:/[^\s:,]*(:\w+)?", "/SOURCE:/TARGET is expected")
    ] = ()
    """`SOURCE:TARGET`; the run folder and this program are always mounted."""
    python: str = "python3"
    """The interpreter in the image that has torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a Slurm job requests and how its workers start. Most fields are sbatch options of the same name."""

    name: str = "default"
    partition: OneWord = None
    account: OneWord = None
    qos: OneWord = None
    time: str | None = None
    """Time limit as Slurm writes it; None: estimated from the plan."""
    constraint: OneWord = None
    reservation: OneWord = None
    gres: OneWord = None
    """Replaces `gpus_per_node` at sites that require it."""
    gpus_per_node: OneWord = None
    """None: one a rank where the device is cuda, unless `gres` is given. `none`: Slurm knows of no GPUs there."""
    cpus_per_rank: Annotated[int | None, AtLeast(1)] = None
    """None: the CPUs that Slurm gives the node's task."""
    exclusive: bool = True
    allocations: Annotated[int, AtLeast(1)] = 1
    """`scaling submit` submits so many jobs for each run, each on nodes of its own, to measure how far they differ."""
    requeue: bool = True
    """After a preemption or a failure of the head node, the job restarts and measures what is left."""
    signal_s: Annotated[int, AtLeast(0)] = 120
    """SIGTERM is sent this long before the time limit, which leaves time to end the launch, analyse and report."""
    start_s: Annotated[int, AtLeast(1), Nullable()] = START_S
    """Limit on a launch's start-up: unpack the image, load torch from a shared file system, join communicators."""
    interface: OneWord = None
    """Network interface of Gloo and of NCCL's sockets; None: each finds one itself."""
    numa_binding: Annotated[str, OneOf(("none", "node", "socket", "exclusive", "core-complex"))] = "node"
    """torchrun's --numa-binding, used where the device is cuda and it can bind every rank of a node; `none`: never."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the workers on this cluster; the run's `env` takes precedence."""
    setup: tuple[str, ...] = ()
    """Shell lines at the start of the job: modules, proxies."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """More sbatch options by their long names; an empty string is an option without a value."""
    srun: dict[str, str] = field(default_factory=dict)
    """More options of the ranks' srun by their long names, such as mpi or network."""
    container: Container = field(default_factory=Container)
