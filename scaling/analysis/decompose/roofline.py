"""What limits a step: its operators against the device's ceilings (Williams, Waterman, Patterson 2009).

An operator takes at least its FLOPs over the device's peak, its bytes over the copy ceiling at that size, and
its launch. The largest of the three is its least time and its bound. The sums over the step by bound, and the time to
fetch a batch, give the bound of the step.

Where the kernels of a step were timed too, `kernels` says where its time goes. What a step takes beyond them, an
accelerator waits for the host: that is measured, where the ceiling of launches only says what the fastest host needs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from scaling.analysis.decompose.kernels import Least, idle_share, sentence, step_time
from scaling.analysis.results import CeilingResult, Measured, Point, RooflineResult
from scaling.hardware.devices import peak_flop_s
from scaling.records.checkup import (
    CONVOLUTION,
    COPY,
    DATA_SHEET,
    MATMUL,
    STEP_OPS,
    TO_DEVICE_PINNED,
    Ceiling,
    Kernel,
    KernelTable,
    StepWork,
)
from scaling.units import significant

EXPLAINS = 0.25
"""A ceiling that explains a smaller share of the step does not count as its bound."""
_FASTER = {
    "memory": ": some of what counts as read was in a cache",
    "launch": ": something else ran while the ceiling was measured",
    "host_transfer": ": something else ran while the ceiling was measured",
}
"""Why a step may be faster than a ceiling; for compute the reason stands with the MFU."""
BOUNDS = ("compute", "memory", "launch", "input", "host_transfer")


def roofline(
    ceilings: Sequence[Ceiling],
    work: StepWork,
    step_ms: Measured,
    *,
    rank: int,
    device: str,
    device_name: str = "",
    input_ms: Measured | None = None,
    also_ms: Iterable[Measured] = (),
    kernels: KernelTable | None = None,
    alone_ms: float | None = None,
    waits_ms: float = 0.0,
    on_host: bool = False,
) -> RooflineResult | None:
    """One rank's step against its ceilings; None where no FLOP was counted or no rate of computing is known.

    `device_name`: its own name, by which its data sheet is found. `also_ms`: other steps with the same FLOPs, for which
    `above` says why one of them is above the peak. `kernels`: what they take. `alone_ms`, `waits_ms`, `on_host`: as
    `step_time` has them.
    """
    shown = _with_sheet(ceilings, work.precision, device_name)
    peak = peak_of(shown, work.precision)
    launches = best_of(ceilings, STEP_OPS)
    if not work.flops or peak is None or launches is None:
        return None
    least = dict.fromkeys(BOUNDS, 0.0)
    for operator in work.operators:
        work_s = _times(ceilings, peak.best, operator.flops, operator.bytes, operator.count)
        needed = work_s | {"launch": operator.count / launches}
        most = max(needed, key=lambda name: needed[name])
        least[most] += 1e3 * needed[most]
    transfer = best_of(ceilings, TO_DEVICE_PINNED)
    least["host_transfer"] = 1e3 * work.input_bytes / transfer if transfer else 0.0
    least["input"] = max(0.0, (input_ms.value if input_ms else 0.0) - least["host_transfer"])
    kernels = kernels if kernels and kernels.batch == work.batch else None
    idle = idle_share(kernels) if kernels and not on_host else None
    # The time in which the host holds the device up was measured where the kernels were timed; else the ceiling stands.
    known_ms = least if idle is None else least | {"launch": idle * step_ms.value}
    most = max(known_ms, key=lambda name: known_ms[name])
    bound = most if known_ms[most] > EXPLAINS * step_ms.value else "none"
    allowed, beside = _least(ceilings, work, peak.best, transfer), (alone_ms, least["input"], waits_ms)
    where = step_time(kernels, allowed, step_ms, *beside, on_host=on_host) if kernels else None
    limit = sentence(where, step_ms) if where and bound == "none" else _limit(bound, step_ms, known_ms, idle)
    achieved = 1e3 * work.flops / step_ms
    hfu = achieved * (1 / peak.best)
    mfu = hfu * (1 - work.recomputed_flops / work.flops)
    shortest_ms = min(step.value for step in (step_ms, *also_ms))
    above = _why_above(work, peak) if 1e3 * work.flops / shortest_ms > peak.best else ""
    used = _used(mfu, hfu, _peak_is(peak), above)
    return RooflineResult(
        rank=rank,
        device=device,
        precision=work.precision,
        batch=work.batch,
        flops=work.flops,
        bytes=work.bytes,
        operators=work.calls,
        step_ms=step_ms,
        said=f"{limit}; {used}",
        bound=bound,
        least_ms={name: Measured(value) for name, value in least.items()},
        achieved_flop_s=achieved,
        mfu=mfu,
        hfu=hfu,
        peak=_result(peak),
        peak_is=_peak_is(peak),
        above=above,
        ceilings=tuple(map(_result, shown)),
        where=where,
    )


def peak_of(ceilings: Sequence[Ceiling], precision: str) -> Ceiling | None:
    """The device's peak in a format: its data sheet's where that is among the ceilings, else the best measured."""

    def best(*kinds: str) -> Ceiling | None:
        named = [c for c in ceilings if c.name in {kind + precision for kind in kinds}]
        return max(named, key=lambda c: c.best, default=None)

    return best(DATA_SHEET) or best(MATMUL, CONVOLUTION)


def _with_sheet(ceilings: Sequence[Ceiling], precision: str, device_name: str) -> tuple[Ceiling, ...]:
    sheet = peak_flop_s(device_name, precision)
    if sheet is None:
        return tuple(ceilings)
    name = DATA_SHEET + precision
    return (Ceiling(name=name, unit="FLOP/s", size=0, best=sheet, repeats=0), *ceilings)


def _result(top: Ceiling) -> CeilingResult:
    return CeilingResult(name=top.name, unit=top.unit, size=top.size, best=Measured(top.best, n=top.repeats))


def _peak_is(peak: Ceiling) -> str:
    kind, _, precision = peak.name.rpartition("_")
    if peak.name.startswith(DATA_SHEET):
        return f"the data sheet's {precision} peak"
    return f"the {precision} {'matrix product' if kind == 'matmul' else kind} measured under load"


def _used(mfu: Measured, hfu: Measured, peak_is: str, above: str) -> str:
    """How well the peak is used, and why by more than all of it."""
    again = f", HFU {hfu.value:.0%} with what checkpointing runs again" if hfu.value > mfu.value else ""
    return f"MFU {mfu.value:.0%} of {peak_is}{again}{f' ({above})' if above and hfu.value > 1 else ''}"


def _why_above(work: StepWork, peak: Ceiling) -> str:
    winograd = "need fewer operations than are counted (Winograd)"
    if peak.name.startswith(DATA_SHEET):
        clock = "the device ran at a higher clock than its data sheet assumes"
        return f"above 100 %: {f'some convolutions {winograd}' if work.convolves else clock}"
    kind, other = (
        ("convolutions", winograd) if work.convolves else ("products", "something else ran meanwhile")
    )
    return f"above 100 %: {kind} of these shapes run faster than the one measured, or {other}"


def explain(base: RooflineResult | None, other: RooflineResult | None) -> tuple[str, ...]:
    """Which ceiling each of two runs hits, in sentences; why a faster device may not train faster."""
    if base is None or other is None:
        return ()
    sentences = [f"{role}: {line.said}" for role, line in (("base", base), ("other", other))]
    if base.peak and other.peak and base.device != other.device:
        faster = other.peak.best.value / base.peak.best.value
        steps = base.step_ms.value / other.step_ms.value
        sentences.append(
            f"the peak of the other device ({other.device}) is {faster:.2g} times as high, and a step is "
            f"{steps:.2g} times as fast; the limit there is {other.bound}"
        )
    return tuple(sentences)


def _limit(bound: str, step_ms: Measured, least: Mapping[str, float], idle: float | None) -> str:
    if bound == "launch" and idle is not None:
        return f"launch-bound: in {idle:.0%} of a step the device waits for the host to launch its kernels"
    most = max(least, key=lambda name: least[name])
    if bound == "none":
        return (
            f"no ceiling explains the step of {significant(step_ms.value)} ms (the nearest is "
            f"{most.replace('_', ' ')}, "
            f"{significant(least[most])} ms)"
        )
    name = bound.replace("_", " ")
    if least[bound] > step_ms.value:
        return (
            f"{bound.replace('_', '-')}-bound: at its ceiling {name} alone would take {significant(least[bound])} ms, "
            f"and the step took {significant(step_ms.value)} ms{_FASTER.get(bound, '')}"
        )
    return (
        f"{bound.replace('_', '-')}-bound: {name} needs at least {significant(least[bound])} of the "
        f"{significant(step_ms.value)} ms of a step"
    )


def best_of(ceilings: Sequence[Ceiling], name: str) -> float | None:
    """The best rate under a name."""
    return max((c.best for c in ceilings if c.name == name), default=None)


def _times(
    ceilings: Sequence[Ceiling], peak: float, flops: int, size: int, calls: int = 1
) -> dict[str, float]:
    """What all calls need for their FLOPs and for their bytes, s."""
    return {"compute": flops / peak, "memory": size / _bandwidth(ceilings, size / calls)}


def _bandwidth(ceilings: Sequence[Ceiling], traffic: float) -> float:
    """Bandwidth of the fastest copy with at least this traffic (read and written), bytes/s; small copies fit caches."""
    copies = [c for c in ceilings if c.name == COPY]
    fitting = [c.best for c in copies if 2 * c.size >= traffic]
    return max(fitting or [c.best for c in copies if c.size == max(k.size for k in copies)], default=math.inf)


def _least(ceilings: Sequence[Ceiling], work: StepWork, peak: float, transfer: float | None) -> Least:
    """The least time of one kernel. A copy of the batch's size that is no faster than the host's link comes over it."""

    def least(kernel: Kernel) -> tuple[float, str]:
        moved = kernel.bytes / 2
        if kernel.operator == "copy" and transfer and work.input_bytes / 2 < moved <= work.input_bytes:
            before, _, after = kernel.key.removeprefix("copy|").partition(" ")[0].partition(">")
            if before == after and kernel.time_ns / 1e9 > moved / transfer / 2:
                return moved / transfer, "host_transfer"
        needed = _times(ceilings, peak, kernel.flops, kernel.bytes)
        return max((seconds, bound) for bound, seconds in needed.items())

    return least


def with_utilisation(
    points: Iterable[Point], line: RooflineResult | None, alike: Collection[int]
) -> tuple[Point, ...]:
    """The points with their MFU and HFU, neither of which is cut off at 1.

    `alike`: world sizes whose plain step does the FLOPs of the roofline's step; the others have no MFU.
    """
    if line is None or line.peak is None or line.mfu is None or line.hfu is None:
        return tuple(points)
    peak, model_part = line.peak.best.value, line.mfu.value / line.hfu.value

    def used(point: Point) -> Point:
        if point.step_ms is None or point.world_size not in alike:
            return point
        divided = point.parallel.tensor if point.parallel else 1  # a rank has so small a part of every layer
        hfu = 1e3 * line.flops / divided / point.step_ms * (1 / peak)
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
