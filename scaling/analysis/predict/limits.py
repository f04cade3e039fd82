"""Which measured world size a prediction starts from, and when nothing can be predicted."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.predict.change import Source
from scaling.analysis.predict.fabrics import inside_fabric
from scaling.analysis.results import Analysis
from scaling.spec.plan import Plan
from scaling.spec.run import WhatIf
from scaling.spec.topology import Topology

LINK_REACHED = 0.9
"""If the sweep reaches less than this share of what the link can carry, the link did not limit the run."""
NO_SOURCE = (
    "no world size above 1 has everything that a prediction starts from: a step's parts, its buckets, the link, and in "
    "strong scaling the whole batch on one rank; if the time did not hold them, raise measure.budget_s"
)


NOTHING_INSIDE = (
    "these ranks share one host, and the link between them is not known: the topology has no levels, and the run "
    "measured no link within one host that stands for it; give topology.levels, or name a machine of conf/topology, "
    "such as topology=hgx_h100"
)


def nearest(sources: Sequence[Source], world_size: int, topology: Topology) -> Source:
    """The measured world size to start from: the largest up to this one, of those that cross hosts as it does."""
    across = topology.hosts_of(world_size) > 1
    alike = [s for s in sources if (topology.hosts_of(s.world_size) > 1) == across] or list(sources)
    below = [s for s in alike if s.world_size <= world_size]
    return below[-1] if below else alike[0]


def inside_one_host(n: int, topology: Topology) -> bool:
    """Whether `n` ranks are on one host and the topology does not say how they are joined there."""
    return n > 1 and topology.hosts_of(n) == 1 and not topology.levels


def joined_inside(n: int, own: Topology, sources: Sequence[Source], asked: WhatIf) -> bool:
    """False for ranks on one host where neither the topology nor the run gives the link between them."""
    alone = inside_one_host(n, asked.topology) if asked.elsewhere else n > 1 and own.hosts_of(n) == 1
    return not alone or inside_fabric(asked.topology, own, sources) is not None


def cannot(n: int, sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf) -> str | None:
    """Why nothing can be predicted for `n` ranks; None where it can."""
    if not sources:
        return NO_SOURCE
    if _crowded(n, sources, plan.spec.topology, asked):
        return (
            f"{n} ranks spread over {asked.topology.hosts} hosts share their hosts' links, and how they share "
            "them depends on the backend (topology.placement=spread): measure it, or ask for topology.placement=packed"
        )
    if not joined_inside(n, plan.spec.topology, sources, asked):
        return NOTHING_INSIDE
    if not asked.elsewhere or n == 1:
        return None
    at_work = sum(map(len, plan.sub_groups(nearest(sources, n, plan.spec.topology).world_size)))
    if plan.spec.topology.spread and at_work > plan.spec.topology.hosts:
        return (
            "this run's sub-groups worked at the same time and shared their hosts' links "
            "(topology.placement=spread), so the link of one sub-group alone was not measured"
        )
    for level in analysis.fabric.levels:
        reached = max((c.busbw_gbit_s.value for c in level.curve), default=0.0)
        if level.nominal_gbit_s and reached < LINK_REACHED * level.nominal_gbit_s:
            return (
                f"this run's link reaches {reached / level.nominal_gbit_s:.0%} of what it can carry at "
                f"{level.world_size} ranks: something else limits it (perhaps the CPU), and a faster link "
                "does not change that"
            )
    return None


def _crowded(n: int, sources: Sequence[Source], own: Topology, asked: WhatIf) -> bool:
    """Whether spread ranks share a host's link in a way that was not measured at this world size."""

    def shared(topology: Topology, world_size: int) -> bool:
        return topology.spread and world_size > topology.hosts

    measured = not asked.elsewhere and any(s.world_size == n for s in sources)
    start = nearest(sources, n, own).world_size
    return not measured and (shared(asked.topology, n) or shared(own, start))
