"""A composed config checked against itself and this machine, and frozen. InputError says what would be accepted.

At the end: the overrides of `scaling predict`, checked against the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scaling.config.model import batches, changed, check_cases, to_data, to_model
from scaling.config.schema import Composed, check, check_batches, freeze, world_sizes_to
from scaling.config.topology import check_emulated, freeze_topology, to_cluster, to_env, to_topology
from scaling.errors import InputError
from scaling.hardware.devices import Machine
from scaling.settings.parallel import DEGREES, REST, Fsdp, MeshError, Parallel, Pipeline
from scaling.settings.plan import RANKS_MAX, Plan
from scaling.settings.run import WORLD_SIZE_MAX, Ddp, Spec, WhatIf
from scaling.settings.topology import BACKEND_OF, GPU, MULTI_RANK, Topology


def to_parallel(config: Composed, topology: Topology) -> Parallel:
    """The strategy; where HSDP is not told its shard degree, a copy fills a host."""
    within = topology.ranks_per_host // max(1, int(config.tensor))
    shard = max(1, within) if config.shard is None else config.shard
    return freeze(Parallel, config, "parallel", shard=shard)


def check_parallel(spec: Spec) -> None:
    """InputError for a mesh that does not fit, or settings that no strategy of the run has."""
    _check_side_by_side(spec)
    for strategy in spec.strategies:
        _check_mesh(strategy)
        if strategy.parallel.sharded:
            _check_sharded(strategy)
    strategies = [strategy.parallel for strategy in spec.strategies]
    if all(parallel.sharded for parallel in strategies):
        _check_unused(
            spec, "ddp", Ddp(), "has fsdp.units, fsdp.prefetch, fsdp.reshard_after_forward, fsdp.reduce_dtype"
        )
    if not any(parallel.sharded for parallel in strategies):
        _check_unused(spec, "fsdp", Fsdp(), "has none")


def _check_side_by_side(spec: Spec) -> None:
    """InputError for strategies that cannot be measured side by side, or are the same."""
    names, listed = spec.vary.parallel, f"vary.parallel=[{','.join(spec.vary.parallel)}]"
    if not names:
        return
    if spec.kind.by_cases:
        raise InputError(
            f"{listed}: takes the steps of each strategy apart, which batch, the other lists of vary and "
            "task=inference do not; leave those out"
        )
    for index, strategy in enumerate(spec.strategies):
        for other in spec.strategies[:index]:
            if strategy.parallel.sharded and other.parallel.sharded and _alike(strategy, other):
                raise InputError(
                    f"{listed}: {strategy.parallel.name} has the same mesh as {other.parallel.name} at every world "
                    f"size here; give its degree, such as parallel=hsdp parallel.shard=2 {listed}, or leave one out"
                )


def _alike(strategy: Spec, other: Spec) -> bool:
    """Whether two strategies have the same mesh at every world size; one that does not fit is said elsewhere."""
    try:
        return all(strategy.parallel.mesh(n) == other.parallel.mesh(n) for n in strategy.world_sizes)
    except MeshError:
        return False


def _check_mesh(spec: Spec) -> None:
    parallel = spec.parallel
    for name in DEGREES:
        if getattr(parallel, name) == 0:
            raise InputError(
                f"parallel.{name}=0: a degree of at least 1, or -1 for what is left, is expected"
            )
    rest = [name for name in DEGREES if getattr(parallel, name) == REST]
    if len(rest) > 1:
        raise InputError(
            f"parallel.{rest[1]}=-1: parallel.{rest[0]}=-1 takes what the others leave, and only one degree can; a "
            "number for one of them is expected"
        )
    if parallel.pipeline != 1:
        raise InputError(
            f"parallel.pipeline={parallel.pipeline}: 1 is expected; a Probe in your own script follows a pipeline"
        )
    if not parallel.divided and (parallel.tensor != 1 or parallel.sequence):
        given = "sequence=true" if parallel.tensor == 1 else f"tensor={parallel.tensor}"
        raise InputError(
            f"parallel.{given}: parallel={parallel.name} divides no layers; use parallel=tp, fsdp_tp or hsdp_tp"
        )
    if not parallel.sharded and parallel.shard != 1:
        raise InputError(
            f"parallel.shard={parallel.shard}: parallel={parallel.name} keeps the whole model on every rank; "
            "use parallel=fsdp or parallel=hsdp"
        )
    if parallel.divided and spec.mode == "strong":
        raise InputError(
            f"global_batch={spec.global_batch}: parallel={parallel.name} is measured with one batch for each group of "
            "ranks that divides the layers; use batch_per_rank"
        )
    if parallel.name in ("fsdp", "fsdp_tp") and parallel.replicate != 1:
        name, several = parallel.name, parallel.name.replace("fsdp", "hsdp")
        raise InputError(
            f"parallel.replicate={parallel.replicate}: parallel={name} has one copy; use parallel={several} for several"
        )
    for size in spec.world_sizes:
        try:
            mesh = parallel.mesh(size)
        except MeshError as error:
            raise InputError(f"parallel={parallel.name}: {error}") from error
        if spec.fsdp.reshard > 1 and size > 1 and parallel.sharded and mesh.shard % spec.fsdp.reshard:
            raise InputError(
                f"fsdp.reshard_after_forward={spec.fsdp.reshard}: does not divide the {mesh.shard} ranks that share "
                f"the parameters at world size {size}; true, false or a divisor is expected"
            )


def _check_unused(spec: Spec, group: str, usual: Ddp | Fsdp, instead: str) -> None:
    """InputError for settings of a strategy that the run does not use."""
    if names := changed(getattr(spec, group), usual):
        key = "reshard_after_forward" if names[0] == "reshard" else names[0]
        where = "parallel=ddp" if group == "ddp" else "parallel=fsdp and hsdp"
        raise InputError(f"{group}.{key}: belongs to {where}; parallel={spec.parallel.name} {instead}")


def _check_sharded(spec: Spec) -> None:
    """InputError for settings that sharded training does not have."""
    name, divided = spec.parallel.name, spec.parallel.divided
    if spec.kind.by_cases:
        raise InputError(
            f"parallel={name}: batch, vary and task=inference are measured with parallel=ddp; leave them out"
        )
    if spec.compile and divided:
        raise InputError(
            f"compile=true: parallel={name} runs eager, since the waits of divided layers lie within their graphs and "
            "would not be seen; leave one of them out, or use parallel=ddp, fsdp or hsdp"
        )
    if spec.precision == "fp16" and divided:
        raise InputError(
            f"precision=fp16: parallel={name} has gradients over several meshes, which torch's loss scaler does not "
            "take together; use fp32, tf32 or bf16"
        )
    part, largest = spec.fsdp.reshard > 1, max(spec.world_sizes)
    if part and any(1 < n < largest for n in spec.world_sizes):
        raise InputError(
            f"fsdp.reshard_after_forward={spec.fsdp.reshard}: all ranks of a launch take part when torch makes its "
            f"communicators; use world_sizes=[1,{largest}], or true or false"
        )
    if spec.topology.spread:
        raise InputError(
            f"topology.placement=spread: parallel={name} is measured with packed ranks; use topology.placement=packed"
        )


def to_spec(config: Composed, machine: Machine) -> Spec:
    """Check a composed config against itself and this machine."""
    elsewhere = "slurm" in (config.launcher.name, config.topology.kind)
    if elsewhere:  # the nodes may have other devices than this machine
        machine = dataclasses.replace(machine, gpus=())
    env = to_env("env", config.env)
    topology = to_topology(
        config.topology, config.cluster, machine, elsewhere=elsewhere, shared=env.get(MULTI_RANK) == "1"
    )
    world_sizes = _world_sizes(config.world_sizes, topology)
    if config.mode == "strong" and config.global_batch is None:
        raise InputError("mode=strong: global_batch is missing, the samples of one step over all ranks")
    launcher = topology.kind if config.launcher.name == "auto" else config.launcher.name
    whole_batch = config.batch_per_rank * max(world_sizes)
    listed, largest = batches(config.batch)
    spec = freeze(
        Spec,
        config,
        model=to_model(config.model, accelerated=topology.accelerated),
        topology=topology,
        world_sizes=world_sizes,
        global_batch=whole_batch if config.global_batch is None else config.global_batch,
        precision=config.precision.name,
        threads=_threads(config, topology, launcher, machine),
        launcher=launcher,
        cluster=to_cluster(config.cluster),
        parallel=to_parallel(config.parallel, topology),
        pipeline=Pipeline(),
        data=to_data(config.data),
        env=env,
        batches=listed,
        batch_max=largest,
    )
    _check_training(spec)
    check_parallel(spec)
    check_cases(spec)
    for precision in (spec.precision, *spec.vary.precision):
        _check_precision(precision, topology, machine)
    _check_inject(spec, config.inject.link_rate)
    _check_launcher(launcher, topology)
    return spec


def _check_training(spec: Spec) -> None:
    """InputError for settings that do not go together in one training step."""
    if spec.compile and spec.ddp.bucket_cap_mb < 1:
        raise InputError(
            f"ddp.bucket_cap_mb={spec.ddp.bucket_cap_mb}: with compile=true torch cuts the graph at the buckets' "
            "ends and takes at least 1 MiB"
        )
    if spec.ddp.static_graph and (spec.compile or spec.accumulation_steps > 1):
        what = "compile=true" if spec.compile else f"accumulation_steps={spec.accumulation_steps}"
        raise InputError(
            f"ddp.static_graph=true with {what}: torch ends a first backward under no_sync with an internal error; "
            "leave one of them out"
        )
    check_batches(*spec.batch_setting, spec.world_sizes, spec.accumulation_steps)


def _check_inject(spec: Spec, link_rate: str | None) -> None:
    """InputError for a fault that this run cannot have; `link_rate` as it was asked for."""
    rank, ranks = spec.inject.rank, max(spec.world_sizes)
    if rank is not None and not 0 <= rank < ranks:
        raise InputError(f"inject.rank={rank}: ranks of this run are 0 to {ranks - 1}")
    if spec.inject.link_rate_bit_s is not None:
        if spec.launcher != "emulated":
            raise InputError(
                f"inject.link_rate={link_rate}: only emulated links can be slowed; use topology=emulated_pcie, or "
                "leave it out"
            )
        check_emulated(spec.inject.link_rate_bit_s, f"inject.link_rate={link_rate}")


def _check_launcher(launcher: str, topology: Topology) -> None:
    """InputError for a launcher that cannot start the topology's ranks."""
    if launcher == "local" and topology.hosts > 1:
        raise InputError(
            f"launcher=local: topology={topology.name} has {topology.hosts} hosts; use launcher=emulated, or "
            "`scaling submit`"
        )
    if launcher == "slurm" and topology.kind == "emulated":
        raise InputError(
            f"topology={topology.name}: its hosts are emulated on one machine; use `scaling run`"
        )
    if launcher != "slurm" and topology.kind == "slurm":
        raise InputError(f"launcher={launcher}: topology={topology.name} is on Slurm; use launcher=slurm")


