"""What a sharded step's collectives take at a mesh: by the run's own links where they stand, or by curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scaling.analysis.network.bus import bus_factor
from scaling.analysis.network.placed import Placed, groups_along, place
from scaling.analysis.network.ring import NoPathError
from scaling.analysis.predict.fabrics import carries
from scaling.analysis.predict.units import UnitSource
from scaling.analysis.simulate import links
from scaling.spec.listing import Listed
from scaling.spec.parallel import Fsdp, Mesh, Parallel
from scaling.spec.topology import Topology

UNKNOWN_INSIDE = (
    "these ranks share a host, and how fast they are joined there is not known: give topology.levels, or name a "
    "machine of conf/topology, such as topology=hgx_h100"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A mesh on a topology, and how fully_shard is called there."""

    parallel: Parallel
    fsdp: Fsdp
    topology: Topology
    mesh: Mesh


def transfers(
    source: UnitSource, question: Question, listed: Listed, own: Topology, bandwidth: float, latency: float
) -> tuple[list[float], list[str]]:
    """(ns, wire) of each collective on the question's links. NoPathError where a link is not known.

    All groups of an axis communicate at once, so those that leave a host share its link.
    """
    topology, curves = question.topology, _curves(question, own, bandwidth, latency)
    known: dict[tuple[str, int], Placed] = {}
    times, wires = [], []
    for one in listed.collectives:
        placed = known.get((one.axis, one.ranks))
        if placed is None:
            placed = place(groups_along(question.mesh, one.axis, one.ranks), topology)
            known[one.axis, one.ranks] = placed
        across = placed.across
        wires.append("between hosts" if across else "within hosts")
        moved = one.bytes * bus_factor(one.ranks, one.kind)
        if curves is not None and (not across or not carries(own, topology)):
            wire, us = curves[one.axis, one.kind]
            times.append(float(np.interp(moved, wire, us)) * 1e3)
            continue
        known_link = source.link(one.kind, across=across)
        if known_link is None:
            raise NoPathError("the run measured no link between hosts" if across else UNKNOWN_INSIDE)
        hops = (2 if one.kind == "all_reduce" else 1) * (one.ranks - 1)
        rate = _rate(own, topology) * placed.carried(one.kind, topology.backend) if across else 1.0
        each, hop_ns = known_link
        times.append(hops * hop_ns * latency + moved * each * rate / bandwidth)
    return times, wires


def _curves(
    question: Question, own: Topology, bandwidth: float, latency: float
) -> Mapping[tuple[str, str], tuple[list[float], list[float]]] | None:
    """By axis and kind, of a topology whose links are known by themselves; None where only the run's own are."""
    topology = question.topology
    if carries(own, topology) and not topology.levels:
        return None
    found = links.curves(topology, question.mesh.dimensions, bandwidth=bandwidth, latency=latency)
    return {
        (curve.group.removeprefix("mesh_"), curve.kind): (
            [point[0] for point in curve.points],
            [point[1] for point in curve.points],
        )
        for curve in found
        if curve.group.startswith("mesh_")
    }


def _rate(own: Topology, asked: Topology) -> float:
    """How much longer a byte takes on the asked link than on the run's."""
    before, after = own.link.rate_bit_s, asked.link.rate_bit_s
    return 1.0 if before is None or after is None else before / after
