"""A composed config checked against itself and this machine, and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses

from scaling import spec
from scaling.check_cases import check_cases
from scaling.check_cluster import to_cluster, to_env
from scaling.check_model import to_data, to_model
from scaling.check_topology import check_emulated, to_topology
from scaling.check_value import at_least, check_batches, one_of, positive
from scaling.errors import InputError
from scaling.fabric import MULTI_RANK, Topology
from scaling.machine import Machine
from scaling.records import COLLECTIVES
from scaling.schema import Config, CostConfig, InjectConfig, MeasureConfig
from scaling.units import format_bytes, parse_bytes, parse_rate_bit_s


def to_spec(config: Config, machine: Machine) -> spec.Spec:
    """Check a composed config against itself and this machine."""
    elsewhere = "slurm" in (config.launcher.name, config.topology.kind)
    if elsewhere:  # what this machine has says nothing of the nodes
        machine = dataclasses.replace(machine, gpus=())
    env = to_env("env", config.env)
    topology = to_topology(
        config.topology,
        config.cluster,
        machine,
        elsewhere=elsewhere,
        shared=env.get(MULTI_RANK) == "1",
    )
    world_sizes = _world_sizes(config.world_sizes, topology)
    one_of("mode", config.mode, spec.MODES)
    one_of("tracking.mode", config.tracking.mode, spec.TRACKING_MODES)
    one_of("tracking.objective", config.tracking.objective, spec.OBJECTIVES)
    for key in ("batch_per_rank", "accumulation_steps", "repeats"):
        at_least(key, getattr(config, key), 1)
    for key in ("rounds_min", "rounds_max", "steps", "budget_s", "step_timeout_s"):
        at_least(f"measure.{key}", getattr(config.measure, key), 1)
    for key in ("compute_ms", "input_ms", "host_ms", "contention"):
        at_least(f"inject.{key}", getattr(config.inject, key), 0)
    positive("ddp.bucket_cap_mb", config.ddp.bucket_cap_mb)
    one_of("ddp.comm_hook", config.ddp.comm_hook, spec.COMM_HOOKS)
    if config.compile and config.ddp.bucket_cap_mb < 1:
        raise InputError(
            f"ddp.bucket_cap_mb={config.ddp.bucket_cap_mb}: with compile=true torch cuts the graph at the buckets' "
            "ends and takes at least 1 MiB"
        )
    if config.ddp.static_graph and (config.compile or config.accumulation_steps > 1):
        what = "compile=true" if config.compile else f"accumulation_steps={config.accumulation_steps}"
        raise InputError(
            f"ddp.static_graph=true with {what}: torch ends a first backward under no_sync with an internal error; "
            "leave one of them out"
        )
    if config.mode == "strong" and config.global_batch is None:
        raise InputError("mode=strong: global_batch is missing, the samples of one step over all ranks")
    global_batch = config.batch_per_rank * max(world_sizes)
    if config.global_batch is not None:
        at_least("global_batch", config.global_batch, 1)
        global_batch = config.global_batch
    check_batches(
        config.mode,
        world_sizes,
        batch_per_rank=config.batch_per_rank,
        global_batch=global_batch,
        steps=config.accumulation_steps,
    )
    by_case = check_cases(config, topology)
    for precision in (config.precision.name, *by_case["vary"].precision):
        _precision(precision, topology, machine)
    if config.inject.rank is not None and not 0 <= config.inject.rank < max(world_sizes):
        raise InputError(
            f"inject.rank={config.inject.rank}: ranks of this run are 0 to {max(world_sizes) - 1}"
        )
    launcher = topology.kind if config.launcher.name == "auto" else config.launcher.name
    one_of("launcher", launcher, spec.LAUNCHERS)
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
    threads = _threads(config, topology, launcher, machine)
    return spec.Spec(
        model=to_model(config.model),
        topology=topology,
        world_sizes=world_sizes,
        mode=config.mode,
        batch_per_rank=config.batch_per_rank,
        global_batch=global_batch,
        precision=config.precision.name,
        measure=_measure(config.measure),
        accumulation_steps=config.accumulation_steps,
        compile=config.compile,
        channels_last=config.channels_last,
        checkpointing=config.checkpointing,
        fused_optimizer=config.fused_optimizer,
        ddp=spec.Ddp(**vars(config.ddp)),
        repeats=config.repeats,
        seed=config.seed,
        threads=threads,
        launcher=launcher,
        cluster=to_cluster(config.cluster),
        inject=_inject(config.inject, launcher),
        data=to_data(config.data),
        env=env,
        cost=to_cost(config.cost),
        tracking=spec.Tracking(**{**vars(config.tracking), "tags": tuple(config.tracking.tags)}),
        **by_case,
    )


def to_cost(config: CostConfig) -> spec.Cost:
    """InputError for a price that is none."""
    price = config.usd_per_gpu_hour
    if price is not None and not 0 < price < float("inf"):
        raise InputError(f"cost.usd_per_gpu_hour={price:g}: a price above 0 is expected, such as 2.5")
    return spec.Cost(usd_per_gpu_hour=price)


def _threads(config: Config, topology: Topology, launcher: str, machine: Machine) -> int:
    """Cores shared evenly; on Slurm the nodes' cores are not known here, so what was asked for a rank, or one."""
    if config.threads is not None:
        at_least("threads", config.threads, 1)
        return config.threads
    if launcher == "slurm":
        return config.cluster.cpus_per_rank or 1
    return max(
        1, machine.cores // (topology.ranks_per_host * (topology.hosts if launcher == "emulated" else 1))
    )


def _world_sizes(asked: list[int] | None, topology: Topology) -> tuple[int, ...]:
    capacity = topology.capacity
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
    return tuple(sorted(set(asked)))


def _precision(name: str, topology: Topology, machine: Machine) -> None:
    one_of("precision", name, spec.PRECISIONS)
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


def _measure(config: MeasureConfig) -> spec.Measure:
    values = {k: v for k, v in vars(config).items() if k != "fabric_max"}
    at_least("measure.warmup_max", config.warmup_max, spec.WARMUP_MIN)
    if not config.collectives:
        raise InputError(
            f"measure.collectives=[]: one or more of {', '.join(COLLECTIVES)} are expected, such as [all_reduce]"
        )
    for name in config.collectives:
        one_of("measure.collectives", name, COLLECTIVES)
    values["collectives"] = tuple(config.collectives)
    largest = parse_bytes(config.fabric_max, "measure.fabric_max")
    if largest < spec.FABRIC_BYTES_MIN:
        raise InputError(
            f"measure.fabric_max={config.fabric_max}: at least {format_bytes(spec.FABRIC_BYTES_MIN)} is expected, "
            "the sweep's smallest message"
        )
    return spec.Measure(**values, fabric_bytes_max=largest)


def _inject(config: InjectConfig, launcher: str) -> spec.Inject:
    values = {k: v for k, v in vars(config).items() if k not in ("link_rate", "memory_limit")}
    rate, limit = config.link_rate, config.memory_limit
    rate_bit_s = None if rate is None else parse_rate_bit_s(rate, "inject.link_rate")
    if rate_bit_s is not None:
        if launcher != "emulated":
            raise InputError(
                f"inject.link_rate={rate}: only emulated links can be slowed; use topology=emulated_pcie, or leave "
                "it out"
            )
        check_emulated(rate_bit_s, f"inject.link_rate={rate}")
    return spec.Inject(
        **values,
        link_rate_bit_s=rate_bit_s,
        memory_limit_bytes=None if limit is None else parse_bytes(limit, "inject.memory_limit"),
    )
