"""The one door from Hydra: schema dataclasses in, a frozen `Spec` out. Nothing else imports hydra or omegaconf."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scaling import resources, spec
from scaling.errors import InputError
from scaling.machine import Machine, find_machine
from scaling.records import COLLECTIVES
from scaling.units import parse_bytes, parse_rate_bit_s

# Hydra cannot hold frozen dataclasses or Literal, so the schema is a set of types of its own.


@dataclass
class LinkConfig:
    rate: str | None = None
    source: str = ""


@dataclass
class TopologyConfig:
    name: str = MISSING
    kind: str = MISSING
    hosts: int = 1
    ranks_per_host: int | None = None
    device: str = "auto"
    backend: str = "auto"
    link: LinkConfig = field(default_factory=LinkConfig)
    note: str = ""


@dataclass
class NameConfig:
    name: str = MISSING


@dataclass
class MeasureConfig:
    name: str = MISSING
    rounds_min: int = MISSING
    rounds_max: int = MISSING
    steps: int = MISSING
    lead_in: int = MISSING
    warmup_max: int = MISSING
    target_half_width: float | None = None
    budget_s: float = MISSING
    fabric_max: str = MISSING
    collectives: list[str] = field(default_factory=lambda: ["all_reduce"])
    step_timeout_s: float = MISSING


@dataclass
class DdpConfig:
    bucket_cap_mb: float = 25
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    find_unused_parameters: bool = False


@dataclass
class InjectConfig:
    rank: int | None = None
    compute_ms: float = 0
    input_ms: float = 0
    host_ms: float = 0
    link_rate: str | None = None
    wrong_no_sync: bool = False
    contention: int = 0
    fail_after_blocks: int | None = None


@dataclass
class TrackingConfig:
    mode: str = "offline"
    project: str = "scaling"
    entity: str | None = None
    group: str | None = None
    job_type: str = "scaling"
    tags: list[str] = field(default_factory=list)
    notes: str | None = None


@dataclass
class Config:
    model: dict[str, Any] = field(default_factory=dict)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    precision: NameConfig = field(default_factory=NameConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    launcher: NameConfig = field(default_factory=NameConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    inject: InjectConfig = field(default_factory=InjectConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    world_sizes: list[int] | None = None
    mode: str = "weak"
    batch_per_rank: int = 32
    global_batch: int | None = None
    accumulation_steps: int = 1
    repeats: int = 1
    seed: int = 0
    threads: int | None = None
    env: dict[str, Any] = field(default_factory=dict)
    run_dir: str | None = None


EMULATED_BIT_S_MAX = 8 * 2**32
"""The shaper's rate field is 32 bits of bytes/s (launch/emulated_hosts.py)."""

