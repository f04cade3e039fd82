"""Remedies for what sharded training waits for, by kind and phase, and the verdict on tensor groups across hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from scaling.analysis.network.links import bus_factor
from scaling.analysis.results import Collective, FabricLevel, Measured, Point, Remedy, Verdict
from scaling.analysis.results.verdicts import NOTABLE, named
from scaling.analysis.verdicts.host_remedies import AT_MOST, Offer, less_often, saved
from scaling.settings.parallel import Fsdp
from scaling.settings.run import Spec

ALL_GATHER, REDUCE_SCATTER, TENSOR = "all_gather", "reduce_scatter", "tensor"
APART_SINCE = (2, 13)
"""The first torch that is known to give reduce-scatters a communicator of their own; 2.11 cannot."""
WORTH = 0.01
"""A kind of collective that costs less than this share of the step has no remedy of its own."""


def sharded_link(point: Point, spec: Spec, torch: str = "") -> tuple[Offer, ...]:
    """For exposed transfer: the kind that costs most first. No setting here is simulated; `verify` measures it.

    `torch`: the run's version of it, empty where unknown; what it is not known to do is not offered.
    """
    ranked: list[tuple[float, list[Offer]]] = []
    for loss in point.loss_by_kind:
        cost = _total(loss.latency, loss.bandwidth)
        if cost is not None and cost.value >= WORTH:
            layers = loss.kind == TENSOR
            some = _of_layers(point, spec) if layers else _of_kind(loss.kind, loss.phase, cost, spec, torch)
            ranked.append((-cost.value, list(some)))
    offers = [offer for _, some in sorted(ranked, key=lambda item: item[0]) for offer in some]
    reduces = spec.parallel.name != "tp"  # there every rank has the same samples
    fewer = [less_often(spec, point.world_size)] if reduces else []
    return tuple(dict.fromkeys((*offers, *_other_mesh(point, spec), *fewer)))


def _version(torch: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cu130"; () where it is not known."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", torch)
    return tuple(map(int, match.groups())) if match else ()


def _total(*terms: Measured | None) -> Measured | None:
    """The sum of those that are known; None where none is."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def _of_kind(kind: str, phase: str, cost: Measured, spec: Spec, torch: str) -> Iterator[Offer]:
    if kind == ALL_GATHER and phase == "forward":
        yield Offer(
            overrides=f"fsdp.prefetch={spec.fsdp.prefetch + 1}",
            code="unit.set_modules_to_forward_prefetch([...]) with one more unit; each is held for longer",
        )
    elif kind == ALL_GATHER and spec.fsdp.reshard:
        yield Offer(
            overrides="fsdp.reshard_after_forward=false",
            code="fully_shard(module, reshard_after_forward=False)",
            gain=saved(cost),
            assumes=f"{AT_MOST}, if nothing takes its place; a rank then holds all parameters until backward",
        )
    elif kind == REDUCE_SCATTER:
        streams = spec.topology.backend != "gloo" and not spec.fsdp.separate_reduce_scatter_group
        if streams and _version(torch) >= APART_SINCE:
            apart = "module.set_separate_reduce_scatter_group(True)"
            yield Offer(overrides="fsdp.separate_reduce_scatter_group=true", code=apart)
        if spec.fsdp.reduce_dtype == "fp32":
            narrower = "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16); check the loss"
            yield Offer(overrides="fsdp.reduce_dtype=bf16", code=narrower)


def _of_layers(point: Point, spec: Spec) -> Iterator[Offer]:
    """What divided layers send is waited for at once: fewer ranks a group, and these on one host."""
    within, degree = spec.topology.ranks_per_host, point.parallel.tensor if point.parallel else 1
    most = within if degree > within > 1 else degree // 2
    fewer = max((d for d in range(2, most + 1) if degree % d == 0), default=1)
    if fewer > 1 and spec.parallel.name != "tp":  # there the group is all ranks
        where = "on one host" if within % fewer == 0 else "across hosts"
        yield Offer(
            overrides=f"parallel.tensor={fewer}",
            code=f"a mesh with {fewer} ranks in its tensor dimension, {where}; each holds {degree // fewer} times "
            "the layers' parameters",
        )


