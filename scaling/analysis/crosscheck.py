"""Transfer as the merged clocks have it, against the least duration over ranks, which needs no clock but one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.analysis.results import Point
from scaling.spec import Spec

APART = 0.8
"""Of the merged duration. In a ring the ranks have the end up to one chunk of 2(n-1) apart: a sixth at four ranks."""


def warnings(points: Iterable[Point], spec: Spec) -> tuple[str, ...]:
    """World sizes at which the two are clearly apart, where stamps are a device's events."""
    if spec.topology.device != "cuda":
        return ()
    said = []
    for point in points:
        share = point.comm.least_share if point.comm else None
        if share is not None and (share.value if share.high is None else share.high) < APART:
            said.append(
                f"at {point.world_size} ranks the shortest that any rank saw the collectives take is "
                f"{share.value:.0%} of what all clocks together make of them: the devices' clocks, or the ends that "
                "the ranks saw, are apart, and transfer reads too long"
            )
    return tuple(said)
