"""Remedies that depend on what was measured of the host, the input and the optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.analysis.predict.change import Change
from scaling.analysis.results import Measured, Point
from scaling.settings.run import Spec

HEADROOM = 1.25
"""The advised workers are busy four fifths of the time, which leaves room for batches that take longer."""
ALL_READY = "if every batch is ready when its step begins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A remedy before its gain is predicted; `change` is None where the simulation cannot predict one."""

    overrides: str
    """Empty where the harness has no override key for it."""
    code: str
    change: Change | None = None
    gain: Measured | None = None
    """Where arithmetic on what was measured gives it, and no simulation is needed."""
    assumes: str = ""
    """What the gain takes for granted, or what else the remedy changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the ranks of a host share. 0 and an empty text are unknown."""

    cores: int = 0
    numa_nodes: int = 0
    ranks_per_device: int = 1
    torch: str = ""
    """Its version."""


UNKNOWN = Host()


def own_cores(point: Point, spec: Spec, host: Host) -> tuple[Offer, ...]:
    """Fewer threads or a NUMA node for each rank, where the host leaves room for either."""
    if host.ranks_per_device > 1:
        return ()
    ranks = max(spec.topology.shares(point.world_size))
    threads = max(1, host.cores // ranks)
    offers = []
    if spec.topology.device == "cpu" and (not host.cores or spec.threads > threads):
        number = str(threads) if host.cores else "cores // ranks"
        offers.append(
            Offer(
                overrides=f"threads={threads}" if host.cores else "",
                code=f"torch.set_num_threads({number}), or OMP_NUM_THREADS: {spec.threads} threads of each rank share "
                "the cores now",
            )
        )
    if ranks > 1 and host.numa_nodes != 1:
        offers.append(
            Offer(overrides="", code="numactl --cpunodebind=NODE --membind=NODE, a NUMA node for each rank")
        )
    return tuple(offers)


def fed(point: Point, spec: Spec, host: Host, *, own_loop: bool) -> tuple[Offer, ...]:
    """Batches made beside the training, where nothing is known of the loader but how long a step waits for it."""
    waits, step = point.parts_ms.input, point.step_ms
    share = point.loss.input if point.loss else None
    gain = None if share is None else saved(share)
    if waits is None or step is None or waits.value >= step.value:
        return ()
    workers = max(1, math.ceil(HEADROOM * waits.value / (step.value - waits.value)))
    ranks = max(spec.topology.shares(point.world_size))
    stall = "" if own_loop or not spec.inject.input_ms else "inject.input_ms=0"
    offers = [
        Offer(
            overrides=stall,
            code=f"DataLoader(dataset, num_workers={workers}, persistent_workers=True), or more than now if it has as "
            f"many: a step waits {waits.value:.3g} of {step.value:.3g} ms",
            gain=gain,
            assumes=ALL_READY,
        )
    ]
    if host.cores and ranks * (workers + 1) > host.cores:
        offers.append(
            Offer(
                overrides="",
                code="if making a batch takes processor time, make samples cheaper (decode, resize or cache them "
                f"beforehand): a host has {host.cores} cores for {ranks} ranks and their data workers",
            )
        )
    if spec.topology.device != "cpu":
        offers.append(
            Offer(
                overrides="", code="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)"
            )
        )
    return tuple(offers)


def saved(share: Measured) -> Measured | None:
    """Throughput over the present one if a share of the step were saved; None without an interval."""
    return None if share.interval is None else share.mapped(lambda x: 1 / (1 - min(x, 0.99)))


def lighter_optimizer(point: Point, spec: Spec) -> tuple[Offer, ...]:
    """One kernel for all parameters, and the update shared among the ranks where sending the result takes less."""
    offers = []
    if not spec.fused_optimizer:
        code = "fused=True, or foreach=True where that is missing: torch.optim.AdamW(params, ..., fused=True)"
        offers.append(Offer(overrides="fused_optimizer=true", code=code))
    comm, spent, step, n = point.comm, point.parts_ms.optimizer, point.step_ms, point.world_size
    if n == 1 or spent is None or step is None or comm is None:
        return tuple(offers)
    if not comm.gradient_bytes or not comm.busbw_gbit_s:
        return tuple(offers)
    less = spent.value * (1 - 1 / n)
    sent = comm.gradient_bytes * 8 * (n - 1) / n / comm.busbw_gbit_s.value / 1e6
    if sent < less / 2:
        offers.append(
            Offer(
                overrides="",
                code="torch.distributed.optim.ZeroRedundancyOptimizer(params, optimizer_class=..., lr=...): "
                f"each rank updates 1/{n} of the parameters",
                gain=Measured(step.value / (step.value - less + sent)),
                assumes=f"if that saves {less:.3g} ms and sending the parameters at the gradients' bandwidth takes "
                f"{sent:.3g} ms",
            )
        )
    return tuple(offers)
