"""What no result can be, checked before it is printed: the one place that holds it. Pure.

A figure that cannot be is made absent, and a warning says which. A figure that is surprising and possible stays, with
the reason beside it. Nothing is clamped.

Every measured number: finite, and inside its own interval.
A number whose interval is too wide to tell anything (Measured.tells) stays as it is, so that every reader finds it
undecided; reports write `unknown`, and a warning says why. The loss is then not split.
Times, rates, bandwidths, efficiencies and ratios: above 0.
Parts of a step: not below 0 by more than their interval; together the step.
Loss terms: between -1 and 1 of the step; together 1 - efficiency.
Shares of something: at most 1 where the whole is the same quantity (hidden_share, wait_share, a verdict's share).

Figures of one answer can exclude each other. Each pair of them bounds one by the other: what ranks wait for data by
what the bytes take at the measured bandwidth, a late rank's cost by what the others wait, a cause of the loss by the
phase or the waits that hold it, the parts of a step by the step. Where the whole interval of the first lies above that
of the second, by more than a cause needs, they cannot both be right, and no verdict rests on either.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from scaling.analysis.results import (
    Analysis,
    ArmTimes,
    Comm,
    DataLoading,
    Latency,
    Loss,
    Measured,
    Point,
    StepParts,
    Verdict,
    verdicts,
)
from scaling.analysis.results.measured import WIDE
from scaling.analysis.results.verdicts import NOTABLE, undecided
from scaling.units import format_bytes, ranks, significant

UNSPLIT = "the loss is not split"
ROUNDING = 1e-6
"""Relative difference between a sum and its terms, and of a value from its interval's end."""
NOTHING = 1e-3
"""A part below 0 by less than this, ms, is rounding."""
ADD_UP = 0.05
"""Parts and the arm that they come from are means over the same rounds unless some rounds lack a part."""

_TIMES = "step_ms time_us p50 p90 p99 make_ms least_ms alpha_us closure probe_over_plain aa_floor step_ratio"
_RATES = "samples_per_s busbw_gbit_s algbw_gbit_s tokens_per_s link_gbit_s link_ratio achieved_flop_s best"
_SHARES = "speedup efficiency efficiency_loaded curve_share nominal_share free_speedup least_share mfu hfu"
_DEVICES = "alone_mhz beside_mhz together_mhz power_w samples_per_joule usd_per_million_samples"
POSITIVE = frozenset(f"{_TIMES} {_RATES} {_SHARES} {_DEVICES}".split())
"""Names of measured numbers that are above 0, wherever they stand."""
AT_MOST_ONE = {"hidden_share": Comm, "wait_share": DataLoading, "share": Verdict}
"""Shares of a whole, and the results that they stand in."""
ABOVE_ONE = {
    "efficiency_loaded": "without DDP the ranks ran at the same moment and disturbed each other more than with it",
    "curve_share": "buckets hide each other's fixed costs and launches in a step, which a message by itself shows",
    "nominal_share": "a shaped link passes a burst at once, switches may reduce in the network, or the link is faster "
    "than stated",
}
"""Why shares of what was measured or promised elsewhere may be above 1. MFU and HFU have their reason in `roofline`."""


def within(analysis: Analysis) -> Analysis:
    """The analysis without what cannot be, and with a warning for each figure that it lost or that is surprising."""
    notes: list[str] = []
    points = tuple(_point(point, notes) for point in analysis.points)
    unsplit = {
        new.world_size for old, new in zip(analysis.points, points, strict=True) if old.loss and not new.loss
    }
    checked = replace(analysis, points=points, verdicts=_without_causes(analysis, unsplit))
    walked = _walked(checked, "", notes)
    assert isinstance(walked, Analysis)
    before = walked.quality.warnings
    # A study has its runs' warnings with the world size before them.
    new = (line for line in dict.fromkeys(notes) if not any(old.endswith(line) for old in before))
    warnings = (*before, *new)
    return replace(walked, quality=replace(walked.quality, warnings=warnings))


