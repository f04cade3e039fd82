"""The shape of the Hydra config: mutable, since Hydra cannot hold frozen dataclasses or Literal.

Fields are explained where they are frozen: scaling/spec.py, scaling/fabric.py, scaling/cluster.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MISSING: Any = "???"
"""OmegaConf's mark of a mandatory value."""


@dataclass
class LinkConfig:
    rate: str | None = None
    share: float | None = None
    latency_us: float | None = None
    source: str = ""


@dataclass
class LevelConfig(LinkConfig):
    name: str = MISSING
    ranks: int = MISSING
    link_class: str = ""


@dataclass
class NicConfig:
    name: str = MISSING
    near: list[int] = field(default_factory=list)
    link_class: str = ""
    rate: str | None = None


@dataclass
class TopologyConfig:
    name: str = MISSING
    kind: str = MISSING
    hosts: int = 1
    ranks_per_host: int | None = None
    device: str = "auto"
    backend: str = "auto"
    link: LinkConfig = field(default_factory=LinkConfig)
    levels: list[LevelConfig] = field(default_factory=list)
    islands: list[list[int]] = field(default_factory=list)
    numa: list[list[int]] = field(default_factory=list)
    nics: list[NicConfig] = field(default_factory=list)
    placement: str = "packed"
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
    comm_hook: str = "none"


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
    memory_limit: str | None = None


@dataclass
class VaryConfig:
    precision: list[str] | None = None
    autocast: list[bool] | None = None
    compile: list[bool] | None = None
    checkpointing: list[bool] | None = None
    accumulation_steps: list[int] | None = None


@dataclass
class ContainerConfig:
    image: str | None = None
    runtime: str = "pyxis"
    mounts: list[str] = field(default_factory=list)
    python: str = "python3"


@dataclass
class ClusterConfig:
    name: str = "default"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    gres: str | None = None
    gpus_per_node: str | None = None
    cpus_per_rank: int | None = None
    exclusive: bool = True
    requeue: bool = True
    signal_s: int = 120
    start_s: int | None = None
    interface: str | None = None
    numa_binding: str = "node"
    env: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)
    container: ContainerConfig = field(default_factory=ContainerConfig)


@dataclass
class TrackingConfig:
    mode: str = "offline"
    project: str = "scaling"
    entity: str | None = None
    group: str | None = None
    job_type: str = "scaling"
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    alerts: bool = False
    objective: str = "samples_per_s"


@dataclass
class CostConfig:
    usd_per_gpu_hour: float | None = None


@dataclass
class Config:
    model: dict[str, Any] = field(default_factory=dict)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    precision: NameConfig = field(default_factory=NameConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    launcher: NameConfig = field(default_factory=NameConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    inject: InjectConfig = field(default_factory=InjectConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    data: dict[str, Any] = field(default_factory=dict)
    vary: VaryConfig = field(default_factory=VaryConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    task: str = "train"
    batch: Any = None
    memory_limit: str | None = None
    world_sizes: list[int] | None = None
    mode: str = "weak"
    batch_per_rank: int = 32
    global_batch: int | None = None
    accumulation_steps: int = 1
    compile: bool = False
    channels_last: bool = False
    checkpointing: bool = False
    fused_optimizer: bool = False
    repeats: int = 1
    seed: int = 0
    threads: int | None = None
    env: dict[str, Any] = field(default_factory=dict)
    run_dir: str | None = None


@dataclass
class WhatIfConfig(Config):
    compute_scale: float = 1
    gradient_compression: float = 1
    without_straggler: bool = False
