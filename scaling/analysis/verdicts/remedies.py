"""Remedies for a cause: exact overrides, the line for one's own code, and the change that the simulation predicts.

Those are offered that the simulation does not speak against, each once. Whether one held: its plain steps against those
of the present settings, measured in turns. The gain is a ratio of throughputs, paired by round (blocks of one launch)
or by pair of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.predict.change import Change
from scaling.analysis.results import SCHEMA, Measured, Point, Remedy, Verdict, Verification
from scaling.analysis.statistics.rounds import Floats, Rounds
from scaling.analysis.verdicts import host_remedies
from scaling.analysis.verdicts.evidence import with_latency
from scaling.analysis.verdicts.host_remedies import (
    AT_MOST,
    FEWER_UPDATES,
    UNKNOWN,
    Host,
    Offer,
    fed,
    less_often,
    lighter_optimizer,
    own_cores,
)
from scaling.analysis.verdicts.sharded import replicated, sharded_link
from scaling.settings.parallel import OWN, PIPELINED
from scaling.settings.plan import Plan
from scaling.settings.run import Spec
from scaling.settings.schedule import PLAIN, VARIANT

BUCKET_CAP_MB = 25.0
"""torch's default, MiB."""
_OF_DDP = ("optimizer", "communication", "link_bandwidth", "link_latency", "strategy_overhead")


def offers(cause: str, point: Point, plan: Plan, host: Host = UNKNOWN) -> tuple[Offer, ...]:
    """Remedies for a cause at one world size, the most promising first."""
    spec = plan.spec
    if spec.parallel.name == OWN and cause in _OF_DDP:
        return ()  # how it sends its gradients is not known
    if cause == "neighbours":
        return tuple(own_cores(point, spec, host))
    if cause == "input":
        return tuple(fed(point, spec, host, own_loop=plan.kind.followed))
    if cause == "launch_bound":
        return tuple(_fewer_launches(spec, point.world_size))
    fewer = less_often(spec, point.world_size)
    if cause == "optimizer":
        return (*lighter_optimizer(point, spec), *([] if spec.parallel.name == PIPELINED else [fewer]))
    if spec.parallel.sharded and cause in ("communication", "link_bandwidth", "link_latency"):
        return sharded_link(point, spec, host.torch)
    if spec.parallel.sharded and cause == "strategy_overhead":
        return (replicated(spec),)
    once = _without_sync(point, spec)
    if cause == "communication":
        return once or (fewer,)
    if cause == "link_bandwidth":
        unsplit = [_larger_buckets(spec)] if with_latency(point) else []
        return once or (fewer, *_narrower_wire(spec), *unsplit)
    if cause == "link_latency":
        return (*(once or (_larger_buckets(spec),)), fewer)
    if cause == "strategy_overhead":
        return tuple(_lighter_ddp(spec))
    if cause == "straggler" and point.straggler is not None:
        return (_late_rank(point.straggler.rank, point.straggler.phase),)
    if cause == "imbalance":
        return host_remedies.evened(point)
    if cause == "small_batch":
        batch = spec.global_batch * 2
        each = batch // point.world_size
        larger = Offer(
            overrides=f"global_batch={batch}",
            code=f"DataLoader(dataset, batch_size={each}, ...)",
            change=Change(batch=each, whole_batch=2.0),
            assumes=FEWER_UPDATES,
        )
        return (larger,)
    return (Offer(code=_BY_HAND[cause]),) if cause in _BY_HAND else ()


_BY_HAND = {
    "overlap": "on NCCL, leave more of the device to compute: NCCL_MAX_CTAS=8 in the environment; on a CPU, leave a "
    "core to communication: torch.set_num_threads(threads - 1)",
    "host": "torch.compile(model), or torch.cuda.make_graphed_callables; no .item(), print or logging in the step",
    "clocks": "nvidia-smi -q -d PERFORMANCE shows what lowers the clocks: power cap, heat, or a fixed clock",
    "slow_path": "compare the path that is taken (NCCL: its log in the fabric section; Gloo: GLOO_SOCKET_IFNAME) with "
    "the paths that exist (nvidia-smi topo -m)",
}
"""Remedies without an override key."""


