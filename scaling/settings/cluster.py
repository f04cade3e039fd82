"""Settings of a Slurm job and of its ranks' container. Frozen facts, checked by `scaling.config.topology`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from scaling.settings.bounds import AtLeast, Matches, Nullable, OneOf

NUMA_BINDINGS = ("none", "node", "socket", "exclusive", "core-complex")
RUNTIMES = ("pyxis", "apptainer")
START_S, START_IN_IMAGE_S = 180, 900
"""Default limits on a launch's start-up, without and with an image: pyxis may unpack many gigabytes each time."""

OneWord = Annotated[str | None, Matches(r"[^\s'\"\\;`$]+", "one word is expected, without spaces and quotes")]
"""A value that is written into a job's script unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container of a Slurm job's workers; none if `image` is None."""

    image: str | None = None
    runtime: Annotated[str, OneOf(RUNTIMES)] = "pyxis"
    """`pyxis` (srun's --container-image, with enroot) or `apptainer`."""
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
    """None: one a rank where the device is cuda, unless `gres` is given."""
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
    numa_binding: Annotated[str, OneOf(NUMA_BINDINGS)] = "node"
    """torchrun's --numa-binding, used where the device is cuda and it can bind every rank of a node; `none`: never."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the workers on this cluster; the run's `env` takes precedence."""
    setup: tuple[str, ...] = ()
    """Shell lines at the start of the job: modules, proxies."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """More sbatch options by their long names; an empty string is an option without a value."""
    container: Container = field(default_factory=Container)
