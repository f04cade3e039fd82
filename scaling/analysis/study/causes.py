"""Name what limits each world size of a study. Pure."""

from __future__ import annotations

import dataclasses

from scaling.analysis.results import NO_CAUSE, Loss, Point, Study, Verdict
from scaling.analysis.study.size import Size
from scaling.analysis.verdicts.verdict import NOTABLE, SCALES_WELL, named, uncertain, undecided

ONE_EACH = "one launch at each world size, and launches differ, so this is a hint, not a finding"


def causes(size: Size, point: Point, base: Size, found: Study) -> tuple[Verdict, ...]:
    """The causes that the run itself shows, and compute that has become slower; largest first."""
    if point.world_size == base.world_size or point.efficiency is None:
        return ()
    well = point.efficiency.surely_above(SCALES_WELL)
    there = [
        v for v in size.analysis.verdicts if v.cause not in NO_CAUSE and (well or not _as_at_base(v, point))
    ]
    there += _slower(size, point, base, found)
    if there:
        return tuple(sorted(there, key=lambda v: -(v.share.value if v.share else 0.0)))
    if well:
        return (
            Verdict(
                cause="scales_well",
                world_size=point.world_size,
                share=None,
                confidence="low" if _doubts(size, base, found) else "high",
                evidence=(
                    f"efficiency {point.efficiency.low:.1%} to {point.efficiency.high:.1%}",
                    *_doubts(size, base, found),
                ),
            ),
        )
    why = "no cause stands clear of the noise; train more steps, or launch more often"
    return (undecided(point, why, *_largest(point)),)


def _largest(point: Point) -> tuple[str, ...]:
    """The largest term of the loss, where it would be notable."""
    names = (field.name for field in dataclasses.fields(Loss) if field.name != "unexplained")
    return uncertain(
        {name: share for name in names if point.loss and (share := getattr(point.loss, name)) is not None}
    )


def _as_at_base(verdict: Verdict, point: Point) -> bool:
    """Whether a phase takes much of the step, but is not shown to take more than at the base: no loss of scaling."""
    if point.loss is None or verdict.cause not in ("input", "host"):
        return False
    grown = getattr(point.loss, verdict.cause)
    return grown is not None and not (grown.surely_above(0) and grown.value > NOTABLE)


def _slower(size: Size, point: Point, base: Size, found: Study) -> list[Verdict]:
    """Compute that takes longer than at the base; never more than a hint with one launch at each size."""
    share = point.loss.slower_compute if point.loss else None
    if share is None or not share.surely_above(0) or share.value <= max(NOTABLE, point.overhead.floor):
        return []
    assert size.point.step_ms is not None
    assert base.point.step_ms is not None
    here = (size.shares["compute"] * size.point.step_ms.value).value
    before = (base.shares["compute"] * base.point.step_ms.value).value
    smaller = size.batch / base.batch if base.batch and size.batch else 1.0
    of = "" if smaller == 1 else f", of which this batch's share is {before * smaller:.3g} ms"
    said = (
        f"forward, backward and optimizer take {here:.3g} ms at {size.world_size} ranks and {before:.3g} ms at "
        f"{base.world_size}{of}; waits for other ranks are left out",
        "ranks that share cores, caches or memory slow each other, and so does communication beside compute; "
        "probe.baseline(step) separates the two",
    )
    verdict = named("slower_compute", point, share, said, ())
    if doubts := _doubts(size, base, found):
        verdict = dataclasses.replace(verdict, confidence="low", evidence=(*said, *doubts))
    return [verdict]


def _doubts(size: Size, base: Size, found: Study) -> tuple[str, ...]:
    """Why a difference between launches is only a hint."""
    contended = [one.world_size for one in (base, size) if one.analysis.quality.contended]
    other = f"other programs ran beside the launches at world size {', '.join(map(str, contended))}"
    return (
        *((ONE_EACH,) if found.covers == "within" else ()),
        *((f"{other}, so this is a hint, not a finding",) if contended else ()),
    )
