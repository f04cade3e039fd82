"""Efficiency and the world size it is relative to, the loss by cause, and what samples cost. No I/O.

The loss is 1 - efficiency (docs/method.md, "Efficiency and the waterfall"). A new cause also needs a place in
results/point.py (Loss), in `BETWEEN_ARMS` if it compares arms, in verdicts/verdict.py and verdicts/remedies.py, in
report/text.py, in predict/whatif.py, in docs/schemas and in docs/method.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scaling.analysis.decompose import imbalance, stragglers
from scaling.analysis.decompose.quantities import Sent, TrialRecords, by_kind
from scaling.analysis.network.curve import AlphaBeta
from scaling.analysis.quality import clocks
from scaling.analysis.results import Loss, LossOfKind, Measured, Point, SampleCost
from scaling.analysis.results.verdicts import NOTABLE
from scaling.analysis.statistics.rounds import Floats, Formula, Means, Rounds
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE, nobody_alone

BASE = "base"
"""Device time of the base for a step, ns: its step x its ranks; in weak scaling, x the ranks that share one batch."""


def efficiency(n: int, *, strong: bool, tensor: int = 1, base: int = 1) -> Formula:
    """Ideal step over measured step.

    The ideal is one rank alone with its own batch (weak scaling), or with the whole batch, divided by n (strong).
    Where `tensor` ranks share a batch, it is 1/tensor of one rank's time. Where no rank ran alone (`base` above 1), it
    is the throughput per rank at world size `base`.
    """
    ideal, divided = BASE if strong or base > 1 else BARE_ONE, n if strong else tensor
    return lambda m: m[ideal] / (divided * m[PLAIN])


def base_world_size(plan: Plan, records: Mapping[int, TrialRecords]) -> int:
    """The world size that efficiency is relative to. `records`: by world size.

    1 where a rank ran the whole batch (strong scaling) or the whole model (weak) alone, and always for own loops and
    verification; else the smallest that was measured, such as where one rank runs out of memory.
    """
    strong = plan.spec.mode == "strong"
    alone = any(BARE_ONE in trial.arms for n, trial in records.items() if n == 1 or not strong)
    if alone or plan.kind.followed or plan.variant is not None:
        return 1
    return min((n for n, trial in records.items() if not trial.index.is_empty()), default=1)


def base_warning(size: int, mode: str, points: Sequence[Point]) -> tuple[str, ...]:
    """The warning for a base world size above 1, with what that hides, or for a base that a slow rank ran."""
    if size == 1:
        slow = any(p.straggler and p.straggler.by_itself and p.straggler.rank == 0 for p in points)
        return (SLOW_BASE,) if slow and mode == "strong" else ()
    return (
        f"{nobody_alone(mode)}, so efficiency and speedup are relative to {size} ranks, the smallest world size that "
        f"was measured: what {size} ranks lose against one is hidden, and the loss is not split by cause",
    )


SLOW_BASE = (
    "rank 0 is slow by itself, and it ran the whole batch alone: efficiency and speedup are relative to it, and lower "
    "beside a typical rank"
)
BETWEEN_ARMS = ("small_batch", "neighbours", "strategy_overhead", "overlap", "clocks")
"""Causes measured as the difference between two arms' blocks, not by stamps within a step."""
TENSOR = "tensor"
"""The axis along which layers are divided; `loss_by_kind` has what its ranks send as a kind of its own."""
Link = Callable[[Means], AlphaBeta]
"""The fitted link of this world size, resampled with the same rounds."""


def wait_as_share_of_step(m: Means, exposed: Floats, steps: str = "detailed") -> Floats:
    """A part of a rank's wait, `exposed` (ns), as a share of the step: (part / whole wait) x the light probe's wait.

    `steps`: those that the part is a mean over: `detailed`, or `replayed`, without the first of each block, since a
    replay needs the step before.
    """
    # The detailed probe's own cost stretches backward, which hides more communication than in a normal step. Only the
    # shares of the wait are taken from it; the wait itself is the light probe's.
    wait = m[f"{steps}.exposed"]
    share = np.divide(exposed, wait, out=np.zeros_like(wait), where=wait > 0)
    return share * m[f"{PROBE}.exposed"] / m[PROBE]


