"""A composed config checked against itself and this machine, and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from typing import Any

from scaling import spec
from scaling.check_cases import check_cases
from scaling.check_cluster import gpus_a_node, to_cluster, to_env
from scaling.errors import InputError
from scaling.machine import Machine
from scaling.records import COLLECTIVES
from scaling.schema import (
    ClusterConfig,
    Config,
    CostConfig,
    InjectConfig,
    LevelConfig,
    LinkConfig,
    MeasureConfig,
    TopologyConfig,
)
from scaling.units import parse_bytes, parse_rate_bit_s

EMULATED_BIT_S_MAX = 8 * 2**32
"""The shaper's rate field is 32 bits of bytes/s (launch/emulated_hosts.py)."""


def to_spec(config: Config, machine: Machine) -> spec.Spec:
    """Check a composed config against itself and this machine."""
    elsewhere = "slurm" in (config.launcher.name, config.topology.kind)
    if elsewhere:  # what this machine has says nothing of the nodes
        machine = dataclasses.replace(machine, gpus=())
    topology = _topology(config.topology, config.cluster, machine, elsewhere=elsewhere)
    world_sizes = _world_sizes(config.world_sizes, topology)
    _one_of("mode", config.mode, spec.MODES)
    _one_of("tracking.mode", config.tracking.mode, spec.TRACKING_MODES)
    _one_of("tracking.objective", config.tracking.objective, spec.OBJECTIVES)
    for key in ("batch_per_rank", "accumulation_steps", "repeats"):
        _at_least(key, getattr(config, key), 1)
    for key in ("rounds_min", "rounds_max", "steps", "budget_s", "step_timeout_s"):
        _at_least(f"measure.{key}", getattr(config.measure, key), 1)
    for key in ("compute_ms", "input_ms", "host_ms", "contention"):
        _at_least(f"inject.{key}", getattr(config.inject, key), 0)
    if not config.ddp.bucket_cap_mb > 0:
        raise InputError(
            f"ddp.bucket_cap_mb={config.ddp.bucket_cap_mb}: a positive number of MiB is expected"
        )
    _one_of("ddp.comm_hook", config.ddp.comm_hook, spec.COMM_HOOKS)
    if config.compile and config.ddp.bucket_cap_mb < 1:
        raise InputError(
            f"ddp.bucket_cap_mb={config.ddp.bucket_cap_mb}: with compile=true torch cuts the graph at the buckets' "
            "ends and takes at least 1 MiB"
        )
    _batch(config, world_sizes)
    by_case = check_cases(config, topology)
    for precision in (config.precision.name, *by_case["vary"].precision):
        _precision(precision, topology, machine)
    if config.inject.rank is not None and not 0 <= config.inject.rank < max(world_sizes):
        raise InputError(
            f"inject.rank={config.inject.rank}: ranks of this run are 0 to {max(world_sizes) - 1}"
        )
    launcher = topology.kind if config.launcher.name == "auto" else config.launcher.name
    _one_of("launcher", launcher, spec.LAUNCHERS)
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
        model=_model(config.model),
        topology=topology,
        world_sizes=world_sizes,
        mode=config.mode,
        batch_per_rank=config.batch_per_rank,
        global_batch=config.global_batch or config.batch_per_rank * max(world_sizes),
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
        inject=_inject(config.inject),
        data=_data(config.data),
        env=to_env("env", config.env),
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


def _threads(config: Config, topology: spec.Topology, launcher: str, machine: Machine) -> int:
    """Cores shared evenly; on Slurm the nodes' cores are not known here, so what was asked for a rank, or one."""
    if config.threads is not None:
        _at_least("threads", config.threads, 1)
        return config.threads
    if launcher == "slurm":
        return config.cluster.cpus_per_rank or 1
    return max(
        1, machine.cores // (topology.ranks_per_host * (topology.hosts if launcher == "emulated" else 1))
    )


def _model(config: dict[str, Any]) -> spec.Model:
    own = {"name", "_target_", "synthetic", "args", "requires", "limits"}
    target = config.get("_target_")
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"model._target_={target}: the dotted path of a factory is expected, such as package.module.factory"
        )
    args = {str(k): v for k, v in config.items() if k not in own} | dict(config.get("args") or {})
    for key, limits in (config.get("limits") or {}).items():
        _within(f"model.{key}", args.get(key), **limits)
    _installed(str(config.get("name")), config.get("requires"))
    return spec.Model(
        name=str(config.get("name", target.rsplit(".", 1)[-1])),
        target=target,
        args=args,
        synthetic=bool(config.get("synthetic", False)),
    )


