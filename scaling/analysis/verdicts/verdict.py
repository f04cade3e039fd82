"""Name the causes of lost efficiency at one world size, with confidence, evidence and remedies. Pure.

A device that comes to a collective as soon as the host has enqueued it has finished all that was launched before. Where
that is so at most of a step's buckets, the step takes what the host needs to launch it, with one rank as with many: it
is no loss of scaling, but time that a setting can save. How much of it, the stamps do not tell: no share is given.

What high, medium and low promise (docs/verdicts.md):

Of 100 runs in which nothing is lost, at most HIGH name a cause at high confidence and MEDIUM at medium or high. So what
is a difference between arms is paid for once for all such causes of a run: their chances are adjusted by Holm's steps
(S. Holm, Scandinavian Journal of Statistics 6(2), 1979), which hold for terms that share an arm, too. A chance comes
from the spread of all arms' equal blocks, which a few rounds tell; and the cause's own interval has to agree.

What stamps within a step show (waits for data, a late rank) is not made by chance, and stands by itself. Which rank is
late is paid for where it is looked for (decompose.stragglers).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from scaling.analysis.decompose.loss import BETWEEN_ARMS
from scaling.analysis.network.channel import HOSTS_OWN
from scaling.analysis.results import FabricLevel, Loss, Measured, NcclGroup, Point, Verdict
from scaling.analysis.results.verdicts import NOTABLE, named, undecided
from scaling.analysis.statistics.rounds import beyond, chance, student
from scaling.analysis.verdicts.evidence import evidence_of, step_of_parts
from scaling.analysis.verdicts.host_remedies import UNKNOWN, Host, or_fuller
from scaling.analysis.verdicts.remedies import Gain, each_remedy_once, no_gain, remedies
from scaling.analysis.verdicts.sharded import tensor_across_hosts
from scaling.settings.parallel import PIPELINED
from scaling.settings.plan import DETAILS, Plan
from scaling.settings.schedule import nobody_alone
from scaling.units import significant

NOISE = "no cause stands clear of the noise"
OPTIMIZER_NOTABLE = 0.1
"""An optimizer that surely takes a larger share of the step is worth changing."""
BY_TURNS = "ranks late by turns"
ONE_BATCH = (
    "the loop's steps are compared with a baseline's, which ran at another time and on one batch for all, so this is a "
    "hint, not a finding"
)
SCALES_WELL = 0.90
"""An efficiency whose whole interval lies above this needs no remedy."""

SLOW_PATH = 0.6
"""If large messages reach less than this share of the nominal rate, the data take a slower path than promised."""

LATENCY_SHARE = 0.2
"""A message with a larger share of fixed costs in its time does not show the link's bandwidth."""

