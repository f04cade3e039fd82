"""A cluster that runs DDP, simulated from known causes: what the analysis is tested against.

`simulate` writes a run folder as workers would (scaling/records/format.py) and returns what arithmetic
says is in it. It shares no code with scaling.analysis.

Physics of a step of synchronous data parallel: every rank goes through input, forward and backward
compute, in which buckets become ready; a bucket is launched when it and all earlier ones are ready;
its collective begins when the last rank has launched it and a channel is free, is done at the same
instant everywhere, and backward() returns at the later of the rank's own compute and the last
collective; then optimizer and host. The next step begins at once: only collectives align ranks.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scaling.records import files
from scaling.records import format as records
from scaling.records import paths as store
from scaling.records.encoding import Sealer, digest
from scaling.records.run import LaunchStatus, status_of
from scaling.settings.plan import Content, Plan, Trial, make_plan
from scaling.settings.run import Measure, Model, Spec
from scaling.settings.schedule import (
    BARE_ALL,
    BARE_ONE,
    DDP_SOLO,
    FABRIC,
    PAIRS,
    PLAIN,
    PROBE,
    REPLAY,
    STEP_ARMS,
    Block,
    round_blocks,
)
from scaling.settings.topology import TCP_PAYLOAD_SHARE, Link, Topology

PHASES = ("input", "forward", "backward", "optimizer", "host")
FABRIC_BYTES = tuple(1024 * 4**k for k in range(8))  # 1 KiB ... 16 MiB
ORIGIN_NS = 10**14  # a host that has been up for a day; keeps stamps positive under any offset
GAP_NS = 2e6  # between blocks
WARMUP = 5  # steps, said in the head line
ELSEWHERE = 10_000  # added to the world size: the key of a further communicator
BURN_IN = 20  # steps until a noise-free step repeats itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients reduced together; ready when the fraction `at` of backward compute is over."""

    bytes: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that takes `extra_ns` longer in a phase, in every arm of world size 2 or more but bare_one.

    `alone`: in bare_one (and at world size 1) too, that is, slow by itself. `since`: the first round in which it is.
    """

    rank: int
    extra_ns: float
    phase: str = "forward"
    alone: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The causes. Times are ns; a noise is the standard deviation of a factor's logarithm, its mean is 1."""

    world_sizes: tuple[int, ...] = (1, 2, 4)
    hosts: int = 4
    ranks_per_host: int = 1
    mode: str = "weak"
    batch: int = 32  # a rank's samples (weak) or everyone's (strong): what the phases' times are for
    input_ns: float = 1e6
    forward_ns: float = 12e6
    backward_ns: float = 24e6
    optimizer_ns: float = 2e6
    host_ns: float = 1e6
    fixed_share: float = 0.2  # of input, forward and backward: what stays when the batch shrinks
    neighbours: float = 1.05  # forward, backward and optimizer with all ranks at work, over one alone
    ddp_ns: float = 0.5e6  # DDP's own copies and hooks, in backward
    overlap: float = 1.04  # forward and backward compute in steps that communicate, over ddp_solo
    buckets: tuple[Bucket, ...] = (
        Bucket(bytes=2**20, at=0.25),
        Bucket(bytes=2**22, at=0.6),
        Bucket(bytes=2**22, at=1.0),
    )
    alpha_ns: float = 50e3  # a hop
    beta_ns: float = 2.0  # a byte
    placement: str = "packed"
    slow_links: tuple[tuple[int, float], ...] = ()  # (host, how many times as long a byte and a hop take)
    buffers_ns: float = (
        0.0  # broadcast of buffers at the begin of forward, where ranks meet; 0: there are none
    )
    channels: int = 2  # 1: first in, first out, shown as nccl; 2: two collectives share the link, as gloo
    communicators: tuple[int, ...] = ()  # of each bucket, 0 is the world's; all share the link; empty: one
    stragglers: tuple[Straggler, ...] = ()
    tokens: tuple[float, ...] = ()  # mean of each rank's step, told in steps of the probe; empty: not told
    tokens_vary: float = 0.0  # standard deviation of their logarithm, for each rank and step by itself
    tokens_even: bool = False  # the same tokens, but those of a step shared out evenly
    token_ns: float = 0.0  # what one takes, a third of it in forward and the rest in backward
    square_ns: float = 0.0  # and what a squared one takes
    squares: bool = False  # whether the square of each step's tokens is told
    probe_light_ns: float = 30e3  # the probe's own cost a step, in backward
    probe_detailed_ns: float = 120e3
    block_noise: float = 0.01  # of compute, the same for all ranks of a block
    step_noise: float = (
        0.005  # of compute, a rank and step; makes ranks differ, which lengthens the mean step
    )
    step_rho: float = 0.5  # its autocorrelation from step to step
    link_noise: float = 0.01  # of a collective
    drift: float = 0.01  # random walk over rounds of compute and link alike, mean 1 over the run
    skew_ns: float = 20e3  # between ranks where a block, or a collective of replay and fabric, begins
    clock_offset_ns: tuple[int, ...] = ()  # by rank, ahead of true time; 0 beyond its end
    clock_drift_ppm: tuple[float, ...] = ()
    clock_bound_ns: int = 20_000
    rounds: int = 8
    detailed: tuple[int, ...] = ()  # rounds with details; empty: all
    steps: int = 10
    lead_in: int = 3
    fabric_repeats: int = 5
    seed: int = 0

    @property
    def payload(self) -> int:
        """Bytes of a step's gradients."""
        return sum(b.bytes for b in self.buckets)

    def without_noise(self) -> Truth:
        """The same causes and nothing random."""
        return replace(self, block_noise=0.0, step_noise=0.0, link_noise=0.0, drift=0.0, skew_ns=0.0)

    def without(self, *ranks: int) -> Truth:
        """The same without these ranks' extras."""
        return replace(self, stragglers=tuple(s for s in self.stragglers if s.rank not in ranks))

    def reduce_ns(self, payload: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """All-reduce with the link to itself: 2(n-1)(alpha + payload beta / n), at the pace of the slowest link."""
        n, topology = len(ranks), spec_of(self).topology
        touched = {topology.host_of(r) for r in ranks.tolist()}
        slowest = max((times for host, times in self.slow_links if host in touched), default=1.0)
        return 2 * (n - 1) * (self.alpha_ns + payload * self.beta_ns / n) * slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPoint:
    """One world size without noise and probe. Means are over the ranks that are not `late`."""

    step_ns: dict[str, float]
    """By arm; the probe's is that of light blocks. One rank runs bare_one, plain and probe only."""
    efficiency: float
    efficiency_loaded: float
    parts_ns: dict[str, float]
    """A plain step: phases (backward: its compute), exposed_transfer, exposed_skew; they add up to it."""
    parts_all_ns: dict[str, float]
    """The same over all ranks."""
    busbw_gbit_s: float | None
    """2(n-1)/n x bytes x 8 / busy time of the link: the union of [latest launch, latest done]."""
    transfer_ns: tuple[float, ...]
    """What each bucket takes alone."""
    hidden_share: float | None
    """1 - exposed transfer / busy time of the link."""
    cost_ns: dict[int, float]
    """By rank with an extra: the plain step minus the plain step without it."""
    late: tuple[int, ...]
    """The latest ranks, each of which adds more than 1 % of the step to what those before it cost; the latest first."""
    late_cost_ns: float
    """The plain step minus the plain step without all of them: of two late ranks, neither costs that by itself."""
    loss: dict[str, float]
    """By cause over the plain step; they add up to 1 - efficiency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the analysis should give back."""

    alpha_ns: float
    beta_ns: float
    points: dict[int, ExpectedPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Instants of a block's timed steps in true time, ns.

    `at`: (stamps, steps, ranks): begin, then input, forward, backward compute, backward(), optimizer and
    host over; begin and end alone where the steps are exchanges. `payload`: bytes, (collectives, steps).
    """

    ranks: np.ndarray
    at: np.ndarray
    payload: np.ndarray
    ready: np.ndarray  # (collectives, steps, ranks)
    done: np.ndarray  # (collectives, steps), the same instant on all ranks
    whole: np.ndarray  # `at` with the lead-in
    buffered: np.ndarray | None = None  # (steps), when all have the buffers; None without a broadcast
    tokens: np.ndarray | None = None  # (steps, ranks); None where they are not told

    @property
    def launch(self) -> np.ndarray:
        """Buckets are handed over in order: the latest of this and the earlier ones' ready times."""
        return np.maximum.accumulate(self.ready, axis=0)

    @property
    def end_ns(self) -> float:
        return float(self.at[-1, -1].max())

    @property
    def step_ns(self) -> np.ndarray:
        """Mean step of each rank."""
        return (self.at[-1] - self.at[0]).mean(axis=0)


# Physics


def communicates(block: Block) -> bool:
    return block.arm in (PLAIN, PROBE) and block.trial.world_size > 1


def compute_ns(truth: Truth, block: Block, ranks: np.ndarray) -> np.ndarray:
    """Own time of each phase, (phases, ranks)."""
    together = block.trial.world_size > 1 and block.arm != BARE_ONE
    batch = truth.fixed_share + (1 - truth.fixed_share) * block.trial.batch / truth.batch
    crowd = truth.neighbours if together else 1.0
    slow = truth.overlap if communicates(block) else 1.0
    ddp = truth.ddp_ns if block.arm in (DDP_SOLO, PLAIN, PROBE) else 0.0
    probe = truth.probe_detailed_ns if block.detailed else truth.probe_light_ns
    each = (
        truth.input_ns * batch,
        truth.forward_ns * batch * crowd * slow,
        (truth.backward_ns * batch * crowd + ddp) * slow + (probe if block.arm == PROBE else 0.0),
        truth.optimizer_ns * crowd,
        truth.host_ns,
    )
    own = np.repeat(np.array(each)[:, None], len(ranks), axis=1)
    for straggler in truth.stragglers:
        if block.round >= straggler.since and (together or straggler.alone):
            own[PHASES.index(straggler.phase), ranks == straggler.rank] += straggler.extra_ns
    return own


def tokens_of(truth: Truth, block: Block, ranks: np.ndarray) -> np.ndarray | None:
    """Tokens of each step and rank; None where none are told."""
    if not truth.tokens:
        return None
    rng = np.random.default_rng((truth.seed, 2, block.id))  # its own: all else stays as it is without tokens
    means = np.array(truth.tokens)[ranks]
    steps = truth.lead_in + truth.steps
    found = np.rint(means * lognormal(rng, truth.tokens_vary, (steps, len(ranks))))
    return np.repeat(found.mean(axis=1, keepdims=True), len(ranks), axis=1) if truth.tokens_even else found


def transfers(
    launch: list[float], work: list[float], channels: int, communicators: Sequence[int] = ()
) -> list[float]:
    """When each collective is done: begun in order, at most `channels` in flight on a communicator, on one link.

    `communicators`: on which each runs; empty: all on one.
    """
    done = [0.0] * len(launch)
    on = list(communicators) or [0] * len(launch)
    left: dict[int, float] = {}
    queues = {name: [b for b, other in enumerate(on) if other == name] for name in on}
    now = -math.inf
    while left or any(queues.values()):
        for name, queue in queues.items():
            while queue and launch[queue[0]] <= now and sum(on[b] == name for b in left) < channels:
                first = queue.pop(0)
                left[first] = work[first]
        free = [q[0] for name, q in queues.items() if q and sum(on[b] == name for b in left) < channels]
        arrival = min((launch[b] for b in free), default=math.inf)
        if not left:
            now = arrival
            continue
        first = min(left, key=left.__getitem__)
        finish = now + left[first] * len(left)
        until = min(finish, arrival)
        left = {b: rest - (until - now) / len(left) for b, rest in left.items()}
        if finish <= arrival:
            done[first] = finish
            del left[first]
        now = until
    return done


def lognormal(rng: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    return np.exp(sigma * rng.standard_normal(shape) - sigma**2 / 2)


def autocorrelated(rng: np.random.Generator, sigma: float, rho: float, shape: tuple[int, int]) -> np.ndarray:
    """Lognormal factors whose logarithm is AR(1) along the steps, stationary from the first on."""
    noise = rng.standard_normal(shape)
    for k in range(1, len(noise)):
        noise[k] = rho * noise[k - 1] + math.sqrt(1 - rho**2) * noise[k]
    return np.exp(sigma * noise - sigma**2 / 2)


def train(
    truth: Truth,
    block: Block,
    ranks: np.ndarray,
    rng: np.random.Generator,
    begin_ns: float,
    pace: float = 1.0,
) -> Track:
    """The timed steps of a block of training steps on one sub-group; `pace` multiplies every time."""
    steps, count = truth.lead_in + truth.steps, len(truth.buckets)
    own = compute_ns(truth, block, ranks) * pace * lognormal(rng, truth.block_noise, (1,))
    factor = autocorrelated(rng, truth.step_noise, truth.step_rho, (steps, len(ranks)))
    payload = np.array([[b.bytes] * steps for b in truth.buckets])
    work = truth.reduce_ns(payload, ranks) * pace * lognormal(rng, truth.link_noise, payload.shape)
    fraction = np.array([[b.at] for b in truth.buckets])
    at, ready = np.empty((7, steps, len(ranks))), np.empty((count, steps, len(ranks)))
    done = np.zeros((count, steps))
    tokens = tokens_of(truth, block, ranks)
    meets = communicates(block) and truth.buffers_ns > 0
    buffered = np.zeros(steps)
    now = begin_ns + truth.skew_ns * np.abs(rng.standard_normal(len(ranks)))
    for k in range(steps):
        spent = own * factor[k]
        if tokens is not None:
            each = tokens[k] * truth.token_ns + tokens[k] ** 2 * truth.square_ns
            spent[1:3] += each * pace * np.array([[1 / 3], [2 / 3]])
        at[0, k] = now
        at[1:4, k] = now + np.cumsum(spent[:3], axis=0)
        if meets:
            buffered[k] = at[1, k].max() + truth.buffers_ns * pace
            at[2:4, k] = buffered[k] + np.cumsum(spent[1:3], axis=0)
        ready[:, k] = at[2, k] + fraction * spent[2]
        at[4, k] = at[3, k]
        if communicates(block):
            launch = np.maximum.accumulate(ready[:, k].max(axis=1))
            done[:, k] = transfers(launch.tolist(), work[:, k].tolist(), truth.channels, truth.communicators)
            at[4, k] = np.maximum(at[3, k], done[:, k].max())
        at[5:, k] = at[4, k] + np.cumsum(spent[3:], axis=0)
        now = at[6, k]
    timed, payload, ready, done = (a[:, truth.lead_in :] for a in (at, payload, ready, done))
    met = buffered[truth.lead_in :] if meets else None
    told = None if tokens is None else np.rint(tokens[truth.lead_in :]).astype(np.int64)
    return Track(
        ranks=ranks, at=timed, payload=payload, ready=ready, done=done, whole=at, buffered=met, tokens=told
    )


def exchange(
    truth: Truth,
    block: Block,
    ranks: np.ndarray,
    rng: np.random.Generator,
    begin_ns: float,
    pace: float,
) -> Track:
    """Collectives one by one, ranks aligned before each: the model's buckets (replay, pairs), a size sweep."""
    if block.arm in (REPLAY, PAIRS):
        payload = np.array([[b.bytes] * truth.steps for b in truth.buckets])
    else:
        payload = np.repeat(np.array([FABRIC_BYTES]), truth.fabric_repeats, axis=1)
    late = truth.skew_ns * np.abs(rng.standard_normal((*payload.shape, len(ranks))))
    work = truth.reduce_ns(payload, ranks) * pace * lognormal(rng, truth.link_noise, payload.shape)
    taken = late.max(axis=2) + work
    done = begin_ns + np.cumsum(taken.T).reshape(payload.T.shape).T  # step by step, collective by collective
    launch = (done - taken)[:, :, None] + late
    at = np.stack([launch[0], np.broadcast_to(done[-1][:, None], launch[0].shape)])
    return Track(ranks=ranks, at=at, payload=payload, ready=launch, done=done, whole=at)


# Expectation


def alike(trial: Trial, arm: str) -> Block:
    return Block(id=0, round=0, trial=trial, arm=arm)


def steady(truth: Truth, trial: Trial, arm: str = PLAIN) -> Track:
    """Noise-free steps, from when they repeat themselves."""
    quiet = replace(truth.without_noise(), lead_in=BURN_IN, steps=4)
    return train(quiet, alike(trial, arm), np.arange(trial.world_size), np.random.default_rng(0), 0.0)


def union(begin: np.ndarray, end: np.ndarray) -> list[tuple[float, float]]:
    """Intervals merged where they touch."""
    merged: list[tuple[float, float]] = []
    for low, high in sorted(zip(begin.tolist(), end.tolist(), strict=True)):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def parts_by_rank(track: Track) -> tuple[dict[str, np.ndarray], float]:
    """Parts of the last step on each rank, and for how long the link was busy (0 without communication)."""
    at, done = track.at[:, -1], track.done[:, -1]
    busy = union(track.launch[:, -1].max(axis=1), done) if done.any() else []
    transfer = sum((np.clip(high - np.maximum(low, at[3]), 0, None) for low, high in busy), start=0 * at[3])
    spent = np.diff(at, axis=0)
    parts = dict(zip(PHASES, spent[[0, 1, 2, 4, 5]], strict=True))
    parts |= {"exposed_transfer": transfer, "exposed_skew": spent[3] - transfer}
    if track.buffered is not None:
        begin, end = at[1], track.buffered[-1]
        parts["forward"] = parts["forward"] - (end - begin)
        parts["exposed_skew"] = parts["exposed_skew"] + (begin.max() - begin)
        parts["exposed_transfer"] = parts["exposed_transfer"] + (end - begin.max())
    return parts, sum(high - low for low, high in busy)


def late_together(truth: Truth, trial: Trial, step_ns: float) -> tuple[tuple[int, ...], float]:
    """The late ranks, and what they cost together, ns."""
    extra: dict[int, float] = {}
    for s in truth.stragglers:
        if s.rank < trial.world_size > 1:
            extra[s.rank] = extra.get(s.rank, 0.0) + s.extra_ns
    latest = sorted(extra, key=lambda rank: -extra[rank])
    late, cost = (), 0.0
    for count in range(1, min(len(latest), trial.world_size // 2) + 1):
        together = step_ns - float(steady(truth.without(*latest[:count]), trial).step_ns.mean())
        if together - cost > 0.01 * step_ns:
            late, cost = tuple(latest[:count]), together
    return late, cost


def expect(truth: Truth, trial: Trial) -> ExpectedPoint:
    """Run the physics without noise, with and without each cause."""
    n, everyone = trial.world_size, np.arange(trial.world_size)
    track = steady(truth, trial)
    extras = {s.rank for s in truth.stragglers if s.rank < n and n > 1}
    cost = {
        r: float((track.step_ns - steady(truth.without(r), trial).step_ns).mean()) for r in sorted(extras)
    }
    late, late_cost = late_together(truth, trial, float(track.step_ns.mean()))
    typical = np.setdiff1d(everyone, late)
    own = {arm: compute_ns(truth, alike(trial, arm), everyone)[:, typical].mean(axis=1) for arm in STEP_ARMS}
    step = {arm: float(own[arm].sum()) for arm in (BARE_ONE, BARE_ALL, DDP_SOLO)}
    step |= {arm: float(steady(truth, trial, arm).step_ns[typical].mean()) for arm in (PLAIN, PROBE)}
    whole = alike(Trial(world_size=1, hosts=1, batch=truth.batch), BARE_ONE)
    share = n if truth.mode == "strong" else 1
    base = float(compute_ns(truth, whole, everyone)[:, typical].sum(axis=0).mean()) / share
    clean = steady(truth.without(*late), trial)
    exposed = float(parts_by_rank(clean)[0]["exposed_transfer"][typical].mean())
    latency = len(truth.buckets) * truth.alpha_ns
    latency_share = latency / (latency + truth.payload * truth.beta_ns / n)
    loss_ns = {
        "small_batch": step[BARE_ONE] - base,
        "neighbours": (own[BARE_ALL] - own[BARE_ONE])[1:4].sum(),
        "strategy_overhead": (own[DDP_SOLO] - own[BARE_ALL])[1:4].sum(),
        "straggler": step[PLAIN] - clean.step_ns[typical].mean(),
        "link_latency": exposed * latency_share,
        "link_bandwidth": exposed * (1 - latency_share),
        "overlap": (own[PLAIN] - own[DDP_SOLO])[1:3].sum(),
        "input": (own[PLAIN] - own[BARE_ONE])[0],
        "host": (own[PLAIN] - own[BARE_ONE])[4],
    }
    loss = {cause: float(ns / step[PLAIN]) for cause, ns in loss_ns.items()}
    loss["unexplained"] = 1 - base / step[PLAIN] - sum(loss.values())
    parts, busy = parts_by_rank(track)
    means = {name: float(by_rank[typical].mean()) for name, by_rank in parts.items()}
    return ExpectedPoint(
        step_ns=step,
        efficiency=base / step[PLAIN],
        efficiency_loaded=step[BARE_ALL] / step[PLAIN],
        parts_ns=means,
        parts_all_ns={name: float(by_rank.mean()) for name, by_rank in parts.items()},
        busbw_gbit_s=2 * (n - 1) / n * truth.payload * 8 / busy if busy else None,
        transfer_ns=tuple(truth.reduce_ns(np.array([b.bytes for b in truth.buckets]), everyone).tolist()),
        hidden_share=1 - (means["exposed_transfer"] - truth.buffers_ns) / busy if busy else None,
        cost_ns=cost,
        late=late,
        late_cost_ns=late_cost,
        loss=loss,
    )


# Files


def spec_of(truth: Truth) -> Spec:
    device, backend = ("cuda", "nccl") if truth.channels == 1 else ("cpu", "gloo")
    rate = round(8e9 / truth.beta_ns / TCP_PAYLOAD_SHARE)
    return Spec(
        model=Model(name="simulated", target="simulated", args={}, synthetic=True),
        topology=Topology(
            name="simulated",
            kind="local",
            hosts=truth.hosts,
            ranks_per_host=truth.ranks_per_host,
            device=device,
            backend=backend,
            link=Link(rate_bit_s=rate, source="simulated"),
            placement=truth.placement,
        ),
        world_sizes=truth.world_sizes,
        mode=truth.mode,
        batch_per_rank=truth.batch,
        global_batch=truth.batch,
        precision="fp32",
        measure=Measure(
            name="simulated",
            rounds_min=truth.rounds,
            rounds_max=truth.rounds,
            steps=truth.steps,
            lead_in=truth.lead_in,
            warmup_max=WARMUP,
            target_half_width=None,
            budget_s=3600.0,
            fabric_bytes_max=FABRIC_BYTES[-1],
            step_timeout_s=60.0,
        ),
        seed=truth.seed,
    )


class RankFiles:
    """Rank files of one launch; opened anew for each block, as there may be more than can be open at once."""

    def __init__(self, truth: Truth, plan: Plan, folder: store.LaunchFolder, plan_digest: str) -> None:
        self.truth, self.ranks, self.folder = truth, range(plan.ranks), folder
        self.blocks = dict.fromkeys(self.ranks, 0)
        self.rng = np.random.default_rng((truth.seed, 1))
        folder.path.mkdir(parents=True)
        for rank in self.ranks:
            host = plan.spec.topology.host_of(rank)
            who = {
                "schema": records.SCHEMA,
                "rank": rank,
                "host": host,
                "hostname": f"sim-{host}",
            }
            head = {"t": "head", **who, "launch": 0, "world": plan.ranks, "param_bytes": truth.payload}
            head["plan_digest"] = plan_digest
            parts = {n: plan.sub_groups(n) for n in truth.world_sizes}
            parts |= {-k: pairs for k, pairs in enumerate(plan.pairings(), 1)}
            own = {str(key): list(g) for key, groups in parts.items() for g in groups if rank in g}
            head["groups"] = {str(n): list(range(n)) for n in truth.world_sizes} | own | {"1": [rank]}
            more = {n + ELSEWHERE * c: n for n in truth.world_sizes for c in truth.communicators if c}
            head["groups"] |= {str(key): list(range(n)) for key, n in more.items()}
            head["warmup"] = {str(n): WARMUP for n in truth.world_sizes}
            head |= {"detailed": list(truth.detailed)} if truth.detailed else {}
            self.append(rank, self.sealed(line(head)))
            what = {"device": plan.spec.topology.device, "backend": plan.spec.topology.backend}
            write_facts(folder, host, who | what | {"parameter_bytes": truth.payload})
        self.write_clocks("begin", 0.0)

    def sealed(self, text: str, before: str = "") -> str:
        """A line with its seal, which covers the lines before it too."""
        sealer = Sealer()
        return sealer.pass_on(before) + sealer.seal(text)

    def append(self, rank: int, text: str) -> None:
        with self.folder.rank(rank).open("a", encoding="utf-8") as file:
            file.write(text)

    def stamps(self, instants: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """True time on the ranks' own clocks, whole ns; ranks along the last axis."""
        offset, ppm = (
            np.array([values[r] if r < len(values) else 0 for r in ranks.tolist()])
            for values in (self.truth.clock_offset_ns, self.truth.clock_drift_ppm)
        )
        return np.rint(instants * (1 + ppm * 1e-6)).astype(np.int64) + ORIGIN_NS + offset

    def write_clocks(self, when: str, now: float) -> None:
        """Offsets to rank 0's clock, off by up to a fifth of the bound, as ping-pong is."""
        own = self.stamps(np.array(now), np.array(self.ranks)).tolist()
        for rank, mine in enumerate(own):
            bound = self.truth.clock_bound_ns if rank else 0
            offset = mine - own[0] + round(bound / 5 * self.rng.uniform(-1, 1))
            clock = {"t": "clock", "at": when, "offset_ns": offset, "bound_ns": bound, "time_ns": mine}
            self.append(rank, self.sealed(line(clock)))

    def write_ends(self) -> None:
        for rank, blocks in self.blocks.items():
            self.append(rank, self.sealed(line({"t": "end", "state": "done", "blocks": blocks})))

    def write(self, block: Block, track: Track) -> None:
        """A block's steps and the block's own line, for every rank that ran it."""
        solo = block.arm == DDP_SOLO  # no other rank to wait for: launched and done as soon as ready
        group = 1 if solo else block.key
        ranks = track.ranks
        at = self.stamps(track.at, ranks)
        columns = [at[0], at[-1]]
        if block.arm in STEP_ARMS and block.arm != PLAIN:
            columns += [at[1] - at[0], at[2] - at[1], at[4] - at[2], at[5] - at[4], at[3], at[4]]
            columns.append(np.zeros_like(at[0]))  # no wait in earlier micro-steps
            if track.buffered is not None:
                end = self.stamps(np.broadcast_to(track.buffered[:, None], track.at[0].shape), ranks)
                columns += [end - at[1], at[1], end]
            if track.tokens is not None and block.arm == PROBE:
                left_out = records.STEP_FIELDS.index("tokens") - len(columns)
                nothing = np.zeros_like(track.tokens)
                columns += [*[nothing] * left_out, track.tokens]
                if self.truth.squares:
                    waits = records.STEP_FIELDS.index("squared") - records.STEP_FIELDS.index("input_wait_ns")
                    columns += [*[nothing] * waits, track.tokens**2]
        if block.detailed:
            ready = self.stamps(track.ready, ranks)
            launched = ready if solo else self.stamps(track.launch, ranks)
            done = ready if solo else self.stamps(track.done[:, :, None], ranks)
            payload = np.broadcast_to(track.payload[:, :, None], ready.shape)
            columns += [c[b] for b in range(len(ready)) for c in (payload, ready, launched, done)]
        rows = np.stack(columns, axis=-1).swapaxes(0, 1)  # rank by rank, step by step
        calls = len(track.ready) if block.detailed else 0
        on = self.truth.communicators if block.arm == PROBE else ()
        groups = [group + ELSEWHERE * c for c in on or [0] * calls]
        whole = self.stamps(track.whole, ranks)
        for k, rank in enumerate(ranks.tolist()):
            self.blocks[rank] += 1
            steps = packed_line(block, rows[k], groups[:calls])
            parameters = _parameters(track, k) if solo else []
            self.append(rank, self.sealed(block_line(block, whole[:, :, k], at.shape[1], parameters), steps))


def write_facts(folder: store.LaunchFolder, host: int, facts: dict[str, object]) -> None:
    """What a rank runs on, as workers leave it: rank 0 in a file of its own, the others with those of their host."""
    if facts["rank"]:
        files.add_line(folder.envs(host), facts)  # the last line of a rank counts
    else:
        files.write_json(folder.env(0), facts)


def packed_line(block: Block, rows: np.ndarray, groups: Sequence[int]) -> str:
    """A rank's steps of a block as records.encoding writes them; `rows`: steps x (stamps and 4 numbers a collective).

    `groups`: the communicator of each collective.
    """
    steps, calls = len(rows), len(groups)
    stamps = rows.shape[1] - 4 * calls
    sent = np.zeros((steps, calls, 7), dtype=np.int64)
    sent[:, :, 0], sent[:, :, 2], sent[:, :, 3:] = (
        np.arange(calls),
        groups,
        rows[:, stamps:].reshape(steps, calls, 4),
    )
    table = np.concatenate([rows[:, :stamps], sent.reshape(steps, -1)], axis=1)
    numbers = np.diff(table, axis=0, prepend=0).T.astype("<i8")
    packed = base64.b64encode(zlib.compress(numbers.tobytes(), 1)).decode()
    shape = {"c": calls, "w": 7} if calls else {}
    return line({"t": "steps", "b": block.id, "i": 0, "n": steps, "s": stamps, **shape, "z": packed})


def _parameters(track: Track, k: int) -> list[tuple[int, int]]:
    """Every bucket is one parameter's; registered in the reverse of the order in which they are ready."""
    since = (track.ready[:, :, k] - track.at[0, :, k]).mean(axis=1)
    return [(int(b), int(at)) for b, at in zip(track.payload[::-1, 0], since[::-1], strict=True)]


def block_line(block: Block, whole: np.ndarray, steps: int, parameters: list[tuple[int, int]]) -> str:
    """The line after a block's steps; `whole`: its stamps with the lead-in. Waiting takes no CPU."""
    waited = (whole[4] - whole[3]).sum() if block.arm in STEP_ARMS else 0
    cpu = int((whole[-1] - whole[0]).sum() - waited)
    record = records.BlockRecord(
        id=block.id,
        round=block.round,
        world_size=block.trial.world_size,
        arm=block.arm,
        detailed=block.detailed,
        solo_rank=block.solo_rank,
        batch=block.trial.batch,
        accumulation=1,
        lead_in=whole.shape[1] - steps,
        steps=steps,
        parameters=parameters,
        begin_ns=int(whole[0, 0]),
        end_ns=int(whole[-1, -1]),
        cpu_ns=cpu,
        thread_cpu_ns=cpu,
        delayed_ns=0,
    )
    return line(records.as_line(record))


def line(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def plan_of(truth: Truth) -> Plan:
    return make_plan(spec_of(truth), run_id="simulated", created="2026-01-01T00:00:00+00:00", version="0")


def simulate(truth: Truth, path: Path) -> Expected:
    """Write the run folder `path` (created) and return what it should be found to hold."""
    plan = replace(plan_of(truth), content=Content(detailed=truth.detailed or None))
    folder = store.RunFolder(path)
    folder.path.mkdir(parents=True, exist_ok=True)
    files.write_json(folder.plan, plan)
    ranks = RankFiles(truth, plan, folder.launch(0), digest(folder.plan.read_bytes()))
    rng = np.random.default_rng(truth.seed)
    walk = np.exp(truth.drift * np.cumsum(rng.standard_normal(truth.rounds)))
    now = 0.0
    for number, pace in enumerate((walk / walk.mean()).tolist()):
        for block in round_blocks(plan, plan.trials, 0, number):
            play = exchange if block.arm in (REPLAY, FABRIC, PAIRS) else train
            tracks = [play(truth, block, np.array(group), rng, now + GAP_NS, pace) for group in block.groups]
            for track in tracks:
                ranks.write(block, track)
            now = max(track.end_ns for track in tracks)
    ranks.write_clocks("end", now)
    ranks.write_ends()
    launch = LaunchStatus(
        index=0, world_sizes=truth.world_sizes, state="done", finished=truth.world_sizes, duration_s=now / 1e9
    )
    files.write_json(folder.status, status_of(plan, [launch]))
    points = {t.world_size: expect(truth, t) for t in plan.trials}
    return Expected(alpha_ns=truth.alpha_ns, beta_ns=truth.beta_ns, points=points)
