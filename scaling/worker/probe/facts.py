"""Describe an own loop as a plan, so that the analysis reads it as it reads a run."""

from __future__ import annotations

from collections import Counter

import torch
from torch.distributed.fsdp import FSDPModule

from scaling.spec.parallel import Parallel
from scaling.spec.plan import OWN_LOOP, SCHEMA, Plan, Trial
from scaling.spec.run import Measure, Model, Spec, Tracking
from scaling.spec.topology import Topology
from scaling.version import __version__
from scaling.worker.accelerator import cuda
from scaling.worker.probe.agreement import Agreement
from scaling.worker.probe.followed import Followed
from scaling.worker.probe.schedule import ROUND_STEPS, WARMUP

NAME = "own loop"
"""What the topology and the measure are called in results."""

MEASURE = Measure(
    name=NAME,
    rounds_min=1,
    rounds_max=1,
    steps=ROUND_STEPS,
    lead_in=0,
    warmup_max=WARMUP,
    target_half_width=None,
    budget_s=0.0,
    fabric_bytes_max=2**22,
    step_timeout_s=60.0,
)


def describe_loop(
    followed: Followed,
    agreement: Agreement,
    *,
    batch: int,
    accumulation: int,
    precision: str,
    name: str | None = None,
) -> Plan:
    """One trial at the group's size. `batch`: samples a rank and step, 0 where unknown."""
    device = next(followed.module.parameters()).device.type
    ranks_per_host = max(Counter(agreement.hosts).values())
    hosts = len(set(agreement.hosts))
    settings = followed.settings()
    copies = settings.get("parallel", Parallel()).mesh(agreement.world).data_parallel
    spec = Spec(
        model=Model(name=name or _name(followed.module), target="", args={}),
        topology=Topology(
            name=NAME,
            kind="local",
            hosts=hosts,
            ranks_per_host=ranks_per_host,
            device=device,
            backend=followed.backend,
        ),
        world_sizes=(agreement.world,),
        mode="weak",
        batch_per_rank=batch,
        global_batch=batch * copies,
        precision=_tf32(precision, device),
        measure=MEASURE,
        accumulation_steps=accumulation,
        threads=torch.get_num_threads(),
        tracking=Tracking(mode="disabled"),
        **settings,
    )
    trial = Trial(world_size=agreement.world, hosts=hosts, batch=batch)
    return Plan(
        schema=SCHEMA,
        id=agreement.id,
        created=agreement.created,
        version=__version__,
        spec=spec,
        trials=(trial,),
        source=OWN_LOOP,
    )


def _name(module: torch.nn.Module) -> str:
    if isinstance(module, torch.nn.ModuleList):  # stages of a pipeline
        return _name(module[0])
    kind = type(getattr(module, "_orig_mod", module))
    return kind.__name__.removeprefix("FSDP") if issubclass(kind, FSDPModule) else kind.__name__


def _tf32(precision: str, device: str) -> str:
    tf32 = precision == "fp32" and device == cuda.TYPE and cuda.matmul_tf32()
    return "tf32" if tf32 else precision or "fp32"
