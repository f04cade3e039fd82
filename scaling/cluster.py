"""What a Slurm job asks for, and what its ranks run in. Frozen facts, checked by `scaling.check_cluster`."""

from __future__ import annotations

from dataclasses import dataclass, field

NUMA_BINDINGS = ("none", "node", "socket", "exclusive", "core-complex")
RUNTIMES = ("pyxis", "apptainer")


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


START_S, START_IN_IMAGE_S = 180, 900
"""Of a launch; pyxis may unpack an image of many gigabytes each time."""


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
    start_s: int = START_S
    """A launch's start-up: the image, torch from a shared file system, communicators."""
    interface: str | None = None
    """Network interface of Gloo and of NCCL's sockets; None: theirs to find."""
    numa_binding: str = "node"
    """torchrun's --numa-binding where the device is cuda and it can bind every rank of a node; `none`."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the workers on this cluster; `env` of the run wins."""
    setup: tuple[str, ...] = ()
    """Shell lines at the start of the job: modules, proxies."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch, by their long names; an empty text is an option without a value."""
    container: Container = field(default_factory=Container)
