"""What a simulation is asked for: overrides of a run's settings, on a machine that need not be here."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.config.compose import changed, composed
from scaling.config.run import to_spec
from scaling.config.schema import Composed
from scaling.errors import InputError
from scaling.hardware.devices import Machine, find_machine
from scaling.settings.parallel import DIVIDED, REST, STRATEGIES, Parallel, divisors
from scaling.settings.plan import RANKS_MAX
from scaling.settings.run import Spec
from scaling.settings.topology import GPU, SIMULATED, SIMULATED_PREFIX
from scaling.units import parse_bytes

REFUSED = {"cp": "context parallel", "ep": "expert parallel (MoE)", "pp": "pipeline parallel"}
NAMES = tuple(name for name in STRATEGIES if name != "single")
AUTO = "auto"
"""`parallel=auto`: all meshes."""
DEGREES = ("replicate", "shard", "tensor")
SEQUENCE = "parallel.sequence"
HOSTS_MAX = RANKS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request: strategies to compare, each over the world sizes of `spec`."""

    spec: Spec
    strategies: tuple[Parallel, ...]
    usd_per_gpu_hour: float | None
    changes: tuple[str, ...]
    every_mesh: bool = False
    """Whether `strategies` are all meshes of the only world size, to be ranked."""
    memory_limit_bytes: int | None = None
    """Of a device; None: what its data sheet says."""


def to_simulation(words: Sequence[str], measured: str | None = None) -> Asked:
    """Check the words of a command line; `measured` is the config.yaml of a run that they change.

    `parallel` and its degrees are read here; everything else goes to Hydra. InputError says what would be accepted.
    """
    named: tuple[str, ...] = ()
    degrees: dict[str, int] = {}
    sequence = False
    limit: int | None = None
    rest = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "parallel":
            named = _strategies(value)
        elif key == SEQUENCE:
            sequence = _yes(word, value)
        elif key.startswith("parallel."):
            axis = _degree(key)
            degrees[axis] = _count(word, value)
        elif key == "memory_limit":
            limit = parse_bytes(value, key)
        elif key.partition(".")[0] == "inject":
            raise InputError(
                f"{word}: a simulated training has no injected faults; leave it out, or measure it"
            )
        elif key == "topology":
            rest.append(f"topology={value.removeprefix(SIMULATED_PREFIX)}")
        else:
            rest.append(word)
    if any(word.startswith("fsdp.") for word in rest) and any("sdp" in name for name in named):
        rest.append("parallel=fsdp")  # which Hydra takes these settings for
    config = composed(rest) if measured is None else changed(measured, rest)[1]
    spec = _spec(config)
    if spec.task != "train":
        raise InputError(f"task={spec.task}: only training is simulated")
    if spec.data.target is not None:
        spec = dataclasses.replace(spec, data=dataclasses.replace(spec.data, target=None))
    if (degrees or sequence) and not named:
        named = (spec.parallel.name,)
    every = named == (AUTO,)
    if every:
        strategies = _every_mesh(spec, degrees)
    else:
        strategies = tuple(_parallel(name, spec.topology.ranks_per_host, degrees) for name in named)
    if sequence:
        strategies = tuple(_by_tokens(strategy, every=every) for strategy in strategies)
    return Asked(
        spec=spec,
        strategies=strategies or (spec.parallel,),
        every_mesh=every,
        memory_limit_bytes=limit,
        usd_per_gpu_hour=config.cost.usd_per_gpu_hour,
        changes=tuple(words),
    )