def split_by_kind(sent: Sequence[Sent], link: Link | None) -> list[tuple[Formula, Formula]]:
    """Latency and bandwidth of each kind of collective (quantities.by_kind), as shares of the step.

    A kind's part of what the link costs is proportional to its exposed transfer. Within it, latency : bandwidth =
    alpha x hops of rings : beta x moved bytes (bytes x bus factor).
    """
    places = by_kind(sent)

    def parts(index: int, m: Means) -> tuple[Floats, Floats]:
        exposed = [m[f"kind.{k}.exposed_transfer"] for k in range(len(places))]
        whole = sum(exposed, np.zeros(1))
        share = np.divide(exposed[index], whole, out=np.full_like(whole, 1 / len(places)), where=whole > 0)
        latency = np.zeros(1)
        if link is not None:
            fitted, collectives = link(m), [sent[place] for place in places[index]]
            fixed = fitted.alpha_ns * sum(collective.hops for collective in collectives)
            moved = fitted.beta_ns * sum(collective.moved for collective in collectives)
            latency = fixed / (fixed + moved)
        cost = _link_share(m) * share
        return cost * latency, cost * (1 - latency)

    def terms(index: int) -> tuple[Formula, Formula]:
        return lambda m: parts(index, m)[0], lambda m: parts(index, m)[1]

    return [terms(index) for index in range(len(places))]


def _link_share(m: Means) -> Floats:
    """What the link costs, as a share of the step: the measured exposed transfer, corrected for late ranks.

    The correction is (exposed transfer, simulated with every rank at the typical ranks' mean) - (transfer measured in
    the replayed steps), so a few replayed steps cannot make it another than the transfer that is printed beside it.
    """
    return wait_as_share_of_step(m, m["exposed_transfer"]) + wait_as_share_of_step(
        m, m["link_exposed"] - m["replayed.transfer"], "replayed"
    )


def loss_by_kind(rounds: Rounds, sent: Sequence[Sent], link: Link | None) -> tuple[LossOfKind, ...]:
    """`link_latency` and `link_bandwidth` by kind and phase; without a fitted link all of it is bandwidth."""
    terms_of_kind: dict[tuple[str, str], list[tuple[Formula, Formula]]] = {}
    for places, terms in zip(by_kind(sent), split_by_kind(sent, link), strict=True):
        first = sent[places[0]]
        kind = TENSOR if first.axis == TENSOR else first.kind
        terms_of_kind.setdefault((kind, first.phase), []).append(terms)

    def together(terms: Sequence[Formula]) -> Measured | None:
        return rounds.measure(lambda m: sum((term(m.paired) for term in terms), np.zeros(1)))

    return tuple(
        LossOfKind(
            kind=kind,
            phase=phase,
            latency=None if link is None else together([latency for latency, _ in terms]),
            bandwidth=together([rest for _, rest in terms]),
        )
        for (kind, phase), terms in terms_of_kind.items()
    )