def _data(config: dict[str, Any]) -> spec.Data:
    own = {"name", "_target_", "args", "workers", "prefetch", "pin_memory"}
    target = config.get("_target_")
    if target is None:
        return spec.Data()
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"data._target_={target}: the dotted path of a torch Dataset is expected, such as package.module.Dataset"
        )
    counts = {"workers": 0, "prefetch": 1}
    for key, least in counts.items():
        value = config.get(key, least)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"data.{key}={value}: a whole number, at least {least}, is expected")
    if not isinstance(config.get("pin_memory", True), bool):
        raise InputError(f"data.pin_memory={config['pin_memory']}: true or false is expected")
    args = {str(k): v for k, v in config.items() if k not in own} | dict(config.get("args") or {})
    for key, value in args.items():
        if value is None:
            raise InputError(f"data.{key}: a value is expected, such as data.{key}=...")
    named = config.get("name", "synthetic")
    return spec.Data(
        name=target.rsplit(".", 1)[-1] if named in ("synthetic", "custom") else str(named),
        target=target,
        args=args,
        **{key: config.get(key, least) for key, least in counts.items()},
        pin_memory=config.get("pin_memory", True),
    )


def _installed(model: str, package: str | None) -> None:
    """A preset's package is there. It is not imported: that takes a second, and is the workers' part."""
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(
            f"model={model}: needs {package}, which is not installed; pip install 'scaling-harness[models]'"
        )


def _within(
    key: str, value: Any, *, least: int | None = None, most: int | None = None, multiple_of: int = 1
) -> None:
    """What a preset says of the sizes that it can take (`limits` in its file)."""
    low, high = least or multiple_of, float("inf") if most is None else most
    if not isinstance(value, int) or not low <= value <= high or value % multiple_of:
        whole = f"a multiple of {multiple_of}" if multiple_of > 1 else "a whole number"
        bound = f"from {low} on" if most is None else f"from {low} to {most}"
        raise InputError(f"{key}={value}: {whole} {bound} is expected")