_CAUSES = tuple(f.name for f in dataclasses.fields(Loss) if f.name not in ("slower_compute", "unexplained"))


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
    spent, step, late = point.parts_ms.optimizer, point.step_ms, point.straggler
    if point.world_size != plan.ranks or spent is None or step is None:
        return ()
    if late is not None and late.phase == "optimizer":  # the mean has what it is late by
        return ()
    share = spent / step.value
    if not share.surely_above(OPTIMIZER_NOTABLE):
        return ()
    takes = f"the optimizer takes {significant(spent.value)} of {significant(step.value)} ms"
    parallel = plan.spec.parallel
    takes += "" if parallel.sharded or parallel.name == PIPELINED else ", with one rank as with many"
    return (named("optimizer", point, share, (takes,), remedies("optimizer", point, plan, gain)[0]),)


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
    late, step_ms = point.straggler, step_of_parts(point)[1]
    unnamed = dict(shares)
    if late is not None and step_ms and "straggler" in unnamed:
        # The loss has what all ranks cost that are late by turns, too.
        its_own = late.cost_ms / step_ms
        unnamed[BY_TURNS] = unnamed["straggler"] - its_own
        shares = _by_size((cause, its_own if cause == "straggler" else share) for cause, share in shares)
    families = sum(trial.world_size > 1 for trial in plan.trials)
    clear = confidences(dict(shares), point, families)
    if point.straggler is None:
        clear.pop("straggler", None)
    causes = []
    for cause, share in shares:
        if cause in clear:
            tried, nothing = remedies(cause, point, plan, gain, host)
            evidence = (*evidence_of(cause, point, level, host.ranks_per_device), *nothing)
            verdict = named(cause, point, share, evidence, tried, clear[cause])
            if cause == "straggler":
                verdict = or_fuller(verdict, point)
            elif cause == "overlap" and plan.kind.followed:
                verdict = verdict.as_hint(ONE_BATCH)
            causes.append(verdict)
    if causes:
        return (_beside_larger(causes[0], {c: s for c, s in unnamed.items() if c not in clear}), *causes[1:])
    if point.efficiency is not None and point.efficiency.surely_above(SCALES_WELL):
        efficiency = f"efficiency {point.efficiency.low:.1%} to {point.efficiency.high:.1%}"
        return (named("scales_well", point, None, (efficiency,), confidence="high"),)
    if not plan.kind.followed and not (plan.content.has(DETAILS) and _shares(point.loss)):
        why = f"the time held nothing that tells causes apart; {_longer(plan)}"
        return (undecided(point.world_size, why),)
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
    reached, most = level.busbw_gbit_s, SLOW_PATH * level.nominal_gbit_s
    if reached.high is None or reached.high > most or not _saturating(level, most):
        return ()
    lost = point.loss.link_bandwidth if point.loss else None
    copies = plan.spec.topology.backend in HOSTS_OWN
    path = (f"NCCL's log names {', '.join(nccl.transports)}",) if nccl and nccl.transports else ()
    evidence = (
        f"large messages reach {significant(reached.value)} Gbit/s over the {level.name}, "
        f"but the topology promises {significant(level.nominal_gbit_s)}",
        "the traffic takes a slower path than the topology promises, or one host's link is slow",
        *path,
        *(("or the processors cannot send faster: this back end copies every byte",) if copies else ()),
    )
    share = lost and lost * (1 - reached.value / level.nominal_gbit_s)
    tried, _ = remedies("slow_path", point, plan, no_gain)
    return (named("slow_path", point, share, evidence, tried, "medium" if copies else "high"),)


def _saturating(level: FabricLevel, most_gbit_s: float) -> bool:
    """Whether the largest message is dominated by bandwidth, and surely no faster than `most_gbit_s` itself."""
    assert level.alpha_us is not None
    sweep = [point for point in level.curve if point.collective == "all_reduce"]
    largest = max(sweep, key=lambda point: point.bytes)
    fixed_us = 2 * (level.world_size - 1) * level.alpha_us.value
    fastest = largest.busbw_gbit_s.high
    slow = fastest is not None and fastest <= most_gbit_s
    return slow and fixed_us < LATENCY_SHARE * largest.time_us.value


def _shares(loss: Loss) -> list[tuple[str, Measured]]:
    shares = ((cause, getattr(loss, cause)) for cause in _CAUSES)
    return _by_size((cause, share) for cause, share in shares if share is not None)


def _by_size(shares: Iterable[tuple[str, Measured]]) -> list[tuple[str, Measured]]:
    """(cause, share), largest first. A difference between arms is ranked by the lower end of its interval.

    It therefore comes before a stamped cause only where it is larger beyond its own error. For example, very many
    small messages cost waiting (stamped) and also slow compute down (a difference); both have the same remedy.
    """

    def size(item: tuple[str, Measured]) -> float:
        cause, share = item
        return (share.low or 0.0) if cause in BETWEEN_ARMS else share.value

    return sorted(shares, key=size, reverse=True)


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


def _beside_larger(first: Verdict, unnamed: Mapping[str, Measured]) -> Verdict:
    """The first cause; where a term that is not named is larger, it says so and is a hint."""
    if first.share is None:
        return first
    more = uncertain(unnamed, above=first.share.value)
    return first.as_hint(*more) if more else first


STARVED = 0.5
"""The device has to have caught up with the host at more than this fraction of the buckets."""
SURELY = 0.9
"""Above this fraction it is no matter of a few buckets."""
_ON_THE_DEVICE = ("link_latency", "link_bandwidth")
"""Causes that are measured as time in which the device waits."""


def launch_bound(point: Point, plan: Plan, gain: Gain) -> tuple[Verdict, ...]:
    """The finding at one world size; empty where the host is ahead, or no host launches."""
    comm = point.comm
    if comm is None or comm.starved_share is None or comm.host_lead_ms is None:
        return ()
    share = comm.starved_share
    if not share.surely_above(STARVED):
        return ()
    waits = point.parts_ms.exposed_enqueue
    lines = [
        f"at {share.value:.0%} of the buckets the device had nothing left to do when the host enqueued their "
        f"reduction: the host is {comm.host_lead_ms.value * 1e3:.0f} us ahead of it on average"
    ]
    if waits is not None:
        lines.append(
            f"a step waits {significant(waits.value)} ms for collectives to be enqueued that all ranks are ready for"
        )
    sure = "high" if share.surely_above(SURELY) else "medium"
    tried, _ = remedies("launch_bound", point, plan, gain)
    return (named("launch_bound", point, None, tuple(lines), tried, sure),)


