"""What it is, how sure, and what to change: rules over one point's waterfall."""

from __future__ import annotations

from collections.abc import Callable

from scaling.analysis.change import Change
from scaling.analysis.remedies import offers
from scaling.analysis.results import Level, Loss, Measured, NcclGroup, Point, Remedy, Verdict
from scaling.analysis.stats import departure, scaled
from scaling.plan import Plan

NOTABLE = 0.03
"""A cause that costs less than this share of the step is not worth a verdict."""
SCALES_WELL = 0.90
"""An efficiency whose interval lies above this needs no remedy."""

SLOW_PATH = 0.6
"""Large messages below this share of what the link can carry: the data go another way than promised."""

LATENCY_SHARE = 0.2
"""A message whose fixed costs are more of its time than this tells nothing of the link's speed."""

_CAUSES = (
    "small_batch",
    "neighbours",
    "ddp_overhead",
    "straggler",
    "link_latency",
    "link_bandwidth",
    "overlap",
    "input",
    "host",
    "clocks",
)

_BETWEEN_ARMS = ("neighbours", "ddp_overhead", "overlap", "clocks")
"""Measured as one arm's blocks against another's, not by stamps within a step."""


Gain = Callable[[Change], Measured | None]
"""What the simulation promises of a change: throughput over the present, above 1 is faster."""


def no_gain(_change: Change) -> Measured | None:
    """Where nothing can be simulated."""
    return None


def verdicts(
    point: Point,
    plan: Plan,
    level: Level | None = None,
    gain: Gain = no_gain,
    nccl: NcclGroup | None = None,
) -> tuple[Verdict, ...]:
    """The causes at one world size, largest first; `scales_well` or `undecided` where none stands out.

    A link that is clearly slower than the topology promises (`slow_path`) comes before all others:
    whatever else is said of communication follows from it.
    """
    slow = _slow_path(point, plan, level, nccl)
    return (*slow, *_causes_of(point, plan, gain))


def _causes_of(point: Point, plan: Plan, gain: Gain) -> tuple[Verdict, ...]:
    if point.world_size == 1 or (point.efficiency is None and point.loss is None):
        return ()  # an own loop without a baseline has causes without an efficiency
    if point.base_world_size > 1:
        return (_undecided(point, "no rank ran the whole batch alone: what is lost is not told by cause"),)
    if point.loss is None or (
        point.efficiency is not None and (point.efficiency.low is None or point.efficiency.high is None)
    ):
        more = "probe more steps" if plan.spec.own_loop else "use measure=standard"
        return (_undecided(point, f"too few rounds for an interval; {more}"),)
    found = [
        Verdict(
            cause=cause,
            world_size=point.world_size,
            share=share,
            confidence="high" if _low(share) > NOTABLE else "medium",
            evidence=_evidence(cause, point),
            try_=_remedies(cause, point, plan, gain),
        )
        for cause, share in _shares(point.loss)
        if _stands_out(cause, share, point) and (cause != "straggler" or point.straggler)
    ]
    if found:
        return tuple(found)
    if point.efficiency is not None and _low(point.efficiency) > SCALES_WELL:
        return (
            Verdict(
                cause="scales_well",
                world_size=point.world_size,
                share=None,
                confidence="high",
                evidence=(f"efficiency {point.efficiency.low:.1%} to {point.efficiency.high:.1%}",),
            ),
        )
    longer = "probe more steps" if plan.spec.own_loop else "measure longer (measure=thorough)"
    return (_undecided(point, f"no cause stands clear of the noise; {longer}"),)


def _slow_path(point: Point, plan: Plan, level: Level | None, nccl: NcclGroup | None) -> tuple[Verdict, ...]:
    """The transport that the topology promises against what its own size sweep reached."""
    if level is None or level.nominal_gbit_s is None or level.busbw_gbit_s is None:
        return ()
    reached = level.busbw_gbit_s
    if reached.high is None or reached.high > SLOW_PATH * level.nominal_gbit_s:
        return ()
    if not _saturating(level):
        return ()
    lost = point.loss.link_bandwidth if point.loss else None
    path = (f"NCCL's own log has {', '.join(nccl.transports)}",) if nccl and nccl.transports else ()
    return (
        Verdict(
            cause="slow_path",
            world_size=point.world_size,
            share=scaled(lost, 1 - reached.value / level.nominal_gbit_s),
            confidence="high",
            evidence=(
                f"large messages reach {reached.value:.3g} Gbit/s over the {level.name}, "
                f"the topology promises {level.nominal_gbit_s:.3g}",
                "the traffic takes another path than it should, or one host's link is slow",
                *path,
            ),
            try_=_remedies("slow_path", point, plan, no_gain),
        ),
    )


def _saturating(level: Level) -> bool:
    """Whether the largest message was large enough to tell, and is itself as slow as the fit says."""
    assert level.nominal_gbit_s is not None
    assert level.alpha_us is not None
    sweep = [point for point in level.curve if point.collective == "all_reduce"]
    largest = max(sweep, key=lambda point: point.bytes)
    fixed_us = 2 * (level.world_size - 1) * level.alpha_us.value
    fastest = largest.busbw_gbit_s.high
    slow = fastest is not None and fastest <= SLOW_PATH * level.nominal_gbit_s
    return slow and fixed_us < LATENCY_SHARE * largest.time_us.value


