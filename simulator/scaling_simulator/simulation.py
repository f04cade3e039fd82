"""A simulation: a training program as one rank of a world on a machine that need not be there, and what it gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from scaling.settings.bounds import AtLeast, Positive
from scaling.settings.parallel import Mesh
from scaling.settings.run import Spec

AtLeastOne = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What one device can do: rates that its kernels reach at the most, and what it holds."""

    name: str
    flop_s: Annotated[float, Positive()]
    """Matrix products in the run's format, FLOP/s."""
    flop_s_fp32: Annotated[float, Positive()]
    memory_bytes_s: Annotated[float, Positive()]
    kernel_us: Annotated[float, AtLeast(0)] = 2.0
    """What any kernel takes, whatever its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Kernels as measured on a device: us by operator, shapes and types; and factors for shapes that were not."""

    chip: Chip | None
    """The device that was measured; None: times hold as they are."""
    us: dict[str, float] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    """By operator, measured over the least that `chip` could take; "*": of all operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCurve:
    """What transfers of a group take: (bytes that a rank puts on the wire, us), rising."""

    group: str
    """"mesh_shard" and its like, "default_pg", or "*"."""
    kind: str
    points: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """One setting of what a simulated step leans on."""

    name: str
    links: tuple[LinkCurve, ...] = ()
    stretch: Annotated[float, Positive()] = 1.0
    """Factor on every kernel: the slowest rank's, where its slowness lasts a step or longer."""
    slowdown: Annotated[float, AtLeast(0)] = 0.0
    """A kernel takes 1 + slowdown times as long while its device transfers."""
    spread: Annotated[float, AtLeast(0)] = 0.0
    """The latest peer is spread x sqrt(t) ns behind after t ns of kernels since ranks last met; ns ** 0.5."""
    wires: tuple[str, ...] = ()
    """Groups whose transfers share the link of a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a worker simulates: the program of `spec` as one rank of a mesh, once for each of `physics`.

    The spec has the strategy; a mesh of one rank trains the bare module.
    """

    spec: Spec
    rank: Annotated[int, AtLeast(0)]
    batch: AtLeastOne
    """Samples a rank and step."""
    mesh: Mesh
    chip: Chip
    capacity_bytes: AtLeastOne
    """Memory of the device; a program that needs more fails as it would there."""
    host_bytes_s: Annotated[float, Positive()]
    launch_us: Annotated[float, AtLeast(0)]
    """The host's time for each kernel or collective that it launches."""
    kernels: KernelTimes
    physics: tuple[Physics, ...]
    timeline: bool = False
    """Whether to return the tasks of the last step of the first physics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """A step's transfers of one kind over one group."""

    kind: str
    group: str
    calls: int
    bytes: int
    """Payload in nccl-tests' terms, a step."""
    busy_ns: int
    exposed_ns: int
    """Time in which it ran or waited and no kernel did; overlapping transfers share it equally."""
    waited_ns: int
    """For the last peer, whether a kernel ran meanwhile or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank at the peak; activations are what is left of it, temporary tensors included."""

    peak_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A simulated step: its time divides into kernels, exposed transfers, and neither (the host launches)."""

    physics: str
    step_ns: int
    compute_ns: int
    """Time in which at least one kernel runs."""
    exposed_ns: int
    idle_ns: int
    transfers: tuple[Transfers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One kernel, copy or transfer; ns since the step began. `met_ns`: when the last peer came; 0: a kernel."""

    stream: int
    name: str
    start_ns: int
    end_ns: int
    met_ns: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a worker gives back."""

    steps: tuple[Step, ...] = ()
    memory: Memory | None = None
    parameters: int = 0
    """Of the whole model."""
    flops: float = 0.0
    """Of a rank and step, matrix products, convolutions and attention alone."""
    kernels: int = 0
    """Kernels, copies and transfers of a step."""
    digest: str = ""
    """Of the step's sequence of transfers; ranks that do alike have the same."""
    measured_share: float = 0.0
    """Share of kernel time from measured times of the same shapes."""
    scaled_share: float = 0.0
    """Share from measured times of other shapes."""
    assumed: dict[str, float] = field(default_factory=dict)
    """Operators without a measured time, and their share of kernel time."""
    warnings: tuple[str, ...] = ()
    timeline: tuple[Task, ...] = ()
    failed: str | None = None
    """Why there is no step; the other fields are empty then."""
    out_of_memory: bool = False
    host_peak_bytes: int = 0
    """Memory of the simulating process."""
