"""Say where the device waits for the host to launch its kernels. Pure.

A device that comes to a collective as soon as the host has enqueued it has finished all that was launched before. Where
that is so at most of a step's buckets, the step takes what the host needs to launch it, with one rank as with many: it
is no loss of scaling, but time that a setting can save. How much of it, the stamps do not tell: no share is given.
"""

from __future__ import annotations

import dataclasses

from scaling.analysis.results import Point, Verdict
from scaling.analysis.verdicts.remedies import Gain, remedies
from scaling.settings.plan import Plan

STARVED = 0.5
"""The device has to have caught up with the host at more than this fraction of the buckets."""
SURELY = 0.9
"""Above this fraction it is no matter of a few buckets."""
_ON_THE_DEVICE = ("link_latency", "link_bandwidth")
"""Causes that are measured as time in which the device waits."""


def launch_bound(point: Point, plan: Plan, gain: Gain) -> tuple[Verdict, ...]:
    """The finding at one world size; empty where the host is ahead, or no host launches."""
    comm = point.comm
    if comm is None or comm.starved_share is None or comm.host_lead_ms is None:
        return ()
    share = comm.starved_share
    if not share.surely_above(STARVED):
        return ()
    waits = point.parts_ms.exposed_enqueue
    lines = [
        f"at {share.value:.0%} of the buckets the device had nothing left to do when the host enqueued their "
        f"reduction: the host is {comm.host_lead_ms.value * 1e3:.0f} us ahead of it on average"
    ]
    if waits is not None:
        lines.append(
            f"a step waits {waits.value:.3g} ms for collectives to be enqueued that all ranks are ready for"
        )
    return (
        Verdict(
            cause="launch_bound",
            world_size=point.world_size,
            share=None,
            confidence="high" if share.surely_above(SURELY) else "medium",
            evidence=tuple(lines),
            try_=remedies("launch_bound", point, plan, gain)[0],
        ),
    )


def doubted(verdict: Verdict) -> Verdict:
    """A cause at a point that is launch-bound.

    The host goes on launching while the device waits for data, and the device catches up afterwards. So what it waited
    is no longer in the step, or not all of it, and no gain can be predicted from it.
    """
    if verdict.cause not in _ON_THE_DEVICE:
        return verdict
    return dataclasses.replace(
        verdict,
        confidence="low",
        evidence=(
            *verdict.evidence,
            "the step waits for the host's launches, which go on meanwhile: without this wait it may be no shorter",
        ),
        try_=tuple(dataclasses.replace(remedy, predicted_gain=None) for remedy in verdict.try_),
    )