def _shares(loss: Loss) -> list[tuple[str, Measured]]:
    """Largest first. A difference between arms counts by the lower end of its interval.

    So it comes before what stamps show only where it is larger beyond its own error: very many small messages,
    say, cost waiting (stamped) and slow compute down (a difference), and both have one remedy.
    """

    def size(item: tuple[str, Measured]) -> float:
        cause, share = item
        return _low(share) if cause in _BETWEEN_ARMS else share.value

    shares = [(cause, getattr(loss, cause)) for cause in _CAUSES]
    return sorted(((c, s) for c, s in shares if s is not None), key=size, reverse=True)


def _stands_out(cause: str, share: Measured, point: Point) -> bool:
    """Clear of 0 and worth a line; what is a difference between arms, clear also of that between equal arms."""
    chance = departure(point.overhead.aa_floor) if cause in _BETWEEN_ARMS else 0.0
    return _low(share) > 0 and share.value > max(NOTABLE, chance)


def _low(share: Measured) -> float:
    return share.low if share.low is not None else 0.0


def _undecided(point: Point, why: str) -> Verdict:
    shares = _shares(point.loss) if point.loss else []
    cause, share = max(shares, key=lambda found: found[1].value, default=("", None))
    notable = f"the largest term, not yet proven: {cause}, {share.value:.0%} of the step" if share else ""
    evidence = (why, notable) if share and share.value > NOTABLE else (why,)
    return Verdict(
        cause="undecided", world_size=point.world_size, share=None, confidence="low", evidence=evidence
    )


def _evidence(cause: str, point: Point) -> tuple[str, ...]:
    comm, parts, arms = point.comm, point.parts_ms, point.arms_ms
    lines: list[str] = []
    if cause in ("link_bandwidth", "link_latency") and comm is not None:
        if parts.exposed_transfer is not None and point.step_ms is not None:
            lines.append(
                f"{parts.exposed_transfer.value:.1f} of {point.step_ms.value:.1f} ms wait for data on the link"
            )
        if comm.busbw_gbit_s is not None:
            share = comm.nominal_share
            of_link = f", {share.value:.0%} of what the link can carry" if share else ""
            lines.append(
                f"{comm.bytes_per_step / 2**20:.1f} MiB a step at {comm.busbw_gbit_s.value:.3g} Gbit/s{of_link}"
            )
        lines.append(f"{len(comm.buckets)} bucket{'s' if len(comm.buckets) != 1 else ''}")
        if comm.gradient_bytes and (comm.reductions or 1) > 1:
            lines.append(
                f"gradients of {comm.gradient_bytes / 2**20:.1f} MiB are reduced {comm.reductions} times a step: "
                "no_sync is missing"
            )
    if cause == "straggler" and point.straggler is not None:
        late = point.straggler
        lines.append(
            f"rank {late.rank} is late by {late.skew_ms.value:.1f} ms at the first bucket, mostly in {late.phase}; "
            f"it costs {late.cost_ms.value:.1f} ms a step"
        )
        if late.by_itself is not None:
            lines.append("it is slow alone too" if late.by_itself else "alone it is as fast as the others")
        if late.host is not None:
            lines.append(f"all ranks of host {late.host} are late: look for what they share")
        lines += [line for rank, line in _throttled(point) if rank == late.rank]
    if cause == "neighbours" and arms.bare_all and arms.bare_one:
        lines.append(
            f"without any DDP a step takes {arms.bare_all.value:.1f} ms beside the other ranks, "
            f"{arms.bare_one.value:.1f} ms alone"
        )
    if cause == "ddp_overhead" and arms.ddp_solo and arms.bare_all:
        lines.append(
            f"DDP over one rank takes {arms.ddp_solo.value:.1f} ms a step, the bare module {arms.bare_all.value:.1f} ms"
        )
    if cause == "overlap":
        lines.append("forward and backward compute take longer while gradients are being reduced")
    if cause == "small_batch" and arms.bare_one:
        lines.append(
            f"a rank's part of the batch takes {arms.bare_one.value:.1f} ms, more than its fair share"
        )
    if cause == "clocks":
        lines += _clock_lines(point)
        lines += [line for _, line in _throttled(point)]
    if cause in ("input", "host"):
        part = getattr(parts, cause)
        if part is not None:
            lines.append(f"{part.value:.1f} ms a step are spent in {cause}")
    return tuple(lines)


def _clock_lines(point: Point) -> list[str]:
    seen = point.clocks
    if seen is None:
        return []
    named = (
        (seen.alone_mhz, "alone"),
        (seen.beside_mhz, "beside the others"),
        (seen.together_mhz, "with DDP"),
    )
    known = [f"{number.value:.0f} MHz {when}" for number, when in named if number is not None]
    return [f"the SM clock is {', '.join(known)}"] if known else []


def _throttled(point: Point) -> list[tuple[int, str]]:
    """(rank, in words) of every device that slowed itself down."""
    return [
        (
            t.rank,
            f"rank {t.rank}'s device slowed itself down in {t.blocks} of {t.of} blocks ({', '.join(t.reasons)})",
        )
        for t in (point.clocks.throttled if point.clocks else ())
    ]


def _remedies(cause: str, point: Point, plan: Plan, gain: Gain) -> tuple[Remedy, ...]:
    return tuple(
        Remedy(
            overrides=offer.overrides,
            code=offer.code,
            predicted_gain=None if offer.change is None else gain(offer.change),
        )
        for offer in offers(cause, point, plan)
    )
