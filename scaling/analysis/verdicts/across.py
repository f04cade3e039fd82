"""Name a mesh whose tensor groups cross hosts, with what groups within a host would wait by the measured curve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from scaling.analysis.network.bus import bus_factor
from scaling.analysis.results import Collective, FabricLevel, Measured, Point, Remedy, Verdict
from scaling.analysis.verdicts.by_measure import saved
from scaling.analysis.verdicts.sharded import TENSOR
from scaling.spec.run import Spec

CAUSE = "tensor_across_hosts"
NOTABLE = 0.03
"""Waits of divided layers that take a smaller share of the step get no verdict."""


def tensor_across_hosts(point: Point, spec: Spec, levels: Sequence[FabricLevel]) -> tuple[Verdict, ...]:
    """The verdict where divided layers surely wait for a link between hosts; else none."""
    degree = point.parallel.tensor if point.parallel else 1
    within = spec.topology.ranks_per_host
    share = _share(point)
    if degree == 1 or within % degree == 0 or point.hosts < 2 or share is None:
        return ()
    if not share.surely_above(0) or share.value < NOTABLE:
        return ()
    sent = [one for one in point.comm.collectives if one.communicator == TENSOR] if point.comm else []
    waits = sum(one.exposed_transfer_ms.value for one in sent if one.exposed_transfer_ms)
    step = f" of {point.step_ms.value:.1f}" if point.step_ms else ""
    evidence = [
        f"the {degree} ranks that divide the layers lie on several hosts, of {within} ranks each; a step waits "
        f"{waits:.1f}{step} ms for what they send"
    ]
    fewer = max((d for d in range(2, within + 1) if degree % d == 0 and within % d == 0), default=1)
    inside = _inside_ms(sent, fewer, within, levels)
    if inside is not None and fewer > 1:
        evidence.append(
            f"in groups of {fewer} within a host the same layers would send it in {inside:.1f} ms (predicted from the "
            "measured curve within a host)"
        )
    elif fewer > 1:
        evidence.append(
            f"what a link within a host would take was not measured; add {within} to world_sizes to measure it"
        )
    return (
        Verdict(
            cause=CAUSE,
            world_size=point.world_size,
            share=share,
            confidence="high" if share.surely_above(NOTABLE) else "medium",
            evidence=tuple(evidence),
            try_=_within_a_host(spec, degree, fewer, share, waits, inside),
        ),
    )


def _share(point: Point) -> Measured | None:
    """What divided layers' collectives cost of the step."""
    parts = [
        part
        for one in point.loss_by_kind
        if one.kind == TENSOR
        for part in (one.latency, one.bandwidth)
        if part is not None
    ]
    return reduce(add, parts) if parts else None


def _inside_ms(
    sent: Sequence[Collective], ranks: int, within: int, levels: Sequence[FabricLevel]
) -> float | None:
    """How long the collectives would take among `ranks` of one host, ms; None where no such link was measured."""
    level = next((one for one in levels if 1 < one.world_size <= within and one.alpha_us is not None), None)
    if level is None or level.alpha_us is None or level.busbw_gbit_s is None:
        return None
    total_us = 0.0
    for one in sent:
        hops = (2 if one.kind == "all_reduce" else 1) * (ranks - 1)
        moved = one.bytes * bus_factor(ranks, one.kind)
        total_us += one.calls * hops * level.alpha_us.value + moved * 8 / (level.busbw_gbit_s.value * 1e3)
    return total_us / 1e3


def _within_a_host(
    spec: Spec, degree: int, fewer: int, share: Measured, waits: float, inside: float | None
) -> tuple[Remedy, ...]:
    if fewer < 2:
        return (
            Remedy(
                overrides="",
                code="no group of ranks that divides the layers fits a host: shard parameters in place of layers "
                "(parallel=fsdp), or use hosts with more ranks",
            ),
        )
    strategy = "parallel=fsdp_tp " if spec.parallel.name == "tp" else ""
    gain = None
    if inside is not None and 0 < inside < waits:
        gain = saved(share * (1 - inside / waits))
    return (
        Remedy(
            overrides=f"{strategy}parallel.tensor={fewer}",
            code=f"a mesh whose tensor dimension has {fewer} ranks, which lie on one host",
            predicted_gain=gain,
            assumes=f"at most, for the same samples, if parameters spread over {degree // fewer} times as many groups "
            "cost nothing more",
        ),
    )