EXAMPLES = {"model._target_": "package.module.factory"}
"""What to say where a mandatory key has no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One checked request: what to run, where to put it, and the YAML it was composed to."""

    spec: spec.Spec
    run_dir: Path | None
    yaml: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What one command line asks for; several in a multirun. Empty when Hydra only printed something."""

    items: tuple[Request, ...]
    multirun: bool


def requests(verb: str, arguments: list[str]) -> Requests:
    """Compose a command line with Hydra itself (all its flags and grammar work) and check every result.

    Raises InputError with one line for anything that is wrong; nothing has been written by then.
    """
    ConfigStore.instance().store(name="schema", node=Config)
    composed: list[DictConfig] = []

    def task(cfg: DictConfig) -> None:
        if not composed:
            HydraConfig.get()  # Hydra set up this job: fail here rather than later
        composed.append(cfg)

    multirun = "-m" in arguments or "--multirun" in arguments
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    main = hydra.main(config_path=str(resources.folder("conf")), config_name="config", version_base="1.3")(
        task
    )
    errors = io.StringIO()
    argv, sys.argv = sys.argv, [f"scaling {verb}", *arguments]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="scaling-sweep-") as scratch,
            contextlib.redirect_stderr(errors),
        ):
            if multirun:  # the sweeper insists on a folder of its own
                sys.argv.append(f"hydra.sweep.dir={scratch}")
            main()
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_one_line(error)) from error
    except SystemExit as stop:
        if stop.code in (0, None):
            return Requests(items=(), multirun=multirun)
        raise InputError(_last_line(errors.getvalue())) from stop
    finally:
        sys.argv = argv
    machine = find_machine()
    return Requests(items=tuple(_request(cfg, machine) for cfg in composed), multirun=multirun)


def candidates(word: str) -> list[str]:
    """What `word` on a `scaling run` line can be completed to, as Hydra's own completion has it."""
    from hydra._internal.hydra import Hydra  # noqa: PLC0415
    from hydra._internal.utils import create_config_search_path  # noqa: PLC0415
    from hydra.core.global_hydra import GlobalHydra  # noqa: PLC0415
    from hydra.core.plugins import Plugins  # noqa: PLC0415
    from hydra.plugins.completion_plugin import CompletionPlugin  # noqa: PLC0415

    ConfigStore.instance().store(name="schema", node=Config)
    search = create_config_search_path(str(resources.folder("conf")))
    loader = Hydra.create_main_hydra2("scaling", search).config_loader
    plugin = next(p for p in Plugins.instance().discover(CompletionPlugin) if p.provides() == "bash")  # type: ignore[attr-defined]
    GlobalHydra.instance().clear()
    found: list[str] = plugin(loader)._query("config", word)  # type: ignore[call-arg, attr-defined]  # noqa: SLF001
    return found


def _request(cfg: DictConfig, machine: Machine) -> Request:
    try:
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise InputError(_one_line(error)) from error
    assert isinstance(config, Config)
    run_dir = None if config.run_dir is None else Path(config.run_dir).expanduser()
    return Request(spec=to_spec(config, machine), run_dir=run_dir, yaml=OmegaConf.to_yaml(cfg, resolve=True))


def to_spec(config: Config, machine: Machine) -> spec.Spec:
    """Check a composed config against itself and this machine."""
    topology = _topology(config.topology, machine)
    world_sizes = _world_sizes(config.world_sizes, topology)
    _one_of("mode", config.mode, spec.MODES)
    _one_of("tracking.mode", config.tracking.mode, spec.TRACKING_MODES)
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
    _batch(config, world_sizes)
    _precision(config.precision.name, topology, machine)
    if config.inject.rank is not None and not 0 <= config.inject.rank < max(world_sizes):
        raise InputError(
            f"inject.rank={config.inject.rank}: ranks of this run are 0 to {max(world_sizes) - 1}"
        )
    launcher = topology.kind if config.launcher.name == "auto" else config.launcher.name
    _one_of("launcher", launcher, spec.LAUNCHERS)
    if launcher == "local" and topology.hosts > 1:
        raise InputError(
            f"launcher=local: topology={topology.name} has {topology.hosts} hosts; use launcher=emulated"
        )
    ranks_here = topology.ranks_per_host * (topology.hosts if launcher == "emulated" else 1)
    threads = config.threads if config.threads is not None else max(1, machine.cores // ranks_here)
    _at_least("threads", threads, 1)
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
        ddp=spec.Ddp(**vars(config.ddp)),
        repeats=config.repeats,
        seed=config.seed,
        threads=threads,
        launcher=launcher,
        inject=_inject(config.inject),
        env={str(k): str(v) for k, v in config.env.items()},
        tracking=spec.Tracking(**{**vars(config.tracking), "tags": tuple(config.tracking.tags)}),
    )


def _model(config: dict[str, Any]) -> spec.Model:
    own = {"name", "_target_", "synthetic", "args"}
    target = config.get("_target_")
    if not isinstance(target, str) or "." not in target:
        raise InputError(
            f"model._target_={target}: the dotted path of a factory is expected, such as package.module.factory"
        )
    args = {str(k): v for k, v in config.items() if k not in own} | dict(config.get("args") or {})
    return spec.Model(
        name=str(config.get("name", target.rsplit(".", 1)[-1])),
        target=target,
        args=args,
        synthetic=bool(config.get("synthetic", False)),
    )


