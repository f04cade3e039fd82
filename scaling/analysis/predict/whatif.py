"""Simulate a measured step under other settings, from its own measured pieces.

The pieces are each rank's phases, when each gradient is ready, and the link's alpha and beta. The step is

    simulated(changed) x measured / simulated(as it was)

so with nothing changed it is the measured step. Without `residual_follows` it is simulated(changed) + measured -
simulated(as it was). At world size 1 it is a sum of phases. docs/predict.md derives the terms.

Arrays lead with S: the estimate first, then values resampled over rounds. R ranks, K buckets; ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.analysis.network.channel import ONE
from scaling.analysis.network.curve import ring_times
from scaling.analysis.network.replay import Replay
from scaling.analysis.predict.change import (
    NO_CHANGE,
    UNVARIED,
    Change,
    Lean,
    Phases,
    Source,
    bucketed,
    stretches,
)
from scaling.analysis.statistics.rounds import Floats, latest

OWN_WORK = ("forward", "compute", "optimizer")
OVERLAP_MAX = 4.0
"""The slowdown of compute by communication is at most this many times the measured one."""
PEERS = -1
"""Index of the typical ranks' mean, which `_replay` appends to the ranks as their last column."""


def outcome(source: Source, change: Change, lean: Lean = UNVARIED) -> dict[str, Floats]:
    """`step` (ns), `efficiency`, `gain` (samples/s a rank over the measured) and each loss by cause, S each."""
    if (change.world_size or source.world_size) == 1:
        every = stretches(len(source.plain), source.world_size)
        parts = [_alone(source.part(at), change, lean) for at in every]
    else:
        was, target = _target(source, NO_CHANGE, UNVARIED), _target(source, change, lean)
        every = stretches(
            len(source.plain), max(each.world_size * each.ready.shape[1] for each in (was, target))
        )
        parts = [_together(source.part(at), was.part(at), target.part(at), change, lean) for at in every]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _together(part: Source, was: _Target, target: _Target, change: Change, lean: Lean) -> dict[str, Floats]:
    """`outcome` above world size 1, for a stretch of the S."""
    ranks = part.peers, part.solo.means(), part.probe.means()
    as_measured = _run(ranks, was)
    # NCCL's slowdown of compute scales with the overlap, Gloo's is constant.
    overlap_scales = part.kernels != lean.overlap_rule_swapped
    as_changed = _run(ranks, target, as_measured.hidden if overlap_scales else None)
    over_simulated = part.plain / as_measured.period if lean.residual_follows else np.ones_like(part.plain)
    step = as_changed.period * over_simulated
    step = step if lean.residual_follows else step + (part.plain - as_measured.period)
    factor, ranks_sharing_batch = target.factor, target.world_size if part.shared else 1
    whole = sum((part.whole[p] * target.whole_factor[p] for p in part.whole), np.zeros(1))
    alone = sum((part.alone[p] * factor[p] for p in part.alone), np.zeros(1))
    solo, probe = (_typical(part.peers, phases) for phases in ranks[1:])

    def grown(later: Phases, earlier: Phases, *phases: str) -> Floats:
        return sum(((later[p] - earlier[p]) * factor[p] for p in phases), np.zeros(1))

    slower = sum((probe[p] - solo[p] for p in ("forward", "compute")), np.zeros(1))
    exposed_ns = as_changed.exposed * over_simulated
    latency = target.latency_share
    costs = {
        "neighbours": grown(part.beside, part.alone, *OWN_WORK),
        "strategy_overhead": grown(solo, part.beside, *OWN_WORK),
        "straggler": (as_changed.period - as_changed.period_typical) * over_simulated,
        "link_latency": exposed_ns * latency,
        "link_bandwidth": exposed_ns * (1 - latency),
        "overlap": slower * target.overlaps * as_changed.slowed,
        "input": grown(probe, part.alone, "input"),
        "host": grown(probe, part.alone, "host"),
    }
    if part.shared:
        costs["small_batch"] = alone - whole / ranks_sharing_batch
    efficiency = whole / (ranks_sharing_batch * step)
    loss = {name: cost / step for name, cost in costs.items()}
    loss["unexplained"] = 1 - efficiency - sum(loss.values(), np.zeros(1))
    samples = _samples(part, change)
    return {"step": step, "efficiency": efficiency, "gain": samples * part.plain / step, **loss}


