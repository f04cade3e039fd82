"""Describe an own loop as a plan, so that the analysis reads it as it reads a run."""

from __future__ import annotations

from collections import Counter

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.spec.plan import OWN_LOOP, SCHEMA, Plan, Trial
from scaling.spec.run import Ddp, Measure, Model, Spec, Tracking
from scaling.spec.topology import Topology
from scaling.version import __version__
from scaling.worker.accelerator import cuda
from scaling.worker.parallel.ddp import has_own_hook
from scaling.worker.parallel.tap import backend_of
from scaling.worker.probe.agreement import Agreement
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
    ddp: DistributedDataParallel,
    agreement: Agreement,
    *,
    batch: int,
    accumulation: int,
    precision: str,
    name: str | None = None,
) -> Plan:
    """One trial at the group's size. `batch`: samples a rank and step, 0 where unknown."""
    parameter = next(ddp.parameters())
    ranks_per_host = max(Counter(agreement.hosts).values())
    hosts = len(set(agreement.hosts))
    spec = Spec(
        model=Model(name=name or _name(ddp.module), target="", args={}),
        topology=Topology(
            name=NAME,
            kind="local",
            hosts=hosts,
            ranks_per_host=ranks_per_host,
            device=parameter.device.type,
            backend=backend_of(ddp.process_group, parameter.device.type),
        ),
        world_sizes=(agreement.world,),
        mode="weak",
        batch_per_rank=batch,
        global_batch=batch * agreement.world,
        precision=_tf32(precision, parameter.device.type),
        measure=MEASURE,
        accumulation_steps=accumulation,
        ddp=Ddp(
            bucket_cap_mb=ddp.bucket_bytes_cap / 2**20,
            gradient_as_bucket_view=bool(ddp.gradient_as_bucket_view),
            static_graph=bool(ddp.static_graph),
            find_unused_parameters=bool(ddp.find_unused_parameters),
            comm_hook="own" if has_own_hook(ddp) else "none",
        ),
        threads=torch.get_num_threads(),
        tracking=Tracking(mode="disabled"),
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
    return type(getattr(module, "_orig_mod", module)).__name__


def _tf32(precision: str, device: str) -> str:
    tf32 = precision == "fp32" and device == cuda.TYPE and cuda.matmul_tf32()
    return "tf32" if tf32 else precision or "fp32"
