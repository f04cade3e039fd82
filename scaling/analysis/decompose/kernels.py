"""Where a step's time goes: kernels at their ceiling, kernels below it and why, waits for the host, other ranks.

Kernels were timed one by one. The device runs them no longer than their sum, than all of them queued in a row, and than
the step that they are of. Where the sum is more, the events around each kernel are taken off first, at most what the
shortest kernel takes; what is still too much is scaled off. So parts never sum to more than the step.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

from scaling.analysis.results import Measured, SlowKernel, StepPart, StepTime
from scaling.records.checkup import Kernel, KernelTable
from scaling.units import significant

Least = Callable[[Kernel], tuple[float, str]]
"""The least time that the ceilings allow one call, s, and the ceiling that sets it."""
NEAR = 0.7
"""A kernel that reaches this part of its ceiling's rate is at it."""
NAMED = 0.05
"""A part of the step that the sentence names."""
OFF = 0.02
"""What the step may lie beside its parts, and the sum of kernels above the step, without a word."""
UNIT = 8
"""Elements of 2 bytes that matrix units load at once: NVIDIA's guide to matrix multiplication asks for multiples."""
EMPTY_NS = 20_000
"""No device takes longer for a kernel without work, with the events around it; the shortest of a step stands for it."""
SLOWEST = 5
SHAPES = 2
"""Tensors whose shapes are shown of a kernel."""
AT_CEILING, ELEMENTWISE, COMPUTE, MEMORY = "at_ceiling", "elementwise", "compute", "memory"
ODD, SMALL, TRANSFER, IDLE = "odd_sides", "small", "host_transfer", "idle"
INPUT, WAITS, RANKS = "input", "communication", "other_ranks"
MEANS = {
    AT_CEILING: "kernels at their ceiling",
    ELEMENTWISE: "elementwise kernels below theirs: each reads and writes memory, a compiler joins chains of them",
    ODD: f"matrix kernels with an odd side: matrix units need multiples of {UNIT}",
    COMPUTE: "matrix kernels below the peak: too few blocks for the whole device, or shapes that do not fill its units",
    MEMORY: "other kernels below the copy rate: they read data twice, or in an order in which memory is slow",
    SMALL: "small kernels: too little work to fill the device",
    TRANSFER: "copies of the batch from the host",
    IDLE: "no kernel runs: the device waits for its host to launch",
    INPUT: "the host fetches the batch",
    WAITS: "waits for collectives",
    RANKS: "other ranks slow it: they share a device, its memory or the cores",
}
_ON_HOST = {
    IDLE: "between operators: Python, autograd, and what else runs on the cores",
    SMALL: "small operators: most of their time goes into the call",
}
_ELEMENTWISE = (
    "abs add addcdiv addcmul bernoulli clamp copy cos div eq erf exp fill ge gelu gelu_backward gt hardswish le lerp "
    "leaky_relu log lt masked_fill mul native_dropout native_dropout_backward ne neg pow reciprocal relu rsqrt rsub "
    "sigmoid sigmoid_backward silu silu_backward sin sqrt sub tanh tanh_backward threshold_backward where zero"
)
"""Operators that compute each element by itself, as torch names them, without the optimizer's `_foreach_`."""


def step_time(
    table: KernelTable,
    least: Least,
    step_ms: Measured,
    alone_ms: float | None = None,
    input_ms: float = 0.0,
    waits_ms: float = 0.0,
    *,
    on_host: bool = False,
) -> StepTime | None:
    """The parts of a step, ms; None where no kernel was timed, or the model itself sleeps.

    `alone_ms`: the step while no other rank runs. `waits_ms`: in which the step waits for collectives. `on_host`: the
    operators run on the CPU itself.
    """
    calls = sum(k.calls for k in table.kernels)
    if not calls or not table.step_ns or table.slept_ns:
        return None
    measured_ms = table.step_ns / 1e6
    among_ms = max(0.0, step_ms.value - waits_ms)
    alone = min(among_ms, max(alone_ms or among_ms, measured_ms))
    busy = min(busy_ns(table) / 1e6, alone)
    empty_ns = min([EMPTY_NS, *(k.time_ns for k in table.kernels if k.time_ns)])
    took = _corrected(table.kernels, busy, empty_ns)
    judged = _judged(table, took, least, empty_ns / 1e9, on_host=on_host)
    slow = sorted(judged, key=lambda k: k.least_ms.value - k.ms.value)
    idle = max(0.0, min(measured_ms, alone) - busy)
    fetch = min(input_ms, max(0.0, alone - busy - idle))
    spent: dict[str, float] = collections.defaultdict(float)
    for kernel in slow:
        spent[kernel.part] += kernel.ms.value
    spent |= {IDLE: idle, INPUT: fetch, WAITS: min(waits_ms, step_ms.value), RANKS: among_ms - alone}
    means = MEANS | _ON_HOST if on_host else MEANS
    parts = tuple(
        StepPart(name=name, ms=Measured(spent[name]), share=spent[name] / step_ms.value, means=means[name])
        for name in sorted(means, key=lambda name: -spent[name])
        if spent[name] > 0
    )
    accounted_ms = sum(part.ms.value for part in parts)
    rest = step_ms.mapped(lambda ms: round(ms - accounted_ms, 9))
    lost = sum(max(0.0, k.ms.value - k.least_ms.value) for k in slow)
    joined = [k for k in slow if k.elementwise]
    return StepTime(
        parts=parts,
        unexplained_ms=rest,
        slowest=tuple(k for k in slow[:SLOWEST] if k.ms.value > k.least_ms.value),
        notes=(
            *_above(table, on_host=on_host),
            f"at their ceilings the kernels would take {significant(lost)} ms less; {sum(k.calls for k in joined):.0f} "
            f"elementwise kernels take {significant(sum(k.ms.value for k in joined))} ms in all",
            _closes(rest, step_ms, measured_ms),
        ),
    )