def _without_sync(point: Point, spec: Spec) -> tuple[Offer, ...]:
    """no_sync, where gradients are reduced more than once a step."""
    if point.comm is None or (point.comm.reductions or 1) == 1:
        return ()
    once = Offer(
        overrides="inject.wrong_no_sync=false" if spec.inject.wrong_no_sync else "",
        code="with ddp.no_sync(): around forward and backward of every micro-step but the last",
        change=Change(reductions=1),
    )
    return (once,)


def _narrower_wire(spec: Spec) -> Iterator[Offer]:
    """Gradients in bf16: half the bytes with the range of fp32. The simulation leaves out the cost of casting."""
    if spec.ddp.comm_hook == "none":
        yield Offer(
            overrides="ddp.comm_hook=bf16",
            code="ddp.register_comm_hook(None, default_hooks.bf16_compress_hook), from "
            "torch.distributed.algorithms.ddp_comm_hooks; check the loss",
            change=Change(compression=2.0),
            assumes="if casting to bf16 takes no time",
        )


def _larger_buckets(spec: Spec) -> Offer:
    cap = spec.ddp.bucket_cap_mb
    larger = BUCKET_CAP_MB if cap < BUCKET_CAP_MB else cap * 4
    return Offer(
        overrides=f"ddp.bucket_cap_mb={larger:g}",
        code=f"DistributedDataParallel(model, bucket_cap_mb={larger:g})",
        change=Change(bucket_cap_mb=larger),
    )


def _fewer_launches(spec: Spec, world_size: int) -> Iterator[Offer]:
    """More work for each launch, or fewer launches for the same work."""
    strong, batch = spec.mode == "strong", spec.batch_at(world_size)
    key, value = spec.batch_setting
    change = Change(batch=batch * 2, whole_batch=2.0 if strong else 1.0) if batch else None
    yield Offer(
        overrides=f"{key}={value * 2}",
        code="DataLoader(dataset, batch_size=...) with twice the batch",
        change=change,
        assumes=FEWER_UPDATES,
    )
    if not spec.compile:
        yield Offer(overrides="compile=true", code="torch.compile(model): fewer and larger kernels")
    graphs = 'torch.compile(model, mode="reduce-overhead"), or torch.cuda.make_graphed_callables'
    yield Offer(code=f"CUDA graphs: {graphs}")


def _lighter_ddp(spec: Spec) -> Iterator[Offer]:
    for name, value in (("find_unused_parameters", False), ("gradient_as_bucket_view", True)):
        if getattr(spec.ddp, name) != value:
            code = f"DistributedDataParallel(model, {name}={value})"
            yield Offer(overrides=f"ddp.{name}={str(value).lower()}", code=code)


def _late_rank(rank: int, phase: str) -> Offer:
    device = "its device or host: clocks, other processes, uneven batches (pad or sort by length)"
    where = {
        "input": "what it does before its forward: its DataLoader (more workers, faster storage, a shorter transform), "
        "or what this rank alone does there",
        "forward": device,
        "backward": device,
        "host": "what only this rank does between steps: logging, checkpoints, validation on rank 0",
    }
    return Offer(
        code=f"rank {rank} is late{'' if phase == 'step' else f' in {phase}'}: look at {where.get(phase, 'its host')}",
        change=Change(without_straggler=True),
        assumes="if that rank becomes as fast as the others",
    )


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