def _typical(peers: list[int], of_ranks: Phases) -> Phases:
    """S: the mean of the ranks that are not late."""
    return {phase: values[:, peers].mean(axis=1) for phase, values in of_ranks.items()}


def _alone(part: Source, change: Change, lean: Lean) -> dict[str, Floats]:
    """`outcome` at world size 1, for a stretch of the S: no neighbours, no link, only DDP's own cost."""
    samples = _samples(part, change)
    factor = _factors(part, change, lean, samples)
    solo = _typical(part.peers, part.solo.means())
    alone = sum((part.alone[p] * factor[p] for p in part.alone), np.zeros(1))
    overhead = sum(((solo[p] - part.beside[p]) * factor[p] for p in OWN_WORK), np.zeros(1))
    step = alone + overhead
    return {
        "step": step,
        "efficiency": alone / step,
        "gain": samples * part.plain / step,
        "strategy_overhead": overhead / step,
        "unexplained": np.zeros_like(step),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A change and its assumptions, applied to the source."""

    world_size: int
    ranks: Sequence[int]
    """The source's rank whose times each rank gets, or PEERS."""
    typical: Sequence[bool]
    micro_steps: int
    reductions: int
    factor: Mapping[str, float]
    """Factor on each phase's time."""
    whole_factor: Mapping[str, float]
    overlaps: float
    """Factor on what communication slows compute by, which grows with the reductions and not with the samples."""
    ready: Floats  # S x K: parts of backward
    transfer: Floats  # S x K
    latency_share: Floats  # S
    waits: Floats  # S: for the latest of more ranks than there were

    def part(self, stretch: slice) -> _Target:
        """A stretch of the S."""
        return replace(
            self,
            ready=self.ready[stretch],
            transfer=self.transfer[stretch],
            latency_share=self.latency_share[stretch],
            waits=self.waits[stretch],
        )


def _target(source: Source, change: Change, lean: Lean) -> _Target:
    n = change.world_size or source.world_size
    micro_steps = change.accumulation or source.accumulation
    cap = change.bucket_cap_mb
    buckets = source.buckets if cap is None else bucketed(source.gradients, cap)
    sizes = [size * source.wire / change.compression for size in buckets.sizes]
    fixed, moved = ring_times(change.fabric or (source.link,), n, sizes)
    if change.fabric is None and n == source.world_size:
        # The measured curve itself; alpha and beta only divide it.
        times = np.stack([source.curve.at(size) for size in sizes], axis=-1)
        fixed = np.clip(fixed, 0.0, times)
        moved = times - fixed
    shape = len(source.plain), len(sizes)  # figures of a topology are the same for all S
    fixed, moved = (
        np.broadcast_to(times[: shape[0]], shape) for times in (fixed * lean.alpha, moved * lean.transfer)
    )
    peers, late = source.peers, set(source.late)
    ranks: Sequence[int] = range(n)
    if n > source.world_size:
        ranks = [r if r < source.world_size else peers[r % len(peers)] for r in range(n)]
    typical = [change.without_straggler or r not in late for r in ranks]
    if change.without_straggler and late:
        ranks = [PEERS if r in late else r for r in ranks]
    later = latest(n) - latest(source.world_size)
    measured = source.accumulation if source.reductions > 1 else 1
    reductions = change.reductions or (micro_steps if source.reductions > 1 else 1)
    factor = whole_factor = _factors(source, change, lean, _samples(source, change))
    if source.shared:
        whole_factor = _factors(source, change, lean, change.whole_batch, source.whole_share)
    return _Target(
        world_size=n,
        ranks=ranks,
        typical=typical if any(typical) else [True] * n,
        micro_steps=micro_steps,
        reductions=reductions,
        factor=factor,
        whole_factor=whole_factor,
        overlaps=reductions / measured * lean.compute / change.compute_scale,
        ready=buckets.ready,
        transfer=np.maximum(fixed + moved, 0.0),
        latency_share=np.clip(fixed.sum(axis=1) / np.maximum((fixed + moved).sum(axis=1), 1.0), 0.0, 1.0),
        waits=source.jitter * lean.jitter * later / change.compute_scale,
    )


def _factors(
    source: Source, change: Change, lean: Lean, samples: float, own_share: float = 1.0
) -> Mapping[str, float]:
    """Factor on each phase's time where `samples` times as many samples are computed.

    `own_share`: a rank's own time over the time of the batch in question; the fixed part is a smaller share of that.
    """
    steps = (change.accumulation or source.accumulation) / source.accumulation
    fixed = min(1.0, (source.fixed_share or 0.0) + lean.fixed_off) * own_share
    # The sum over micro-steps of fixed + (1 - fixed) x (a micro-step's samples over the measured micro-step's).
    grown = steps * fixed + (1 - fixed) * samples
    faster = lean.compute / change.compute_scale
    return {
        "input": samples,
        "forward": grown * faster,
        "compute": grown * faster,
        "optimizer": faster,
        "host": 1.0,
    }


def _samples(source: Source, change: Change) -> float:
    """How many times as many samples; 1 where an own loop does not state its batch."""
    return (change.batch or source.batch) / source.batch if source.batch else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """A simulated step, S each."""

    period: Floats
    period_typical: Floats
    exposed: Floats
    """Transfer after the end of compute, if no rank is late."""
    hidden: Floats
    """Transfer during compute."""
    slowed: Floats
    """The slowdown of compute by communication, relative to that in the source."""


_Own = tuple[list[int], Phases, Phases]
"""The ranks that are not late; the phases of ddp_solo and of the probe, S x R."""


def _run(ranks: _Own, target: _Target, hidden_before: Floats | None = None) -> _Ran:
    slowdown = np.ones_like(target.waits)
    replay, earlier_exposed = _replay(ranks, target, slowdown)
    typical = np.array(target.typical)
    _, exposed = replay.at_mean_of(typical)
    hidden = target.transfer.sum(axis=1) - exposed
    if hidden_before is not None:
        slowdown = np.clip(hidden / np.maximum(hidden_before, 1.0), 0.0, OVERLAP_MAX)
        slowdown = np.where(hidden_before > 1.0, slowdown, 1.0)
        replay, earlier_exposed = _replay(ranks, target, slowdown)
        _, exposed = replay.at_mean_of(typical)
    period = replay.period()
    late = np.flatnonzero(~typical)
    return _Ran(
        period=period,
        period_typical=replay.without(late.tolist()).period() if len(late) else period,
        exposed=exposed + earlier_exposed,
        hidden=hidden,
        slowed=slowdown,
    )


def _replay(ranks: _Own, target: _Target, slowdown: Floats) -> tuple[Replay, Floats]:
    """The steps, and exposed transfer of their earlier micro-steps, S."""
    peers, solo, probe = ranks

    def of_ranks(phases: Phases, phase: str) -> Floats:
        values = phases[phase]
        if target.ranks == range(values.shape[1]):
            return values * target.factor[phase]
        every = np.concatenate([values, values[:, peers].mean(axis=1, keepdims=True)], axis=1)
        stretched: Floats = every[:, list(target.ranks)] * target.factor[phase]
        return stretched

    def slowed(phase: str) -> Floats:
        quick = of_ranks(solo, phase)
        extra = (of_ranks(probe, phase) - quick) * (target.overlaps / target.factor[phase])
        slowed_ns: Floats = quick + extra * slowdown[:, None]
        return slowed_ns

    backward = slowed("compute") / target.micro_steps
    earlier = target.ready * backward.mean(axis=1, keepdims=True)
    exposed = np.maximum(ONE.last_done(earlier, target.transfer) - backward.mean(axis=1), 0.0)
    exposed = exposed * (target.reductions - 1)
    tail = of_ranks(probe, "optimizer") + of_ranks(probe, "host") + of_ranks(probe, "input")
    before = (
        tail + slowed("forward") + backward * (target.micro_steps - 1) + (target.waits + exposed)[:, None]
    )
    ready = before[:, :, None] + target.ready[:, None, :] * backward[:, :, None]
    return Replay(ready=ready, compute_end=before + backward, transfer=target.transfer), exposed
