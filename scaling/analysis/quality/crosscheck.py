"""Check transfer by the merged clocks against the shortest duration on one rank's own clock. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.analysis.results import Point
from scaling.spec.run import Spec
from scaling.units import ranks

APART = 0.8
"""Share of the merged duration. In a ring, ranks see the end up to one of 2(n-1) chunks apart: 1/6 at four ranks."""


def warnings(points: Iterable[Point], spec: Spec) -> tuple[str, ...]:
    """A warning for each world size at which the two clearly differ, where stamps are device events."""
    if not spec.topology.accelerated:
        return ()
    said = []
    for point in points:
        share = point.comm.least_share if point.comm else None
        if share is not None and share.most < APART:
            said.append(
                f"at {ranks(point.world_size)} the collectives' shortest duration on any one rank's clock is "
                f"{share.value:.0%} of their duration by all clocks together: the devices' clocks disagree, or the "
                "ranks saw the collectives end at different times, so transfer is overestimated"
            )
    return tuple(said)