def _topology(config: TopologyConfig, machine: Machine) -> spec.Topology:
    _one_of("topology.kind", config.kind, ("local", "emulated"))
    _one_of("topology.device", config.device, ("auto", "cpu", "cuda"))
    _one_of("topology.backend", config.backend, ("auto", "gloo", "nccl"))
    device = ("cuda" if machine.gpus else "cpu") if config.device == "auto" else config.device
    if device == "cuda" and not machine.gpus:
        raise InputError("topology.device=cuda: no CUDA device was found here; use topology.device=cpu")
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
    if ranks is None:
        ranks = len(machine.gpus) if device == "cuda" else machine.cores
    _at_least("topology.hosts", config.hosts, 1)
    _at_least("topology.ranks_per_host", ranks, 1)
    if device == "cuda" and backend == "nccl" and ranks > len(machine.gpus):
        raise InputError(
            f"topology.ranks_per_host={ranks}: this machine has {len(machine.gpus)} CUDA devices; "
            "use fewer, or topology.backend=gloo, with which ranks can share a device"
        )
    rate = None if config.link.rate is None else parse_rate_bit_s(config.link.rate, "topology.link.rate")
    if config.kind == "emulated" and rate is not None and rate >= EMULATED_BIT_S_MAX:
        raise InputError(f"topology.link.rate={config.link.rate}: an emulated link takes less than 34 Gbit/s")
    return spec.Topology(
        name=config.name,
        kind=config.kind,
        hosts=config.hosts,
        ranks_per_host=ranks,
        device=device,
        backend=backend,
        link=spec.Link(
            rate_bit_s=rate,
            source=config.link.source,
        ),
        note=config.note,
    )


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
    values = {k: v for k, v in vars(config).items() if k != "link_rate"}
    rate = config.link_rate
    return spec.Inject(
        **values, link_rate_bit_s=None if rate is None else parse_rate_bit_s(rate, "inject.link_rate")
    )


def _one_of(key: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise InputError(f"{key}={value}: one of {', '.join(accepted)} is expected")


def _at_least(key: str, value: float, least: float) -> None:
    if value < least:
        raise InputError(f"{key}={value}: at least {least} is expected")


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip() if text.strip() else "the command line could not be read"


def _one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's messages run over several lines; keep what, where and what would be accepted."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={name}: no such {group}; available: {', '.join(error.options)}"
    text = str(error).strip()
    cause: BaseException | None = error.__cause__
    while cause is not None:
        if isinstance(cause, OmegaConfBaseException):
            text = str(cause).strip() if len(str(cause)) > 5 else text
        cause = cause.__cause__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read ({lines[0]}); key=value is expected, lists as [1,2]"
    key = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("full_key:")), "")
    message = lines[0] if lines else type(error).__name__
    if "is not a ListConfig" in message:
        return f"{key}: a list is expected, such as {key}=[1,2]"
    if "Missing mandatory value" in message:
        return f"{key}: a value is expected, such as {key}={EXAMPLES.get(key, '...')}"
    message = message.removesuffix(".").replace("To append to your config use", "To add a new key use")
    if "is not in struct" in message or "not in '" in message:
        return _unknown_key(message, key)
    return f"{key}: {message}" if key and key not in message else message


def _unknown_key(message: str, key: str) -> str:
    known = sorted(_keys(OmegaConf.structured(Config)))
    near = difflib.get_close_matches(key or message, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "see `scaling run --help` for the keys there are"
    return f"{key or message}: no such key; {hint}"


def _keys(node: Any, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name in node:
        path = f"{prefix}{name}"
        found.append(path)
        if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
            found += _keys(node[name], path + ".")
    return found