def _topology(
    config: TopologyConfig, cluster: ClusterConfig, machine: Machine, *, elsewhere: bool
) -> spec.Topology:
    _one_of("topology.kind", config.kind, ("local", "emulated", "slurm"))
    _one_of("topology.device", config.device, ("auto", "cpu", "cuda"))
    _one_of("topology.backend", config.backend, ("auto", "gloo", "nccl"))
    _one_of("topology.placement", config.placement, spec.PLACEMENTS)
    device = ("cuda" if machine.gpus or elsewhere else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not machine.gpus and not elsewhere:
        raise InputError(
            "topology.device=cuda: no CUDA device was found here; use topology.device=cpu, or ask what a run "
            f"would take there: scaling predict RUN topology={config.name}"
        )
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if device == "cuda" and config.kind != "emulated" else "gloo"
    if backend == "nccl" and device == "cpu":
        raise InputError("topology.backend=nccl: NCCL needs CUDA devices; use topology.backend=gloo")
    if backend == "nccl" and config.kind == "emulated":
        raise InputError(
            "topology.backend=nccl: NCCL would see one machine behind the emulated hosts and go around their links; "
            "use topology.backend=gloo"
        )
    ranks = config.ranks_per_host
    if ranks is None and elsewhere:
        ranks = gpus_a_node(cluster) or machine.allocated_gpus
        if ranks is None:
            raise InputError(
                "topology.ranks_per_host=null: a node's GPUs cannot be counted from here; a number is expected, "
                "such as topology.ranks_per_host=8"
            )
    if ranks is None:
        ranks = len(machine.gpus) if device == "cuda" else machine.cores
    _at_least("topology.hosts", config.hosts, 1)
    _at_least("topology.ranks_per_host", ranks, 1)
    if device == "cuda" and backend == "nccl" and ranks > len(machine.gpus) and not elsewhere:
        raise InputError(
            f"topology.ranks_per_host={ranks}: this machine has {len(machine.gpus)} CUDA devices; "
            "use fewer, or topology.backend=gloo, with which ranks can share a device"
        )
    link = to_link(config.link, "topology.link")
    if config.kind == "emulated" and link.rate_bit_s is not None and link.rate_bit_s >= EMULATED_BIT_S_MAX:
        raise InputError(f"topology.link.rate={config.link.rate}: an emulated link takes less than 34 Gbit/s")
    return spec.Topology(
        name=config.name,
        kind=config.kind,
        hosts=config.hosts,
        ranks_per_host=ranks,
        device=device,
        backend=backend,
        link=to_link(config.link, "topology.link"),
        levels=to_levels(config.levels),
        islands=tuple(tuple(part) for part in config.islands),
        numa=tuple(tuple(part) for part in config.numa),
        nics=tuple(
            spec.Nic(
                name=nic.name,
                near=tuple(nic.near),
                link_class=nic.link_class,
                rate_bit_s=None
                if nic.rate is None
                else parse_rate_bit_s(nic.rate, f"topology.nics.{i}.rate"),
            )
            for i, nic in enumerate(config.nics)
        ),
        placement=config.placement,
        note=config.note,
    )


def to_link(config: LinkConfig, where: str) -> spec.Link:
    """A link's rate, and what is known of it."""
    return spec.Link(**_link(config, where))


def to_levels(configs: list[LevelConfig]) -> tuple[spec.Level, ...]:
    """Levels within a host, from the innermost out; each joins more ranks than the one before."""
    levels = tuple(
        spec.Level(name=c.name, ranks=c.ranks, link_class=c.link_class, **_link(c, f"topology.levels.{i}"))
        for i, c in enumerate(configs)
    )
    for inner, outer in itertools.pairwise((0, *(level.ranks for level in levels))):
        if outer <= inner:
            raise InputError(f"topology.levels: {outer} ranks after {inner}; each level joins more ranks")
    return levels


def _link(config: LinkConfig, where: str) -> dict[str, Any]:
    rate = None if config.rate is None else parse_rate_bit_s(config.rate, f"{where}.rate")
    if config.share is not None and not 0 < config.share <= 1:
        raise InputError(f"{where}.share={config.share}: a fraction of the rate is expected, such as 0.8")
    if config.latency_us is not None:
        _at_least(f"{where}.latency_us", config.latency_us, 0)
    return {
        "rate_bit_s": rate,
        "share": config.share,
        "latency_us": config.latency_us,
        "source": config.source,
    }


def _world_sizes(asked: list[int] | None, topology: spec.Topology) -> tuple[int, ...]:
    capacity = topology.capacity
    if asked is None:
        powers = [2**k for k in range(capacity.bit_length()) if 2**k <= capacity]
        return tuple(sorted({*powers, capacity}))
    if not asked:
        raise InputError("world_sizes=[]: at least one world size is expected, such as [1,2]")
    for size in asked:
        if not 1 <= size <= capacity:
            raise InputError(
                f"world_sizes={list(asked)}: {size} is not between 1 and {capacity}, which is what "
                f"topology={topology.name} holds ({topology.hosts} hosts x {topology.ranks_per_host} ranks)"
            )
    return tuple(sorted(set(asked)))


def _batch(config: Config, world_sizes: tuple[int, ...]) -> None:
    if config.mode == "strong":
        if config.global_batch is None:
            raise InputError("mode=strong: global_batch is missing, the samples of one step over all ranks")
        _at_least("global_batch", config.global_batch, 1)
        for size in world_sizes:
            if config.global_batch % (size * config.accumulation_steps):
                raise InputError(
                    f"global_batch={config.global_batch}: does not divide by world size {size} x "
                    f"accumulation_steps {config.accumulation_steps}; use a multiple"
                )
    elif config.batch_per_rank % config.accumulation_steps:
        raise InputError(
            f"batch_per_rank={config.batch_per_rank}: does not divide by "
            f"accumulation_steps={config.accumulation_steps}; use a multiple"
        )


def _precision(name: str, topology: spec.Topology, machine: Machine) -> None:
    _one_of("precision", name, spec.PRECISIONS)
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
    for name in config.collectives:
        _one_of("measure.collectives", name, COLLECTIVES)
    values["collectives"] = tuple(config.collectives)
    return spec.Measure(**values, fabric_bytes_max=parse_bytes(config.fabric_max, "measure.fabric_max"))


def _inject(config: InjectConfig) -> spec.Inject:
    values = {k: v for k, v in vars(config).items() if k not in ("link_rate", "memory_limit")}
    rate, limit = config.link_rate, config.memory_limit
    return spec.Inject(
        **values,
        link_rate_bit_s=None if rate is None else parse_rate_bit_s(rate, "inject.link_rate"),
        memory_limit_bytes=None if limit is None else parse_bytes(limit, "inject.memory_limit"),
    )


def _one_of(key: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise InputError(f"{key}={value}: one of {', '.join(accepted)} is expected")


def _at_least(key: str, value: float, least: float) -> None:
    if value < least:
        raise InputError(f"{key}={value}: at least {least} is expected")