def meshes_of(world_size: int, tensor_most: int) -> tuple[Parallel, ...]:
    """All meshes of `world_size` ranks whose layers are divided over `tensor_most` at most, in the order of degrees."""
    meshes = []
    for tensor in divisors(world_size):
        for shard in divisors(world_size // tensor) if tensor <= tensor_most else ():
            replicate = world_size // tensor // shard
            if tensor == 1:
                name = "ddp" if shard == 1 else "fsdp" if replicate == 1 else "hsdp"
            else:
                whole = "tp" if shard == 1 else "fsdp_tp"
                name = whole if replicate == 1 else "hsdp_tp"
            meshes.append(Parallel(name=name, replicate=replicate, shard=shard, tensor=tensor))
    return tuple(meshes)


def _every_mesh(spec: Spec, degrees: dict[str, int]) -> tuple[Parallel, ...]:
    """All meshes of the world size with the degrees that were given; layers are divided within a host.

    InputError where there is more than one world size, or no such mesh.
    """
    sizes = [n for n in spec.world_sizes if n > 1]
    if len(sizes) != 1:
        raise InputError(
            f"parallel={AUTO}: all meshes of one world size are ranked; world_sizes=[64] is expected"
        )
    given = {name: degree for name, degree in degrees.items() if degree != REST}
    meshes = tuple(
        mesh
        for mesh in meshes_of(sizes[0], given.get("tensor", spec.topology.ranks_per_host))
        if all(getattr(mesh, name) == degree for name, degree in given.items())
    )
    if not meshes:
        asked = " ".join(f"parallel.{name}={degree}" for name, degree in given.items())
        raise InputError(f"{asked}: no mesh of {sizes[0]} ranks has these degrees")
    return meshes


def _parallel(name: str, per_host: int, degrees: dict[str, int]) -> Parallel:
    """A strategy with the degrees that were given; layers are split within a host, and HSDP shards within one.

    InputError for a degree that the strategy has not.
    """
    tensor = degrees.get("tensor", REST if name == "tp" else per_host) if name in DIVIDED else 1
    shard = 1
    if "hsdp" in name:
        shard = degrees.get("shard", per_host if tensor == per_host else max(1, per_host // max(1, tensor)))
    elif "fsdp" in name:
        shard = degrees.get("shard", REST)
    replicate = degrees.get("replicate", REST) if name == "ddp" or "hsdp" in name else 1
    mesh = {"replicate": replicate, "shard": shard, "tensor": tensor}
    for axis, degree in degrees.items():
        if degree not in (1, REST) and mesh[axis] != degree:
            raise InputError(
                f"parallel.{axis}={degree}: parallel={name} has no ranks on this axis; parallel=hsdp has replicate and "
                "shard, parallel=hsdp_tp tensor too"
            )
    return Parallel(name=name, replicate=replicate, shard=shard, tensor=tensor)


def _by_tokens(parallel: Parallel, *, every: bool) -> Parallel:
    """The same with what lies between divided layers divided by tokens. InputError where no layers are divided.

    `every`: it is one of all meshes, of which those with divided layers are changed.
    """
    if parallel.divided:
        return dataclasses.replace(parallel, sequence=True)
    if not every:
        raise InputError(
            f"{SEQUENCE}=true: parallel={parallel.name} divides no layers; use parallel=tp, fsdp_tp or hsdp_tp"
        )
    return parallel


def _strategies(value: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in value.strip("[]").split(",") if word.strip())
    for name in (names or ("",)) if names != (AUTO,) else ():
        if name in REFUSED:
            raise InputError(
                f"parallel={name}: {REFUSED[name]} is not simulated, since its ranks do not do alike; "
                f"there is {', '.join(NAMES)}"
            )
        if name not in NAMES:
            raise InputError(f"parallel={name}: one or more of {', '.join(NAMES)} is expected, or {AUTO}")
    return names


def _degree(key: str) -> str:
    name = key.removeprefix("parallel.")
    if name not in DEGREES:
        accepted = ", ".join([*(f"parallel.{d}" for d in DEGREES), SEQUENCE])
        raise InputError(f"{key}: is not simulated; there is {accepted}")
    return name


def _yes(word: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InputError(f"{word}: true or false is expected")
    return value.lower() == "true"


def _count(word: str, value: str) -> int:
    if value == "-1":
        return REST
    if not value.isdigit() or not 1 <= int(value) <= RANKS_MAX:
        raise InputError(
            f"{word}: a number of ranks from 1 to {RANKS_MAX} is expected, or -1 for what is left"
        )
    return int(value)


def _spec(config: Composed) -> Spec:
    """The spec, with as many hosts as its largest world size needs; the devices need not be on this machine."""
    config = copy.deepcopy(config)
    topology = config.topology
    if not isinstance(topology.ranks_per_host, int):
        raise InputError(
            f"topology={topology.name}: how many ranks a host has is not known; a number is expected, such as "
            "topology.ranks_per_host=8"
        )
    largest = max(config.world_sizes or [topology.hosts * topology.ranks_per_host])
    topology.hosts = max(topology.hosts, min(HOSTS_MAX, -(-largest // topology.ranks_per_host)))
    topology.device = topology.device if topology.device != "auto" else GPU
    # What a measured run's injected faults cost is in its spread; the simulated program has none.
    config.inject.rank = config.inject.link_rate = None
    kind, launcher = topology.kind, config.launcher.name
    if topology.device != SIMULATED:
        # On Slurm a run's devices are those of other machines, which is what a simulated one's are too.
        topology.kind = config.launcher.name = "slurm"
    spec = to_spec(config, _elsewhere())
    named = dataclasses.replace(spec.topology, kind=kind)
    return dataclasses.replace(
        spec, topology=named, launcher="local" if launcher == "auto" else spec.launcher
    )


def _elsewhere() -> Machine:
    return dataclasses.replace(find_machine(), gpus=())
