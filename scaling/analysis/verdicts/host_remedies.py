"""Remedies that depend on what was measured of the host, the input, the optimizer and the ranks' tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from scaling.analysis.predict.change import Change
from scaling.analysis.results import Measured, Point, TokenBalance, Verdict
from scaling.settings.run import Spec
from scaling.units import significant

HEADROOM = 1.25
"""The advised workers are busy four fifths of the time, which leaves room for batches that take longer."""
FEWER_UPDATES = "half as many optimizer steps for the same samples; check the loss"
ALL_READY = "if every batch is ready when its step begins"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A remedy before its gain is predicted; `change` is None where the simulation cannot predict one."""

    code: str
    overrides: str = ""
    """Empty where the harness has no override key for it."""
    change: Change | None = None
    gain: Measured | None = None
    """Where arithmetic on what was measured gives it, and no simulation is needed."""
    assumes: str = ""
    """What the gain takes for granted, or what else the remedy changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the ranks of a host share. 0 and an empty text are unknown."""

    cores: int = 0
    numa_nodes: int = 0
    ranks_per_device: int = 1
    torch: str = ""
    """Its version."""


UNKNOWN = Host()


def own_cores(point: Point, spec: Spec, host: Host) -> Iterator[Offer]:
    """Fewer threads or a NUMA node for each rank, where the host leaves room for either."""
    if host.ranks_per_device > 1:
        return
    ranks = max(spec.topology.shares(point.world_size))
    threads = max(1, host.cores // ranks)
    if spec.topology.device == "cpu" and (not host.cores or spec.threads > threads):
        number = str(threads) if host.cores else "cores // ranks"
        yield Offer(
            overrides=f"threads={threads}" if host.cores else "",
            code=f"torch.set_num_threads({number}), or OMP_NUM_THREADS: {spec.threads} threads of each rank share the "
            "cores now",
        )
    if ranks > 1 and host.numa_nodes != 1:
        yield Offer(code="numactl --cpunodebind=NODE --membind=NODE, a NUMA node for each rank")


def less_often(spec: Spec, world_size: int) -> Offer:
    """Twice the samples for each reduction and update. Sharded training's is not simulated."""
    steps = spec.accumulation_steps * 2
    key, value = spec.batch_setting
    batch = spec.batch_at(world_size)
    change = Change(accumulation=steps, batch=batch * 2, whole_batch=2.0 if spec.mode == "strong" else 1.0)
    code = f"reduce gradients once in {steps} batches: with ddp.no_sync(): around the others"
    if spec.parallel.sharded:
        code = "module.set_requires_gradient_sync(False) in every micro-step but the last"
    if spec.parallel.name == "tp":
        code = f"optimizer.step() once in {steps} batches"
    return Offer(
        overrides=f"accumulation_steps={steps} {key}={value * 2}",
        code=code,
        # An own loop may not state its batch.
        change=change if batch and not spec.parallel.sharded else None,
        assumes=FEWER_UPDATES,
    )


def fed(point: Point, spec: Spec, host: Host, *, own_loop: bool) -> Iterator[Offer]:
    """Batches made beside the training, where nothing is known of the loader but how long a step waits for it."""
    waits, step = point.parts_ms.input, point.step_ms
    if waits is None or step is None or waits.value >= step.value:
        return
    workers = max(1, math.ceil(HEADROOM * waits.value / (step.value - waits.value)))
    ranks = max(spec.topology.shares(point.world_size))
    yield Offer(
        overrides="" if own_loop or not spec.inject.input_ms else "inject.input_ms=0",
        code=f"DataLoader(dataset, num_workers={workers}, persistent_workers=True), or more than now if it has as "
        f"many: a step {'spends' if own_loop else 'waits'} {significant(waits.value)} of {significant(step.value)} ms"
        + " before its forward"
        * own_loop,
        gain=saved(point.loss.input if point.loss else None),
        assumes=f"{ALL_READY}, and nothing else runs before the forward" if own_loop else ALL_READY,
    )
    if host.cores and ranks * (workers + 1) > host.cores:
        yield Offer(
            code="if making a batch takes processor time, make samples cheaper (decode, resize or cache them "
            f"beforehand): a host has {host.cores} cores for {ranks} ranks and their data workers"
        )
    if spec.topology.device != "cpu":
        yield Offer(code="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)")


def saved(share: Measured | None) -> Measured | None:
    """Throughput over the present one if a share of the step were saved; None without an interval."""
    if share is None or share.interval is None:
        return None
    return share.mapped(lambda x: 1 / (1 - min(x, 0.99)))


def lighter_optimizer(point: Point, spec: Spec) -> Iterator[Offer]:
    """One kernel for all parameters, and the update shared among the ranks where sending the result takes less."""
    if not spec.fused_optimizer:
        code = "fused=True, or foreach=True where that is missing: torch.optim.AdamW(params, ..., fused=True)"
        yield Offer(overrides="fused_optimizer=true", code=code)
    comm, spent, step, n = point.comm, point.parts_ms.optimizer, point.step_ms, point.world_size
    if n == 1 or not (spent and step and comm and comm.gradient_bytes and comm.busbw_gbit_s):
        return
    less = spent.value * (1 - 1 / n)
    sent = comm.gradient_bytes * 8 * (n - 1) / n / comm.busbw_gbit_s.value / 1e6
    if sent < less / 2:
        yield Offer(
            code="torch.distributed.optim.ZeroRedundancyOptimizer(params, optimizer_class=..., lr=...): "
            f"each rank updates 1/{n} of the parameters",
            gain=Measured(step.value / (step.value - less + sent)),
            assumes=f"if that saves {significant(less)} ms and sending the parameters at the gradients' "
            "bandwidth takes "
            f"{significant(sent)} ms",
        )


AT_MOST = "at most"
"""With this an assumption begins under which a gain is an upper bound."""
UNEQUAL = 1.01
"""Ranks whose fullest has less than this many times the mean rank's tokens have equal batches."""


def token_evidence(point: Point) -> Iterator[str]:
    """What a token takes, how unequal the ranks' tokens are, and what that costs."""
    tokens = point.tokens
    if tokens is None or tokens.per_token_us is None or tokens.saves_ms is None or point.step_ms is None:
        return
    square = tokens.per_square_us
    squares = f" and {significant(square.value)} us a squared one" if square else ""
    yield (
        f"the ranks' lateness follows their tokens: {significant(tokens.per_token_us.value)} us a "
        f"token{squares}; balancing "
        f"them would save {tokens.saves_ms} of {significant(point.step_ms.value)} ms"
    )
    more = f"{tokens.most_over_mean.value - 1:.0%} more than the mean rank"
    counted = f"; the mean rank has {tokens.per_step.value:.4g} tokens"
    if square:
        yield f"by the time that they take, the rank with most in a step has {more}{counted}"
    else:
        yield f"the rank with most tokens in a step has {more}{counted}"
    if tokens.rank is not None and tokens.rank_extra is not None:
        more = f"{tokens.rank_extra.value:.4g} {'tokens that take as long ' if square else ''}more than the mean rank"
        yield f"rank {tokens.rank} has most over all steps, {more}"


def evened(point: Point) -> tuple[Offer, ...]:
    """Batches of equal work, whose gain is what waiting for the fuller ranks costs."""
    gain = saved(point.loss.imbalance if point.loss else None)
    even = "if every rank has the mean of its step's tokens"
    dealt = (
        "bucket by length: sort a pool of samples by length and cut it into batches, and give all ranks neighbouring "
        "batches of it in the same step"
    )
    counted = "batch by tokens in place of samples: pack or cut sequences so that each rank's step has the same number"
    return tuple(Offer(code=code, gain=gain, assumes=even) for code in (dealt, counted))


def or_fuller(verdict: Verdict, point: Point) -> Verdict:
    """A straggler's verdict, doubted where the late rank has more tokens and these may be why."""
    tokens, late = point.tokens, point.straggler
    if tokens is None or late is None or late.rank != tokens.rank or tokens.rank_extra is None:
        return verdict
    if tokens.most_over_mean.value < UNEQUAL or not _may_explain(tokens, late.cost_ms.value):
        return verdict
    why = (
        "the number does not vary enough from step to step to tell"
        if tokens.per_token_us is None
        else f"a token takes {tokens.per_token_us} us"
    )
    doubt = (
        f"undecided whether it is slow or has more to do: it has {tokens.rank_extra.value:.4g} tokens more a step than "
        f"the mean rank's {tokens.per_step.value:.4g}, and {why}"
    )
    return verdict.as_hint(doubt)


def _may_explain(tokens: TokenBalance, cost_ms: float) -> bool:
    """Whether the rank's tokens may be half of what it costs or more, by what is known of the time a token takes."""
    if tokens.per_token_us is None or tokens.rank_extra is None:
        return True
    if tokens.per_token_us.surely_above(0):  # then the straggler is what tokens leave
        return False
    return tokens.per_token_us.most * tokens.rank_extra.value / 1e3 > cost_ms / 2
