"""Figures of one answer that exclude each other, and the verdicts that rest on them. Pure.

Each pair of figures bounds one by the other: what ranks wait for data by what the bytes take at the measured bandwidth,
a late rank's cost by what the others wait, a cause of the loss by the phase or the waits that hold it, the parts of a
step by the step. Where the whole interval of the first lies above that of the second, by more than a cause needs, they
cannot both be right, and no verdict rests on either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from scaling.analysis.results import Measured, Point, StepParts, Verdict, verdicts
from scaling.analysis.results.verdicts import NOTABLE
from scaling.units import format_bytes

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
        clash
        for first, most, clash in _pairs(point, step, buffers_share)
        if first.least > most + NOTABLE * step.value
    )


def undecided(
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
) -> Iterator[tuple[Measured, float, Contradiction]]:
    """(a figure in ms, the most that another one leaves for it, what is said where it is above that)."""
    parts, loss, comm, late = point.parts_ms, point.loss, point.comm, point.straggler
    waits = [part for part in (parts.exposed_transfer, parts.exposed_skew, parts.exposed_enqueue) if part]
    waited, waited_most = sum(part.value for part in waits), sum(part.most for part in waits)
    moved = [each.transfer_ms for each in comm.collectives if each.transfer_ms] if comm else []
    if parts.exposed_transfer and comm and moved and len(moved) == len(comm.collectives):
        takes = sum(each.value for each in moved)
        rate = f" at {comm.busbw_gbit_s.value:.3g} Gbit/s" if comm.busbw_gbit_s else ""
        yield (
            parts.exposed_transfer,
            sum(each.most for each in moved) + buffers_share * step.value,
            Contradiction(
                LINK,
                f"a step waits {parts.exposed_transfer.value:.3g} ms for data, and {format_bytes(comm.bytes_per_step)}"
                f"{rate} take {takes:.3g} ms",
            ),
        )
    if late is not None:
        text = f"a late rank costs {late.cost_ms.value:.3g} ms, and the others wait {late.skew_ms.value:.3g} ms for it"
        yield late.cost_ms, late.skew_ms.most, Contradiction(("straggler",), text)
    if loss is not None and waits:
        for cause in ("straggler", "communication"):
            share = getattr(loss, cause)
            if share is not None:
                cost = share * step.value
                text = f"{cause.replace('_', ' ')} costs {cost.value:.3g} ms, and ranks wait {waited:.3g} ms in all"
                yield cost, LATE_MOST * waited_most, Contradiction((cause,), text)
    for cause, part in (("input", parts.input), ("host", parts.host)):
        share = getattr(loss, cause) if loss is not None else None
        if share is not None and part is not None:
            beside = parts.exposed_enqueue.most if cause == "host" and parts.exposed_enqueue else 0.0
            cost = share * step.value
            text = f"{cause} costs {cost.value:.3g} ms, and the phase takes {part.value:.3g} ms"
            yield cost, LATE_MOST * part.most + beside, Contradiction((cause,), text)
    if comm is not None and comm.free_speedup is not None and waits:
        saved = (1 - 1 / comm.free_speedup) * step.value
        text = f"free communication would save {saved.value:.3g} ms, and ranks wait {waited:.3g} ms in all"
        yield saved, waited_most, Contradiction(LINK, text)
    present = [part for each in fields(StepParts) if (part := getattr(parts, each.name)) is not None]
    if (
        len(present) >= len(fields(StepParts)) - 1 and point.arms_ms.probe
    ):  # waiting for a launch may cost nothing
        whole = Measured(sum(part.value for part in present))
        text = f"the parts of a step add up to {whole.value:.3g} ms, and the step is {step.value:.3g} ms"
        yield whole, step.most, Contradiction(STAMPED, text)
        yield step, whole.value, Contradiction(STAMPED, text)
