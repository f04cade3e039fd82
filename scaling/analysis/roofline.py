"""What binds a step: its operators against the measured ceilings of the device (Williams, Waterman, Patterson 2009).

An operator cannot take less than its FLOPs over the matrix-product ceiling, its bytes over the
copy ceiling at that size, or its launch. The greatest of the three is its least time, and what
binds it; sums over the step, beside the time to fetch a batch, say what binds the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scaling.analysis.results import CeilingResult, Measured, OperatorResult, RooflineResult
from scaling.checkup import COPY, MATMUL, STEP_OPS, TO_DEVICE_PINNED, Ceiling, Operator, StepWork

EXPLAINS = 0.25
"""A ceiling that accounts for less of the step than this does not bind it."""
TOP = 8
BOUNDS = ("compute", "memory", "launch", "input", "host_transfer")


def roofline(
    ceilings: Sequence[Ceiling],
    work: StepWork,
    step_ms: Measured,
    *,
    rank: int,
    device: str,
    input_ms: Measured | None = None,
    mfu_at: Mapping[str, Measured] | None = None,
) -> RooflineResult | None:
    """One rank's step against its ceilings; None where no FLOP was counted or no product measured.

    `mfu_at`: steps of other world sizes, ms, for their MFU.
    """
    peak = best_of(ceilings, MATMUL + work.precision)
    launches = best_of(ceilings, STEP_OPS)
    if not work.flops or peak is None or launches is None:
        return None
    operators = sorted(
        (_operator(o, ceilings, peak, launches) for o in work.operators), key=lambda o: -o.least_ms.value
    )
    least = {bound: sum(o.least_ms.value for o in operators if o.bound == bound) for bound in BOUNDS}
    transfer = best_of(ceilings, TO_DEVICE_PINNED)
    least["host_transfer"] = 1e3 * work.input_bytes / transfer if transfer else 0.0
    least["input"] = max(0.0, (input_ms.value if input_ms else 0.0) - least["host_transfer"])
    most = max(least, key=lambda name: least[name])
    bound = most if least[most] > EXPLAINS * step_ms.value else "none"
    achieved = _per(work.flops, step_ms)
    mfu = _times(achieved, 1 / peak)
    return RooflineResult(
        rank=rank,
        device=device,
        precision=work.precision,
        batch=work.batch,
        flops=work.flops,
        bytes=work.bytes,
        operators=work.calls,
        step_ms=step_ms,
        said=_said(bound, work.precision, step_ms, least, mfu),
        bound=bound,
        least_ms={name: Measured(value) for name, value in least.items()},
        achieved_flop_s=achieved,
        mfu=mfu,
        mfu_at={n: _times(_per(work.flops, step), 1 / peak) for n, step in (mfu_at or {}).items()},
        ceilings=tuple(
            CeilingResult(name=c.name, unit=c.unit, size=c.size, best=Measured(c.best, n=c.repeats))
            for c in ceilings
        ),
        top=tuple(operators[:TOP]),
    )


def explain(base: RooflineResult | None, other: RooflineResult | None) -> tuple[str, ...]:
    """Which ceiling each of two runs hits, in words; why a faster device need not train faster."""
    if base is None or other is None:
        return ()
    said = [f"{role}: {found.said}" for role, found in (("base", base), ("other", other))]
    peaks = [best_result(found, MATMUL + found.precision) for found in (base, other)]
    if peaks[0] and peaks[1] and base.device != other.device:
        faster = peaks[1] / peaks[0]
        steps = base.step_ms.value / other.step_ms.value
        said.append(
            f"matrix products are {faster:.2g} times as fast on the other device ({other.device}) and a step "
            f"{steps:.2g} times; what binds there is {other.bound}"
        )
    return tuple(said)


def _said(bound: str, precision: str, step_ms: Measured, least: Mapping[str, float], mfu: Measured) -> str:
    share = f"; MFU {mfu.value:.0%} of the measured {precision} matrix product"
    most = max(least, key=lambda name: least[name])
    if bound == "none":
        return (
            f"no ceiling explains the step of {step_ms.value:.3g} ms (the nearest, {most.replace('_', ' ')}, "
            f"{least[most]:.3g} ms){share}"
        )
    if least[bound] > step_ms.value:
        return (
            f"{bound.replace('_', '-')}-bound: at the measured ceilings {bound.replace('_', ' ')} alone would take "
            f"{least[bound]:.3g} ms, and the step took {step_ms.value:.3g}: they were measured too low "
            f"(`scaling doctor` measures them longer){share}"
        )
    return (
        f"{bound.replace('_', '-')}-bound: {bound.replace('_', ' ')} needs at least {least[bound]:.3g} of the "
        f"{step_ms.value:.3g} ms of a step{share}"
    )


def median(values_ns: Sequence[int], scale: float = 1e-6) -> Measured | None:
    """The median, ms, with the order statistics that hold it in about 95 % of cases; from 6 values on."""
    values = sorted(v * scale for v in values_ns)
    n = len(values)
    if not n:
        return None
    middle = (values[(n - 1) // 2] + values[n // 2]) / 2
    if n < 6:
        return Measured(middle, n=n)
    low = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Measured(middle, values[low], values[n - 1 - low], n)


def best_of(ceilings: Sequence[Ceiling], name: str) -> float | None:
    """The best rate under a name."""
    return max((c.best for c in ceilings if c.name == name), default=None)


def best_result(found: RooflineResult, name: str) -> float | None:
    """The same of a result."""
    return max((c.best.value for c in found.ceilings if c.name == name), default=None)


def _operator(
    operator: Operator, ceilings: Sequence[Ceiling], peak: float, launches: float
) -> OperatorResult:
    times = {
        "compute": operator.flops / peak,
        "memory": operator.bytes / _bandwidth(ceilings, operator.bytes / operator.count),
        "launch": operator.count / launches,
    }
    bound = max(times, key=lambda name: times[name])
    return OperatorResult(
        name=operator.name,
        layer=operator.layer,
        count=operator.count,
        flops=operator.flops,
        bytes=operator.bytes,
        least_ms=Measured(1e3 * times[bound]),
        bound=bound,
    )


def _bandwidth(ceilings: Sequence[Ceiling], traffic: float) -> float:
    """What a copy of at least this traffic (read and written) reached: the cache's where that is small enough."""
    copies = [c for c in ceilings if c.name == COPY]
    fitting = [c.best for c in copies if 2 * c.size >= traffic]
    return max(fitting or [c.best for c in copies if c.size == max(k.size for k in copies)], default=math.inf)


def _per(flops: int, step_ms: Measured) -> Measured:
    """FLOP/s."""
    low, high = (None if v is None else 1e3 * flops / v for v in (step_ms.high, step_ms.low))
    return Measured(1e3 * flops / step_ms.value, low, high, step_ms.n)


def _times(measured: Measured, factor: float) -> Measured:
    low, high = (None if v is None else v * factor for v in (measured.low, measured.high))
    return Measured(measured.value * factor, low, high, measured.n)