def busy_ns(table: KernelTable) -> float:
    """How long the device computes in a step at the most: no sum of its times is more than any other of them."""
    return min(table.sum_ns, table.step_ns, table.queued_ns or table.step_ns)


def idle_share(table: KernelTable) -> float | None:
    """The share of a step in which no kernel runs; None where the model itself sleeps.

    The host and the device have to be two: on a CPU an operator is its own call.
    """
    if table.slept_ns or not table.step_ns or not table.kernels:
        return None
    return 1 - busy_ns(table) / table.step_ns


def sentence(where: StepTime, step_ms: Measured) -> str:
    """The larger parts of a step, as a sentence."""
    named = [f"{p.share:.0%} {p.means.partition(':')[0]}" for p in where.parts if p.share >= NAMED]
    rest = where.unexplained_ms.value / step_ms.value
    named += [f"{rest:.0%} not explained"] * (rest >= NAMED)
    return f"of {significant(step_ms.value)} ms: {', '.join(named)}"


def _corrected(kernels: tuple[Kernel, ...], busy_ms: float, empty_ns: int) -> list[float]:
    """The time of all calls of each kernel, ms, which sum to no more than the device computes."""
    calls = sum(k.calls for k in kernels)
    over = sum(k.calls * k.time_ns for k in kernels) - 1e6 * busy_ms
    events = max(0.0, min(over / calls, empty_ns))
    took = [k.calls * max(0.0, k.time_ns - events) / 1e6 for k in kernels]
    return [ms * min(1.0, busy_ms / (sum(took) or 1.0)) for ms in took]


def _judged(
    table: KernelTable, took: list[float], least: Least, empty_s: float, *, on_host: bool
) -> Iterator[SlowKernel]:
    """Each kernel with the part of the step that it belongs to. `empty_s`: what a kernel takes for no work."""
    elementwise = _ELEMENTWISE.split()
    units = table.precision in {"bf16", "fp16"} and not on_host
    for kernel, ms in zip(table.kernels, took, strict=True):
        least_s, bound = least(kernel)
        least_ms = 1e3 * least_s * kernel.calls
        name = kernel.operator.removeprefix("aten::")
        if bound == TRANSFER:
            part = TRANSFER
        elif least_s < empty_s:
            part = SMALL
        elif least_ms >= NEAR * ms:
            part = AT_CEILING
        elif bound == COMPUTE and units and _odd(kernel.key):
            part = ODD
        else:
            part = ELEMENTWISE if name in elementwise else bound
        shapes = kernel.key.partition("|" if name != "copy" else " ")[2].split(";")
        more = f" and {len(shapes) - SHAPES} more" if len(shapes) > SHAPES else ""
        yield SlowKernel(
            operator=name,
            shapes="; ".join(shapes[:SHAPES]) + more,
            layer=kernel.layer,
            layers=kernel.layers,
            calls=kernel.calls,
            ms=Measured(ms),
            least_ms=Measured(least_ms),
            part=part,
            elementwise=name in elementwise,
        )


def _odd(key: str) -> bool:
    """Whether a matrix of the operator has a side of more than a few units that is no multiple of one."""
    sides = [
        int(side) for tensor in key.split(";") for side in tensor.rpartition(" ")[2].split(",")[-2:] if side
    ]
    return any(side > UNIT**2 and side % UNIT for side in sides)


def _above(table: KernelTable, *, on_host: bool) -> Iterator[str]:
    """How the kernels' own times exceed what they are of."""
    over = table.sum_ns / table.step_ns
    if over > 1 + OFF:
        less = "" if table.queued_ns or on_host else "; what the device waited for its host is not known"
        yield (
            f"kernels timed alone sum to {over:.0%} of the step that they are of ({significant(table.sum_ns / 1e6)} of "
            f"{significant(table.step_ns / 1e6)} ms): clocks, caches, other ranks and the stamps around each "
            "differ; they are "
            f"scaled to {significant(busy_ns(table) / 1e6)} ms{less}"
        )
    elif table.queued_ns and table.sum_ns > (1 + OFF) * table.queued_ns:
        yield (
            f"kernels timed alone sum to {significant(table.sum_ns / 1e6)} ms, and all of them in a row take "
            f"{significant(table.queued_ns / 1e6)} ms, to which they are scaled"
        )


def _closes(rest: Measured, step_ms: Measured, measured_ms: float) -> str:
    """Whether the parts sum to the step, or what is missing."""
    if rest.value <= OFF * step_ms.value or rest.holds(0):
        within = " within its interval" if rest.holds(0) and step_ms.interval else ""
        return f"the parts sum to {1 - rest.value / step_ms.value:.0%} of the step{within}"
    return (
        f"{significant(rest.value)} ms ({rest.value / step_ms.value:.0%} of the step) are not explained: the "
        "step takes so much "
        f"longer than the one of {significant(measured_ms)} ms whose kernels were timed"
    )