def each_remedy_once(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """The verdicts, each remedy with the first cause that it stands for."""
    offered: dict[tuple[str, str], str] = {}
    result = []
    for verdict in verdicts:
        new = tuple(r for r in verdict.try_ if (r.overrides, r.code) not in offered)
        above = sorted({offered[key] for r in verdict.try_ if (key := (r.overrides, r.code)) in offered})
        offered |= {(r.overrides, r.code): verdict.cause for r in new}
        also = (f"what to try for {' and '.join(above)} helps here too".replace("_", " "),) if above else ()
        result.append(replace(verdict, try_=new, evidence=(*verdict.evidence, *also)))
    return tuple(result)


def remedies(
    cause: str, point: Point, plan: Plan, gain: Gain, host: Host = UNKNOWN
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """(remedies, why there is none): what the simulation predicts no sure gain from is not offered.

    A remedy whose gain cannot be simulated is offered without one.
    """
    if cause == "neighbours" and host.ranks_per_device > 1:
        return (), ("it would take a device for each rank",)
    candidates = offers(cause, point, plan, host)
    if cause == "neighbours" and not candidates:
        return (), (f"its threads have cores of their own; it would take {_IT_WOULD_TAKE[cause]}",)
    offered: list[Remedy] = []
    useless: list[tuple[Measured, str]] = []
    for offer in candidates:
        predicted = offer.gain if offer.change is None else gain(offer.change)
        if offer.change and predicted is not None and predicted.interval is None and predicted.value > 1:
            predicted = None  # too few rounds to say by how much
        point_only = offer.gain is not None and offer.gain.interval is None
        if predicted is None or point_only or predicted.surely_above(1):
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
    if offered or not useless:
        return tuple(offered), ()
    best, what = max(useless, key=lambda pair: pair[0].value)
    within = "" if best.interval is None else f" ({best.least - 1:+.0%} to {best.most - 1:+.0%})"
    return (), (
        f"nothing here would help: the best that was simulated, {what}, is predicted to change the throughput by "
        f"{best.value - 1:+.0%}{within}; it would take {_IT_WOULD_TAKE.get(cause, 'other hardware')}",
    )


def samples_ratio(variant: Spec, spec: Spec, world_size: int) -> float:
    """Samples of a step under a variant over those of now; ranks that divide a model share theirs."""
    then, now = (
        each.batch_at(world_size) * each.parallel.mesh(world_size).data_parallel for each in (variant, spec)
    )
    return then / now


INTERLEAVED, ALTERNATING = "interleaved blocks of one launch", "alternating launches"


def interleaved(run: RunRecords) -> tuple[Measured | None, Measured | None]:
    """(gain, A/A ratio) of a launch that ran `plain` and `variant` in turns."""
    plan, n = run.plan, run.plan.ranks
    assert plan.variant is not None
    records = run.trial(n)
    samples = samples_ratio(plan.variant, plan.spec, n)
    rounds = Rounds(
        {
            "now": records.arm(PLAIN)["step"],
            "then": records.arm(VARIANT)["step"],
            "first": records.arm(PLAIN, half=0)["step"],
            "second": records.arm(PLAIN, half=1)["step"],
        },
        records.launches,
        seed=plan.spec.seed,
    )
    return (
        rounds.ratio(lambda m: samples * m["now"] / m["then"]),
        rounds.ratio(lambda m: m["first"] / m["second"]),
    )


def alternating(
    now: Floats, then: Floats, samples: float, seed: int
) -> tuple[Measured | None, Measured | None]:
    """Gain and A/A ratio from plain steps of pairs of launches. `samples`: ratio of samples per step, then to now."""
    count = min(len(now), len(then))
    pairs = Rounds({"now": now[:count], "then": then[:count]}, np.zeros(count, dtype=np.int64), seed=seed)
    twos = count // 2  # of pairs that share a launch only the first and the last would count
    halves = Rounds(
        {"first": now[: 2 * twos : 2], "second": now[1 : 2 * twos : 2]},
        np.zeros(twos, dtype=np.int64),
        seed=seed,
    )
    return (
        pairs.ratio(lambda m: samples * m["now"] / m["then"]),
        halves.ratio(lambda m: m["first"] / m["second"]) if count > 1 else None,
    )


def judge(
    plan: Plan, cause: Verdict, remedy: Remedy, gain: Measured | None, same: Measured | None, how: str
) -> Verification:
    """Held: faster by more than the A/A ratio differs from 1, and by at least the lower end of the prediction.

    A gain that is predicted as the most that there can be promises none.
    """
    floor, promised = abs(same.value - 1) if same else 0.0, remedy.predicted_gain
    least = promised.low if promised and promised.low is not None else 1.0
    least = 1.0 if remedy.assumes.startswith(AT_MOST) else least
    verdict = "not_distinguishable"
    if gain is not None and gain.differs_from(1, by=floor):
        verdict = "held" if gain.value > 1 and gain.most >= least else "not_held"
    return Verification(
        schema=SCHEMA,
        run=plan.id,
        world_size=cause.world_size,
        cause=cause.cause,
        remedy=remedy.overrides,
        code=remedy.code,
        predicted_gain=promised,
        measured_gain=gain,
        aa_floor=same,
        how=how,
        verdict=verdict,
    )