def splits(loss: Loss, efficiency: Measured | None) -> bool:
    """Whether the causes of a loss are known to better than the whole step."""
    vague = any((term.half_width or 0.0) > 1 for term in _numbers(loss))
    return not vague and (efficiency is None or efficiency.tells)


def _without_causes(analysis: Analysis, unsplit: Collection[int]) -> tuple[Verdict, ...]:
    """The verdicts; at world sizes whose loss is not split, without those that are terms of it."""
    terms = {field.name for field in fields(Loss)}
    lost = {v.world_size for v in analysis.verdicts if v.world_size in unsplit and v.cause in terms}
    if not unsplit:
        return analysis.verdicts
    kept = [v for v in analysis.verdicts if v.world_size not in lost or v.cause not in terms]
    kept = [replace(v, share=None) if v.world_size in unsplit else v for v in kept]
    kept += [undecided(n, UNSPLIT) for n in sorted(lost - {v.world_size for v in kept})]
    return tuple(sorted(kept, key=lambda v: v.world_size))


def _walked(value: Any, where: str, notes: list[str]) -> Any:
    """The value without impossible numbers; None where it cannot be without one of them."""
    if isinstance(value, Measured):
        return value
    if isinstance(value, tuple):
        parts = [_walked(part, where, notes) for part in value]
        return tuple(new for old, new in zip(value, parts, strict=True) if new is not None or old is None)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    size = getattr(value, "world_size", None)
    here = f" at {ranks(size)}" if isinstance(size, int) else where
    changed: dict[str, Any] = {}
    for field in fields(value):
        old = getattr(value, field.name)
        why = _why(type(value), field.name, old) if isinstance(old, Measured) else ""
        new = None if why else _walked(old, here, notes)
        if why:
            notes.append(
                f"{field.name.rstrip('_')}{here} came out as {old.value:.4g}, and {why}; it is left out"
            )
        if new is old:
            continue
        if new is None and not _optional(type(value), field.name):
            return None
        changed[field.name] = new
    return replace(value, **changed) if changed else value


def _why(kind: type, name: str, number: Measured) -> str:
    """Why a number cannot be; empty where it can."""
    ends = [number.value, *(number.interval or ())]
    if not all(map(math.isfinite, ends)):
        return "that is no number"
    room = ROUNDING * max(map(abs, ends))
    if number.interval and not number.interval[0] - room <= number.value <= number.interval[1] + room:
        return "it lies outside of its own interval"
    if (name in POSITIVE or kind in (ArmTimes, Latency)) and number.value <= 0:
        return "it cannot be 0 or less"
    if kind is StepParts and number.most < -NOTHING:
        return "no part of a step is negative"
    if kind is AT_MOST_ONE.get(name):
        if number.value > 1 + ROUNDING:
            return "a share of a whole is at most 1"
        if number.most < -ROUNDING and kind is not Verdict:
            return "a share of a whole is not negative"
    return ""


@cache
def _optional(kind: type, name: str) -> bool:
    """Whether a field may be None."""
    return type(None) in typing.get_args(typing.get_type_hints(kind)[name])


def _point(point: Point, notes: list[str]) -> Point:
    """One world size, whose parts have to fit together."""
    here = f"at {ranks(point.world_size)}"
    efficiency, loss, parts = point.efficiency, point.loss, point.parts_ms
    step = point.arms_ms.probe or point.step_ms
    notes += _unknown(point)
    if loss is not None and (why := _why_unsplit(loss, point, step, here)):
        notes.append(why)
        loss = None
    measured = {f.name: part for f in fields(parts) if (part := getattr(parts, f.name)) is not None}
    vague = [name for name, part in measured.items() if step and (part.half_width or 0.0) > step.value]
    if vague:
        notes.append(
            f"{', '.join(vague)} {here}: known to no better than the whole step; left out of its parts"
        )
        parts = replace(parts, **dict.fromkeys(vague))
    probe, every = point.arms_ms.probe, _numbers(parts)
    whole = sum(part.value for part in every)
    if probe and len(every) == len(fields(StepParts)) and abs(whole / probe.value - 1) > ADD_UP:
        notes.append(
            f"doubtful: the parts of the step {here} add up to {whole:.4g} ms and the step is {probe.value:.4g} ms"
        )
    if efficiency and efficiency.surely_above(1):
        notes.append(
            f"efficiency {here} lies above 100 % ({efficiency.value:.1%}): {_superlinear(point, efficiency)}"
        )
    others: list[tuple[str, Measured | None]] = [("efficiency_loaded", point.efficiency_loaded)]
    if point.comm is not None:
        others += ("curve_share", point.comm.curve_share), ("nominal_share", point.comm.nominal_share)
    for name, share in others:
        if share is not None and share.surely_above(1):
            notes.append(f"{name} {here} lies above 100 % ({share.value:.1%}): {ABOVE_ONE[name]}")
    return replace(point, loss=loss, parts_ms=parts)


