"""A composed config checked against itself and this machine, and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses

from scaling.config.model import batches, check_cases, to_data, to_model
from scaling.config.parallel import check_parallel, to_parallel
from scaling.config.schema import Composed, ascending, check_batches, freeze
from scaling.config.topology import check_emulated, to_cluster, to_env, to_topology
from scaling.errors import InputError
from scaling.hardware.devices import Machine
from scaling.settings.parallel import Pipeline
from scaling.settings.plan import RANKS_MAX
from scaling.settings.run import Spec
from scaling.settings.topology import MULTI_RANK, Topology


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
    check_batches(
        spec.mode,
        spec.world_sizes,
        batch_per_rank=spec.batch_per_rank,
        global_batch=spec.global_batch,
        steps=spec.accumulation_steps,
    )


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
    if not asked:
        raise InputError("world_sizes=[]: at least one world size is expected, such as [1,2]")
    for size in asked:
        if not 1 <= size <= capacity:
            raise InputError(
                f"world_sizes={list(asked)}: {size} is not between 1 and {capacity}, which is what topology="
                f"{topology.name} holds: topology.hosts={topology.hosts}, "
                f"topology.ranks_per_host={topology.ranks_per_host}"
            )
    return ascending("world_sizes", asked)
