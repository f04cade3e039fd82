"""MFU, HFU and tokens a second of the measured world sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from scaling.analysis.results import Point, RooflineResult


def with_utilisation(
    points: Iterable[Point], roofline: RooflineResult | None, alike: Collection[int]
) -> tuple[Point, ...]:
    """The points with their MFU and HFU, neither of which is cut off at 1.

    `alike`: world sizes whose plain step does the FLOPs of the roofline's step; the others have no MFU.
    """
    if roofline is None or roofline.peak is None or roofline.mfu is None or roofline.hfu is None:
        return tuple(points)
    peak, model_part = roofline.peak.best.value, roofline.mfu.value / roofline.hfu.value

    def used(point: Point) -> Point:
        if point.step_ms is None or point.world_size not in alike:
            return point
        divided = point.parallel.tensor if point.parallel else 1  # a rank has so small a part of every layer
        hfu = 1e3 * roofline.flops / divided / point.step_ms * (1 / peak)
        return dataclasses.replace(point, mfu=hfu * model_part, hfu=hfu)

    return tuple(map(used, points))


def with_tokens(points: Iterable[Point], tokens_per_sample: int) -> tuple[Point, ...]:
    """Points with their tokens a second, where they have samples a second."""
    return tuple(
        p
        if p.samples_per_s is None
        else dataclasses.replace(p, tokens_per_s=p.samples_per_s * tokens_per_sample)
        for p in points
    )