def _other_mesh(point: Point, spec: Spec) -> Iterator[Offer]:
    """Shards within a host where they reach across hosts, and whole copies, since the model fits one rank."""
    mesh = point.parallel
    within, rest = divmod(spec.topology.ranks_per_host, mesh.tensor if mesh else 1)
    if mesh is not None and point.hosts > 1 and mesh.shard > within > 1 and not rest:
        divided = f"parallel=hsdp_tp parallel.tensor={mesh.tensor}"
        yield Offer(
            overrides=divided if spec.parallel.divided else "parallel=hsdp",
            code=f"fully_shard over a mesh of hosts x {within}: all-gathers stay within a host; a rank holds "
            f"{mesh.shard // within} times the parameters",
        )
    # A loop of one's own does not show whether one rank could run the whole model.
    if point.arms_ms.bare_one is not None:
        yield replicated(spec)


def replicated(spec: Spec) -> Offer:
    """Whole copies, where one rank has run the whole model."""
    defaults = spec.fsdp == Fsdp()
    without = "" if defaults else " with fsdp.* left out"
    return Offer(
        overrides="parallel=ddp" if defaults else "",
        code=f"DistributedDataParallel(model){without}: the whole model fits one rank here",
    )


CAUSE = "tensor_across_hosts"


def tensor_across_hosts(point: Point, spec: Spec, levels: Sequence[FabricLevel]) -> tuple[Verdict, ...]:
    """The verdict where divided layers surely wait for a link between hosts; else none."""
    degree = point.parallel.tensor if point.parallel else 1
    within = spec.topology.ranks_per_host
    tensor = [loss for loss in point.loss_by_kind if loss.kind == TENSOR]
    share = _total(*(part for loss in tensor for part in (loss.latency, loss.bandwidth)))
    if degree == 1 or within % degree == 0 or point.hosts < 2:
        return ()
    if share is None or not share.surely_above(0) or share.value < NOTABLE:
        return ()
    sent = [call for call in point.comm.collectives if call.communicator == TENSOR] if point.comm else []
    waits = sum(call.exposed_transfer_ms.value for call in sent if call.exposed_transfer_ms)
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
    # For the same samples in more groups, each group sends as much less.
    tried = _within_a_host(spec, degree, fewer, share, waits, inside and inside * fewer / degree)
    return (named(CAUSE, point, share, tuple(evidence), tried),)


def _inside_ms(
    sent: Sequence[Collective], ranks: int, within: int, levels: Sequence[FabricLevel]
) -> float | None:
    """How long the collectives would take among `ranks` of one host, ms; None where no such link was measured."""
    inside = (level for level in levels if 1 < level.world_size <= within and level.alpha_us is not None)
    level = next(inside, None)
    if level is None or level.alpha_us is None or level.busbw_gbit_s is None:
        return None
    total_us = 0.0
    for call in sent:
        hops = (2 if call.kind == "all_reduce" else 1) * (ranks - 1)
        moved = call.bytes * bus_factor(ranks, call.kind)
        total_us += call.calls * hops * level.alpha_us.value + moved * 8 / (level.busbw_gbit_s.value * 1e3)
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
    gain = saved(share * (1 - inside / waits)) if inside is not None and 0 < inside < waits else None
    return (
        Remedy(
            overrides=f"{strategy}parallel.tensor={fewer}",
            code=f"a mesh whose tensor dimension has {fewer} ranks, which lie on one host",
            predicted_gain=gain,
            assumes=f"{AT_MOST}, for the same samples, if parameters spread over {degree // fewer} times as many "
            "groups cost nothing more",
        ),
    )