def _why_unsplit(loss: Loss, point: Point, step: Measured | None, here: str) -> str:
    """Why the causes of a loss cannot be as they came out; empty where they can."""
    efficiency, parts = point.efficiency, point.parts_ms
    terms = _numbers(loss)
    total = sum(term.value for term in terms)
    if (
        efficiency
        and loss.unexplained
        and abs(total - 1 + efficiency.value) > ROUNDING * max(1.0, abs(total))
    ):
        return f"the causes of the loss {here} do not add up to 1 - efficiency; they are left out"
    if any(abs(term.value) > 1 for term in terms) and not (efficiency and efficiency.value > 1):
        return f"a cause {here} takes more than the whole step, which cannot be; {UNSPLIT}"
    if not splits(loss, efficiency):
        return f"the causes of the loss {here} are known to no better than the whole step; {UNSPLIT}"
    if step is None or parts.exposed_transfer is None or parts.exposed_skew is None:
        return ""
    links = sum(term.value for term in (loss.link_latency, loss.link_bandwidth) if term)
    waits = sum(part.value for part in _waits(parts)) / step.value
    if links > waits + ADD_UP:
        return (
            f"the link takes {links:.0%} of the step {here} by its replay, and all waits together {waits:.0%}; "
            f"{UNSPLIT}"
        )
    return ""


def _waits(parts: StepParts) -> list[Measured]:
    """What a step waits for communication, as far as it was measured."""
    waits = (parts.exposed_transfer, parts.exposed_skew, parts.exposed_enqueue)
    return [part for part in waits if part is not None]


def _unknown(point: Point) -> Iterable[str]:
    """A warning where figures of a world size have an interval that tells nothing."""
    figures = {f.name: getattr(point, f.name) for f in fields(point)}
    wide = {name: x for name, x in figures.items() if isinstance(x, Measured) and not x.tells}
    if wide:
        units = min(number.n for number in wide.values())
        yield (
            f"{', '.join(wide)} at {ranks(point.world_size)}: unknown, since {units} rounds or launches were too few "
            f"or too uneven (the interval reaches to more than {WIDE:g} times the value, and its ends are more than "
            f"{WIDE**2:g} times apart)"
        )


def _superlinear(point: Point, efficiency: Measured) -> str:
    if not efficiency.surely_above(1 + point.overhead.floor):
        return "by no more than equal blocks of this run differ (the A/A floor)"
    if point.world_size == point.base_world_size:
        return "alone and as a group of one a rank does the same work, so the machine changed between their blocks"
    shards = "shards save a part of the optimizer, " * bool(point.parallel and point.parallel.shard > 1)
    return (
        f"{shards}smaller pieces of work may fit the caches (superlinear), or the baseline was slowed down; "
        "compare bare_one with ddp_solo"
    )


def _numbers(group: Loss | StepParts) -> list[Measured]:
    figures: Iterable[Any] = (getattr(group, field.name) for field in fields(group))
    return [number for number in figures if isinstance(number, Measured)]


