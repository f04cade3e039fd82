"""Which remedies of a cause are offered: those that the simulation does not speak against, each once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scaling.analysis.predict.change import Change
from scaling.analysis.results import Measured, Point, Remedy, Verdict
from scaling.analysis.verdicts.by_measure import UNKNOWN, Host
from scaling.analysis.verdicts.remedies import offers
from scaling.spec.plan import Plan

_IT_WOULD_TAKE = {
    "link_bandwidth": "a faster link, or more compute for each byte of gradients (a larger batch, fewer parameters)",
    "link_latency": "a link of less latency, or fewer collectives a step",
    "small_batch": "a much larger global batch, or fewer ranks",
    "straggler": "a rank that is as fast as its peers",
    "neighbours": "fewer ranks on a host, or a host with more memory bandwidth",
}
"""What would remove a cause that no setting removes."""

Gain = Callable[[Change], Measured | None]
"""Predicts a change's gain: throughput over the present one, above 1 is faster; None where it cannot."""


def no_gain(_change: Change) -> Measured | None:
    """The gain where nothing can be simulated."""
    return None


def each_remedy_once(found: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """The verdicts, each remedy with the first cause that it stands for."""
    offered: dict[tuple[str, str], str] = {}
    result = []
    for verdict in found:
        new = tuple(r for r in verdict.try_ if (r.overrides, r.code) not in offered)
        above = sorted({offered[key] for r in verdict.try_ if (key := (r.overrides, r.code)) in offered})
        offered |= {(r.overrides, r.code): verdict.cause for r in new}
        said = (f"what to try for {' and '.join(above)} helps here too",) if above else ()
        plain = tuple(line.replace("_", " ") for line in said)
        result.append(replace(verdict, try_=new, evidence=(*verdict.evidence, *plain)))
    return tuple(result)


def remedies(
    cause: str, point: Point, plan: Plan, gain: Gain, host: Host = UNKNOWN
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """(remedies, why there is none): what the simulation predicts no sure gain from is not offered.

    A remedy whose gain cannot be simulated is offered without one.
    """
    offered: list[Remedy] = []
    useless: list[tuple[Measured, str]] = []
    offers_made = offers(cause, point, plan, host)
    for offer in offers_made:
        predicted = offer.gain if offer.change is None else gain(offer.change)
        if predicted is None or offer.gain or predicted.surely_above(1):
            offered.append(
                Remedy(
                    overrides=offer.overrides,
                    code=offer.code,
                    predicted_gain=predicted,
                    assumes=offer.assumes,
                )
            )
        else:
            useless.append((predicted, offer.overrides or offer.code))
    if cause == "neighbours" and host.ranks_per_device > 1:
        return (), ("it would take a device for each rank",)
    if not offers_made and cause == "neighbours":
        return (), (f"its threads have cores of their own; it would take {_IT_WOULD_TAKE[cause]}",)
    if offered or not useless:
        return tuple(offered), ()
    best, what = max(useless, key=lambda found: found[0].value)
    within = "" if best.interval is None else f" ({best.least - 1:+.0%} to {best.most - 1:+.0%})"
    return (), (
        f"nothing here would help: the best that was simulated, {what}, is predicted to change the throughput by "
        f"{best.value - 1:+.0%}{within}; it would take {_IT_WOULD_TAKE.get(cause, 'other hardware')}",
    )
