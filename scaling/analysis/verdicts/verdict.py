"""Name the causes of lost efficiency at one world size, with confidence, evidence and remedies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

from scaling.analysis.decompose.loss import BETWEEN_ARMS
from scaling.analysis.results import FabricLevel, Loss, Measured, NcclGroup, Point, Verdict
from scaling.analysis.results.verdicts import NOTABLE, named, undecided
from scaling.analysis.verdicts.certainty import confidences
from scaling.analysis.verdicts.evidence import evidence_of
from scaling.analysis.verdicts.host_remedies import UNKNOWN, Host
from scaling.analysis.verdicts.imbalance import or_fuller
from scaling.analysis.verdicts.launch_bound import doubted, launch_bound
from scaling.analysis.verdicts.remedies import Gain, each_remedy_once, no_gain, remedies
from scaling.analysis.verdicts.sharded import tensor_across_hosts
from scaling.settings.plan import DETAILS, Plan
from scaling.settings.schedule import nobody_alone

NOISE = "no cause stands clear of the noise"
OPTIMIZER_NOTABLE = 0.1
"""An optimizer that surely takes a larger share of the step is worth changing."""
SCALES_WELL = 0.90
"""An efficiency whose whole interval lies above this needs no remedy."""

SLOW_PATH = 0.6
"""If large messages reach less than this share of the nominal rate, the data take a slower path than promised."""

LATENCY_SHARE = 0.2
"""A message with a larger share of fixed costs in its time does not show the link's bandwidth."""

_CAUSES = (
    "small_batch",
    "neighbours",
    "strategy_overhead",
    "straggler",
    "imbalance",
    "link_latency",
    "link_bandwidth",
    "communication",
    "overlap",
    "input",
    "host",
    "clocks",
)


def verdicts(
    point: Point,
    plan: Plan,
    level: FabricLevel | None = None,
    gain: Gain = no_gain,
    nccl: NcclGroup | None = None,
    host: Host = UNKNOWN,
    levels: Sequence[FabricLevel] = (),
) -> tuple[Verdict, ...]:
    """The causes at one world size, largest first; `scales_well` or `undecided` where none stands out.

    A link that is clearly slower than the topology promises (`slow_path`) comes first, because all other findings about
    communication follow from it. `levels`: the size sweeps of all world sizes.
    """
    bound = launch_bound(point, plan, gain)
    causes = _causes_of(point, plan, gain, level, host)
    listed = (
        *_slow_path(point, plan, level, nccl),
        *tensor_across_hosts(point, plan.spec, levels),
        *(map(doubted, causes) if bound else causes),
        *bound,
        *_optimizer(point, plan, gain),
    )
    return each_remedy_once(listed)


def _optimizer(point: Point, plan: Plan, gain: Gain) -> tuple[Verdict, ...]:
    """The optimizer's part of every step, where it is large: no loss of scaling, but time that a setting can save."""
    spent, step = point.parts_ms.optimizer, point.step_ms
    if point.world_size != plan.ranks or spent is None or step is None:
        return ()
    share = spent / step.value
    if not share.surely_above(OPTIMIZER_NOTABLE):
        return ()
    return (
        named(
            "optimizer",
            point,
            share,
            (f"the optimizer takes {spent.value:.3g} of {step.value:.3g} ms, with one rank as with many",),
            remedies("optimizer", point, plan, gain)[0],
        ),
    )


def _causes_of(
    point: Point, plan: Plan, gain: Gain, level: FabricLevel | None, host: Host
) -> tuple[Verdict, ...]:
    if point.world_size == 1 or (point.efficiency is None and point.loss is None):
        return ()  # an own loop without a baseline has causes without an efficiency
    if point.base_world_size > 1:
        return (_undecided(point, f"{nobody_alone(plan.spec.mode)}, so the loss is not split by cause"),)
    if point.loss is None or (point.efficiency is not None and point.efficiency.interval is None):
        return (_undecided(point, f"too few rounds for an interval; {_longer(plan)}"),)
    shares = _shares(point.loss)
    families = sum(trial.world_size > 1 for trial in plan.trials)
    clear = confidences(dict(shares), point, families)
    if point.straggler is None:
        clear.pop("straggler", None)
    causes = []
    for cause, share in shares:
        if cause in clear:
            tried, nothing = remedies(cause, point, plan, gain, host)
            verdict = named(
                cause,
                point,
                share,
                (*evidence_of(cause, point, level, host.ranks_per_device), *nothing),
                tried,
                clear[cause],
            )
            causes.append(or_fuller(verdict, point) if cause == "straggler" else verdict)
    if causes:
        return (_beside_larger(causes[0], point, clear), *causes[1:])
    if point.efficiency is not None and point.efficiency.surely_above(SCALES_WELL):
        return (
            Verdict(
                cause="scales_well",
                world_size=point.world_size,
                share=None,
                confidence="high",
                evidence=(f"efficiency {point.efficiency.low:.1%} to {point.efficiency.high:.1%}",),
            ),
        )
    if not plan.kind.followed and not (plan.content.has(DETAILS) and _shares(point.loss)):
        return (
            undecided(point.world_size, f"the time held nothing that tells causes apart; {_longer(plan)}"),
        )
    return (_undecided(point, f"{NOISE}; {_longer(plan)}"),)