def loss(
    rounds: Rounds,
    n: int,
    efficiency_of: Formula,
    link: Link | None,
    *,
    strong: bool,
    tensor: int = 1,
    sharded: bool = False,
    sent: tuple[Sent, ...],
    own_loop: bool,
    has_details: bool,
) -> Loss | None:
    """1 - efficiency by cause; docs/method.md derives it.

    `tensor`: ranks that divide the layers; each would then take the tensor-th part of a rank's time alone. What a rank
    computes beyond that, the strategy costs; a slowdown by communication cannot be told from it.
    `sharded`: each rank updates its own shard, so the strategy saves the rest of the optimizer's time.
    `own_loop`: return the known terms even where the efficiency is not known. Without bare_one, `input` is its whole
    phase.
    `has_details`: whether details tell what the link takes; else `communication` is what all ranks wait alike. It also
    stands for a link whose fit does not tell latency from bandwidth.
    """

    def growth(m: Means, arm: str, base: str, *phases: str, over: int = 1) -> Floats:
        return sum((m[f"{arm}.{p}"] - m[f"{base}.{p}"] / over for p in phases), np.zeros(1))

    def between(arm: str, base: str) -> Formula:
        """What an arm takes longer than another, but for input and host, as a share of the plain step."""
        return lambda m: (m[arm] - m[base] - growth(m, arm, base, "input", "host")) / (tensor * m[PLAIN])

    def probe(m: Means) -> Floats:
        """Factor from ns of the light probe to shares of its own step, which stand for shares of the plain step."""
        return 1 / m[PROBE]

    terms_by_kind = split_by_kind(sent, link)

    def enqueuing(m: Means) -> Floats:
        """Collectives that wait for the host."""
        return wait_as_share_of_step(m, m["bucket_enqueue"]) if "bucket_enqueue" in rounds else np.zeros(1)

    terms: dict[str, Formula] = {
        "neighbours": between(BARE_ALL, BARE_ONE),
        "strategy_overhead": between(DDP_SOLO, BARE_ALL),
        "straggler": stragglers.share,
        "overlap": lambda m: growth(m, "typical.probe", DDP_SOLO, "forward", "compute") * probe(m),
        "input": lambda m: growth(m, "typical.probe", BARE_ONE, "input", over=tensor) * probe(m),
        "host": lambda m: growth(m, "typical.probe", BARE_ONE, "host", over=tensor) * probe(m) + enqueuing(m),
    }
    if imbalance.EVENED in rounds:
        with_tokens = terms["straggler"]
        terms["straggler"] = lambda m: with_tokens(m) - imbalance.share(m)
        terms["imbalance"] = imbalance.share
    if tensor > 1:
        of_whole_layers = terms["strategy_overhead"]
        computes = ("forward", "compute", "optimizer")
        terms["strategy_overhead"] = lambda m: (
            of_whole_layers(m) + growth(m, "typical.probe", DDP_SOLO, *computes, over=tensor) * probe(m)
        )
        del terms["overlap"]
    elif sharded:
        with_whole_update = terms["strategy_overhead"]
        terms["strategy_overhead"] = lambda m: (
            with_whole_update(m) + growth(m, "typical.probe", DDP_SOLO, "optimizer") * probe(m)
        )
    if not has_details:
        terms["communication"] = lambda m: m["exposed_transfer"] / m[PROBE]
    elif link is not None and terms_by_kind:
        both = {
            "link_latency": lambda m: sum((latency(m) for latency, _ in terms_by_kind), np.zeros(1)),
            "link_bandwidth": lambda m: sum((rest(m) for _, rest in terms_by_kind), np.zeros(1)),
        }
        split = is_split(rounds.measure(_paired(both["link_latency"])), rounds.measure(_paired(_link_share)))
        terms |= both if split else {"communication": _link_share}
    else:
        terms["link_bandwidth"] = _link_share
    if strong:
        terms["small_batch"] = lambda m: (m[BARE_ONE] - m[BASE] / n) / m[PLAIN]
    if own_loop and BARE_ONE not in rounds:
        terms["input"] = lambda m: m["typical.probe.input"] * probe(m)
    # Where only some rounds have details, a term compares arms within these.
    terms = {name: _paired(term) for name, term in terms.items()}
    measured = {name: rounds.measure(term) for name, term in terms.items()}
    measurable = [terms[name] for name, number in measured.items() if number is not None]
    unexplained = rounds.measure(lambda m: 1 - efficiency_of(m) - sum(term(m) for term in measurable))
    if unexplained is None and not (own_loop and measurable):
        return None
    by_clocks = clocks.taken_out(rounds, terms)
    terms = {**terms, **by_clocks}  # not in place: a new term evaluates the one that it was taken from
    measured |= {name: rounds.measure(term) for name, term in by_clocks.items()}
    measured |= {name: rounds.agreed(terms[name], measured[name]) for name in BETWEEN_ARMS if name in terms}
    return Loss(**measured, unexplained=unexplained)


def is_split(latency: Measured | None, whole: Measured | None) -> bool:
    """Whether the fitted link tells more about its latency than what both of its terms take together."""
    if latency is None or whole is None:
        return True
    return (latency.half_width or 0.0) <= max(NOTABLE, whole.most)


def _paired(term: Formula) -> Formula:
    return lambda m: term(m.paired)


def cost(
    rounds: Rounds,
    *,
    samples: int,
    ranks: int,
    samples_per_s: Measured | None,
    usd_per_gpu_hour: float | None,
) -> SampleCost:
    """Cost at one world size. `samples`: of all ranks in a step (0: unknown). `rounds` has `plain` (ns) and `watts`.

    Energy is that of the GPU boards, as NVML reports it; the host's is not included.
    """
    return SampleCost(
        usd_per_million_samples=usd_per_million(samples_per_s, ranks, usd_per_gpu_hour),
        power_w=rounds.ratio("watts"),
        samples_per_joule=rounds.ratio(lambda m: samples * 1e9 / m["plain"] / m["watts"])
        if samples
        else None,
    )


def usd_per_million(
    samples_per_s: Measured | None, ranks: int, usd_per_gpu_hour: float | None
) -> Measured | None:
    """Price of a million samples with one GPU for each rank; None where the price or the throughput is missing."""
    if samples_per_s is None or usd_per_gpu_hour is None:
        return None
    usd = 1e6 * usd_per_gpu_hour * ranks / 3600
    return usd / samples_per_s