def _check_precision(name: str, topology: Topology, machine: Machine) -> None:
    """InputError for a precision that the device does not have."""
    if topology.device == "cpu":
        if name in ("tf32", "fp16"):
            raise InputError(f"precision={name}: this run's device is a CPU, which does fp32 or bf16")
        return
    weak = [gpu for gpu in machine.gpus if gpu.capability is not None and gpu.capability < (8, 0)]
    if name in ("tf32", "bf16") and weak:
        raise InputError(
            f"precision={name}: {weak[0].name} has compute capability "
            f"{weak[0].capability[0]}.{weak[0].capability[1]}, 8.0 is needed; it does fp32 or fp16"  # type: ignore[index]
        )


def _threads(config: Composed, topology: Topology, launcher: str, machine: Machine) -> int:
    """Compute threads a rank: this machine's cores shared evenly, or on Slurm the cores that were asked for."""
    if config.threads is not None:
        return int(config.threads)
    if launcher == "slurm":
        return config.cluster.cpus_per_rank or 1
    hosts = topology.hosts if launcher == "emulated" else 1
    return max(1, machine.cores // (topology.ranks_per_host * hosts))


def _world_sizes(asked: list[int] | None, topology: Topology) -> tuple[int, ...]:
    capacity = topology.capacity
    if max(asked or [capacity], default=0) > RANKS_MAX:
        raise InputError(
            f"world_sizes={list(asked or [capacity])}: a launch has {RANKS_MAX} ranks at most; use fewer, "
            "or ask what a larger one would take: scaling predict RUN world_sizes=[...]"
        )
    if asked is None:
        powers = [2**k for k in range(capacity.bit_length()) if 2**k <= capacity]
        return tuple(sorted({*powers, capacity}))
    why = (
        f", which is what topology={topology.name} holds: topology.hosts={topology.hosts}, "
        f"topology.ranks_per_host={topology.ranks_per_host}"
    )
    return world_sizes_to(capacity, asked, such_as="[1,2]", why=why)


KNOWN = (
    "world_sizes, topology, ddp.bucket_cap_mb, accumulation_steps, batch_per_rank, global_batch, compute_scale, "
    "gradient_compression, without_straggler"
)
"""What a prediction can change."""
PLACES = ("cluster.", "cost.")
"""Where a topology is found and what it costs: keys that change no prediction."""
JOINS = ("levels", "link.latency_us", "link.rate", "link.share", "placement", "ranks_per_host")
"""Keys of a topology that decide how ranks are joined."""


def to_whatif(config: Composed, base: Composed, plan: Plan, overrides: Sequence[str] = ()) -> WhatIf:
    """Check the overrides against the run. `base` is the run's own config, `config` the same with `overrides`."""
    changes = _differences(config, base)
    for key in changes:
        if not any(key == prefix or key.startswith(prefix + ".") for prefix in KNOWN.split(", ")):
            raise InputError(
                f"{key}: what it changes cannot be predicted, only measured (scaling run); predict takes {KNOWN}"
            )
    measured, steps, sizes = plan.spec, config.accumulation_steps, config.world_sizes
    check(Ddp, config.ddp, "ddp")
    asked = freeze(
        WhatIf,
        config,
        changes=tuple(overrides),
        world_sizes=measured.world_sizes
        if sizes is None
        else world_sizes_to(WORLD_SIZE_MAX, sizes, such_as="[2,4,8]"),
        topology=_topology_elsewhere(config.topology, measured.topology),
        elsewhere=any(key.removeprefix("topology.").startswith(JOINS) for key in changes),
        bucket_cap_mb=config.ddp.bucket_cap_mb if "ddp.bucket_cap_mb" in changes else None,
        accumulation_steps=steps,
        global_batch=config.global_batch or measured.global_batch,
    )
    key, _ = measured.batch_setting
    check_batches(key, getattr(asked, key), asked.world_sizes, steps)
    return asked if "accumulation_steps" in changes else dataclasses.replace(asked, accumulation_steps=None)


def _topology_elsewhere(config: Composed, measured: Topology) -> Topology:
    """The topology that was asked for, on any machine: this one need not have its devices."""
    check(Topology, config, "topology")
    ranks = config.ranks_per_host
    if ranks is None and config.name != measured.name:
        raise InputError(
            f"topology={config.name}: how many ranks a host has depends on the machine; "
            "a number is expected, such as topology.ranks_per_host=8"
        )
    # Links within a host are those of GPUs, where a topology does not say what its ranks run on.
    elsewhere = bool(config.levels) and config.name != measured.name
    device, backend = (GPU, BACKEND_OF[GPU]) if elsewhere else (measured.device, measured.backend)
    return freeze_topology(
        config,
        ranks_per_host=measured.ranks_per_host if ranks is None else ranks,
        device=device if config.device == "auto" else config.device,
        backend=backend if config.backend == "auto" else config.backend,
    )


def _differences(config: Composed, base: Composed) -> list[str]:
    ours, theirs = _flat(dataclasses.asdict(config)), _flat(dataclasses.asdict(base))
    differ = [key for key, value in ours.items() if key not in theirs or theirs[key] != value]
    return [key for key in differ if not key.startswith(PLACES)]


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        inside = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return flat