def doubted(verdict: Verdict) -> Verdict:
    """A cause at a point that is launch-bound.

    The host goes on launching while the device waits for data, and the device catches up afterwards. So what it waited
    is no longer in the step, or not all of it, and no gain can be predicted from it.
    """
    if verdict.cause not in _ON_THE_DEVICE:
        return verdict
    why = "the step waits for the host's launches, which go on meanwhile: without this wait it may be no shorter"
    tried = tuple(dataclasses.replace(remedy, predicted_gain=None) for remedy in verdict.try_)
    return dataclasses.replace(verdict.as_hint(why), try_=tried)


HIGH, MEDIUM = 0.01, 0.05
"""Share of runs without a loss that may name a cause at that confidence."""
GROWN = ("input", "host")
"""Phases: in which one rank alone was measured too, the difference from its."""


def confidences(shares: Mapping[str, Measured], point: Point, families: int = 1) -> dict[str, str]:
    """`high` or `medium` for each cause that is named; the others are not sure enough. `shares`: of the step, by cause.

    `families`: world sizes of the run that are asked for causes.
    """
    compared = [*BETWEEN_ARMS, *(GROWN if point.arms_ms.bare_one else ())]
    tested = {cause: share for cause, share in shares.items() if cause in compared}
    above = {bound: _holm(tested, point, bound, families) for bound in (0.0, NOTABLE)}
    named = {}
    for cause, share in shares.items():
        if not (share.surely_above(0) and share.value > NOTABLE):
            continue
        if cause in tested and (above[0.0][cause] > MEDIUM or not _loses(cause, share, point)):
            continue
        sure = share.surely_above(NOTABLE) and _rest_is_known(share, point)
        sure = sure and above[NOTABLE].get(cause, 0.0) <= HIGH
        if cause == "straggler" and point.straggler is not None:
            sure = sure and chance(point.straggler.skew_ms) * point.world_size * families <= HIGH
        named[cause] = "high" if sure else "medium"
    return named


def confidence_of(share: Measured, tests: int) -> str:
    """`high` or `medium` for a share that is one of `tests` differences; empty where chance makes it too easily."""
    if not share.surely_above(0) or share.value <= NOTABLE or chance(share) * tests > MEDIUM:
        return ""
    return "high" if share.surely_above(NOTABLE) and chance(share, NOTABLE) * tests <= HIGH else "medium"


def _holm(shares: Mapping[str, Measured], point: Point, bound: float, families: int) -> dict[str, float]:
    """Each cause's chance if it costs no more than `bound`, adjusted for all of them in all `families`."""
    each = sorted((_chance(cause, share, point, bound), cause) for cause, share in shares.items())
    adjusted: dict[str, float] = {}
    most = 0.0
    for place, (probability, cause) in enumerate(each):
        most = max(most, min(1.0, probability * (len(each) - place) * families))
        adjusted[cause] = most
    return adjusted


def _chance(cause: str, share: Measured, point: Point, bound: float) -> float:
    apart = point.overhead.equal_arms_apart
    if cause not in BETWEEN_ARMS or apart is None or apart.value <= 0:
        return chance(share, bound)
    of_all_arms = beyond((share.value - bound) / apart.value * student(apart.n), apart.n)
    # At high confidence both have to agree.
    return max(of_all_arms, chance(share, bound)) if bound else of_all_arms


def _loses(cause: str, share: Measured, point: Point) -> bool:
    """Whether a difference between arms exceeds that of equal blocks, in a step that is surely slower than alone."""
    if cause not in BETWEEN_ARMS:
        return True
    slower = point.efficiency is None or point.efficiency.surely_below(1)
    return slower and share.value > point.overhead.floor


def _rest_is_known(share: Measured, point: Point) -> bool:
    """Whether the efficiency (or the share itself, without one) and the rest are known well enough to be sure."""
    rest = point.loss.unexplained if point.loss else None
    explained = rest is None or abs(rest.value) < share.value
    headline = point.efficiency or share
    return explained and (headline.half_width or 0.0) <= share.value / 2