LATE_MOST = 2.0
"""Ranks over those that are not late, at most: figures over all ranks can be so many times those of typical ones."""
LINK = ("link_bandwidth", "link_latency", "communication", "tensor_across_hosts")
STAMPED = (*LINK, "straggler", "imbalance", "overlap", "input", "host")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two figures that exclude each other."""

    causes: tuple[str, ...]
    """That rest on one of them."""
    text: str


def contradictions(point: Point, buffers_share: float = 0.0) -> tuple[Contradiction, ...]:
    """All of a world size. `buffers_share`: what a step waits for broadcasts of buffers, which no bandwidth holds."""
    step = point.arms_ms.probe or point.step_ms
    if step is None or point.world_size == 1:
        return ()
    return tuple(
        Contradiction(causes, text)
        for figure, most, causes, text in _pairs(point, step, buffers_share)
        if figure.least > most + NOTABLE * step.value
    )


def without_contradicted(
    listed: Sequence[Verdict], clashes: Sequence[Contradiction], world_size: int
) -> tuple[Verdict, ...]:
    """The verdicts of a world size without those that rest on figures which exclude each other, and which these are."""
    causes = {cause for clash in clashes for cause in clash.causes}
    kept = tuple(v for v in listed if v.world_size != world_size or v.cause not in causes)
    if len(kept) == len(listed):
        return tuple(listed)
    why = (f"figures that exclude each other: {clash.text}" for clash in clashes)
    return (verdicts.undecided(world_size, *why), *kept)


def _pairs(
    point: Point, step: Measured, buffers_share: float
) -> Iterator[tuple[Measured, float, tuple[str, ...], str]]:
    """(a figure in ms, the most that another one leaves for it, the causes that rest on either, both in words)."""
    parts, loss, comm, late = point.parts_ms, point.loss, point.comm, point.straggler
    waits = _waits(parts)
    waited, waited_most = sum(part.value for part in waits), sum(part.most for part in waits)
    moved = [each.transfer_ms for each in comm.collectives if each.transfer_ms] if comm else []
    if parts.exposed_transfer and comm and moved and len(moved) == len(comm.collectives):
        most = sum(each.most for each in moved) + buffers_share * step.value
        rate = f" at {significant(comm.busbw_gbit_s.value)} Gbit/s" if comm.busbw_gbit_s else ""
        text = (
            f"a step waits {significant(parts.exposed_transfer.value)} ms for data, and "
            f"{format_bytes(comm.bytes_per_step)}"
            f"{rate} take {significant(sum(each.value for each in moved))} ms"
        )
        yield parts.exposed_transfer, most, LINK, text
    if late is not None:
        text = (
            f"a late rank costs {significant(late.cost_ms.value)} ms, and the others wait "
            f"{significant(late.skew_ms.value)} ms for it"
        )
        yield late.cost_ms, late.skew_ms.most, ("straggler",), text
    for cause in ("straggler", "communication"):
        share = getattr(loss, cause) if loss is not None and waits else None
        if share is not None:
            cost = share * step.value
            text = (
                f"{cause} costs {significant(cost.value)} ms, and ranks wait {significant(waited)} ms in all"
            )
            yield cost, LATE_MOST * waited_most, (cause,), text
    for cause, part in (("input", parts.input), ("host", parts.host)):
        share = getattr(loss, cause) if loss is not None else None
        if share is not None and part is not None:
            beside = parts.exposed_enqueue.most if cause == "host" and parts.exposed_enqueue else 0.0
            cost = share * step.value
            text = f"{cause} costs {significant(cost.value)} ms, and the phase takes {significant(part.value)} ms"
            yield cost, LATE_MOST * part.most + beside, (cause,), text
    if comm is not None and comm.free_speedup is not None and waits:
        saved = (1 - 1 / comm.free_speedup) * step.value
        text = (
            f"free communication would save {significant(saved.value)} ms, and ranks wait "
            f"{significant(waited)} ms in all"
        )
        yield saved, waited_most, LINK, text
    present = _numbers(parts)
    if (
        point.arms_ms.probe and len(present) >= len(fields(StepParts)) - 1
    ):  # no launch may have been waited for
        whole = sum(part.value for part in present)
        text = f"the parts of a step add up to {significant(whole)} ms, and the step is {significant(step.value)} ms"
        yield Measured(whole), step.most, STAMPED, text
        yield step, whole, STAMPED, text