def _longer(plan: Plan) -> str:
    """What gives more rounds than this plan did."""
    measure = plan.spec.measure
    if plan.kind.longer:
        return plan.kind.longer
    longer = {"quick": "measure=standard", "standard": "measure=thorough"}.get(measure.name, "")
    budget = f"measure.budget_s={2 * math.ceil(measure.budget_s)}"
    return f"measure longer ({longer} or {budget})" if longer else f"measure longer ({budget})"


def _slow_path(
    point: Point, plan: Plan, level: FabricLevel | None, nccl: NcclGroup | None
) -> tuple[Verdict, ...]:
    """Compare the bandwidth that the topology promises with what the size sweep reached."""
    if level is None or level.nominal_gbit_s is None or level.busbw_gbit_s is None:
        return ()
    reached = level.busbw_gbit_s
    if reached.high is None or reached.high > SLOW_PATH * level.nominal_gbit_s:
        return ()
    if not _saturating(level):
        return ()
    lost = point.loss.link_bandwidth if point.loss else None
    path = (f"NCCL's log names {', '.join(nccl.transports)}",) if nccl and nccl.transports else ()
    return (
        Verdict(
            cause="slow_path",
            world_size=point.world_size,
            share=lost and lost * (1 - reached.value / level.nominal_gbit_s),
            confidence="high",
            evidence=(
                f"large messages reach {reached.value:.3g} Gbit/s over the {level.name}, "
                f"but the topology promises {level.nominal_gbit_s:.3g}",
                "the traffic takes a slower path than the topology promises, or one host's link is slow",
                *path,
            ),
            try_=remedies("slow_path", point, plan, no_gain)[0],
        ),
    )


def _saturating(level: FabricLevel) -> bool:
    """Whether the largest message is dominated by bandwidth, and is itself as slow as the fit says."""
    assert level.nominal_gbit_s is not None
    assert level.alpha_us is not None
    sweep = [point for point in level.curve if point.collective == "all_reduce"]
    largest = max(sweep, key=lambda point: point.bytes)
    fixed_us = 2 * (level.world_size - 1) * level.alpha_us.value
    fastest = largest.busbw_gbit_s.high
    slow = fastest is not None and fastest <= SLOW_PATH * level.nominal_gbit_s
    return slow and fixed_us < LATENCY_SHARE * largest.time_us.value


def _shares(loss: Loss) -> list[tuple[str, Measured]]:
    """(cause, share), largest first. A difference between arms is ranked by the lower end of its interval.

    It therefore comes before a stamped cause only where it is larger beyond its own error. For example, very many
    small messages cost waiting (stamped) and also slow compute down (a difference); both have the same remedy.
    """

    def size(item: tuple[str, Measured]) -> float:
        cause, share = item
        return (share.low or 0.0) if cause in BETWEEN_ARMS else share.value

    shares = [(cause, getattr(loss, cause)) for cause in _CAUSES]
    return sorted(((c, s) for c, s in shares if s is not None), key=size, reverse=True)


def _undecided(point: Point, why: str) -> Verdict:
    shares = dict(_shares(point.loss)) if point.loss else {}
    return undecided(point.world_size, why, *uncertain(shares))


def uncertain(shares: Mapping[str, Measured], *, above: float = NOTABLE) -> tuple[str, ...]:
    """What to say of the largest term of a loss, where no cause is named for it and it is larger than `above`."""
    cause = max(shares, key=lambda name: shares[name].value, default="")
    if not cause or not max(NOTABLE, above) < shares[cause].value <= 1:
        return ()
    name = cause.replace("_", " ")
    return (f"the largest term, which is not certain, is {name}: {shares[cause].value:.0%} of the step",)


def _beside_larger(first: Verdict, point: Point, clear: Collection[str]) -> Verdict:
    """The first cause; where a larger term than it is not among the clear ones, it says so and is a hint."""
    if first.share is None or point.loss is None:
        return first
    others = {cause: share for cause, share in _shares(point.loss) if cause not in clear}
    more = uncertain(others, above=first.share.value)
    return dataclasses.replace(first, confidence="low", evidence=(*first.evidence, *more)) if more else first
