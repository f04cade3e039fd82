"""Read the pieces that a prediction starts from, and choose the measured world size, or say why none will do."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl

from scaling.analysis.decompose.point import arms
from scaling.analysis.decompose.quantities import DURATIONS, OWN_PHASES, TrialRecords
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.network import curve
from scaling.analysis.network.channel import is_fifo
from scaling.analysis.network.curve import Hops, PerHop, Points
from scaling.analysis.predict.change import ByRank, Gradients, Source, pieces
from scaling.analysis.predict.fabrics import inside_fabric
from scaling.analysis.results import Analysis
from scaling.analysis.statistics.rounds import Floats, Means, UnknownQuantityError, interval
from scaling.records.tables import Frame, Tables, in_memory
from scaling.settings.plan import Plan, Trial
from scaling.settings.run import WhatIf
from scaling.settings.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE, half_batch
from scaling.settings.topology import Topology

HALVED = ("micro.half", "micro.whole")


def read_sources(run: RunRecords, *, without_details: Collection[int] = ()) -> tuple[Source, ...]:
    """A source for each world size above 1 for which every piece was measured, from the launches that count.

    `without_details`: world sizes whose details changed the step, and are left out.
    """
    sources = []
    run = run.usable
    for trial in run.plan.trials:
        n = trial.world_size
        if n > 1:
            records = run.trial(n).without_details() if n in without_details else run.trial(n)
            with contextlib.suppress(UnknownQuantityError):
                sources.append(_source(run, trial, records))
    return tuple(sources)


def _source(run: RunRecords, trial: Trial, records: TrialRecords) -> Source:
    """UnknownQuantityError where a piece is missing."""
    plan, spec, n = run.plan, run.plan.spec, trial.world_size
    tables = run.within(n)
    rounds = records.in_rounds(_values(run, tables, records), plan)
    late = arms(records, plan).late
    late_set = late.ranks if late else ()
    peers = [r for r in range(n) if r not in late_set]
    bare = records.arm(BARE_ONE, ranks=set(peers))  # a typical rank alone, as in the efficiency
    rounds = rounds.extend({f"alone.{p}": bare[p] for p in OWN_PHASES})
    each = {BARE_ALL: records.by_rank(BARE_ALL), DDP_SOLO: records.by_rank(DDP_SOLO)}
    each[PROBE] = records.by_rank(PROBE, detailed=False)
    weights = rounds.weights if rounds.whole is None else rounds.weights * rounds.whole
    of_ranks = {arm: ByRank({p: phases[p] for p in OWN_PHASES}, weights) for arm, phases in each.items()}
    finite = {name: np.isfinite(values) for name, values in rounds.values.items()}
    # The times of smaller batches enter as one number with its own uncertainty, from the rounds that measured them.
    halved = [finite[name] for name in HALVED if name in rounds]
    present = [mask for name, mask in finite.items() if name not in HALVED]
    present += [mask for arm in of_ranks.values() for mask in arm.present()]
    units, groups = rounds.count([mask for mask in present if mask.any()])
    swept = curve.sweep_rounds(curve.sweep_times(tables.fabric, n), spec.seed)
    if swept is None or not records.bucket_bytes:
        raise UnknownQuantityError("link")
    reductions = records.reductions(plan)
    if reductions is None:
        raise UnknownQuantityError("gradients")
    means = rounds.means().paired
    solo, probe = (ByRank.of(of_ranks[arm].values, weights) for arm in (DDP_SOLO, PROBE))
    beside = ByRank.of({p: times[:, peers] for p, times in of_ranks[BARE_ALL].values.items()}, weights)
    buckets, gradients = ready(tables, records, means, solo.mean(), spec.accumulation_steps)
    alone = {p: means[f"alone.{p}"] for p in OWN_PHASES}
    shared = spec.mode == "strong"
    whole = {p: means[f"whole.{p}"] for p in OWN_PHASES} if shared else alone
    fixed, doubt = _fixed(alone, whole, n) if shared else _fixed_by_half(means), None
    if fixed is not None:
        fixed_units, fixed_groups = (units, groups) if shared else rounds.count(halved)
        doubt = interval(float(fixed[0]), fixed[1:], fixed_units, groups=fixed_groups).half_width
    return Source(
        world_size=n,
        batch=trial.batch,
        accumulation=spec.accumulation_steps,
        reductions=reductions,
        kernels=is_fifo(spec.topology.backend),
        units=units,
        groups=groups,
        plain=means[PLAIN],
        whole=whole,
        shared=shared,
        alone=alone,
        beside=beside.mean(),
        solo=solo,
        probe=probe,
        buckets=buckets,
        gradients=gradients,
        wire=sum(records.bucket_bytes) / reductions / records.gradient_bytes,
        link=measured_link(means, plan, n, swept[1], records.replayed),
        curve=_curve(means, swept[1], records.replayed),
        late=late_set,
        jitter=means["jitter"],
        fixed_share=None if fixed is None else float(fixed[0]),
        fixed_doubt=doubt,
    )


def _values(run: RunRecords, tables: Tables, records: TrialRecords) -> dict[str, Floats]:
    """All quantities of a source but for those of single ranks, one value a round."""
    n, plan = records.trial.world_size, run.plan
    values = {PLAIN: records.arm(PLAIN)["step"]}
    if plan.spec.mode == "strong":
        if 1 not in run.counted:
            raise UnknownQuantityError("whole")
        alone = run.trial(1, launches_of=n).arm(BARE_ONE, rounds=records.index)
        values |= {f"whole.{p}": alone[p] for p in OWN_PHASES}
    values |= _halved(tables, plan, records)
    values["replay"] = records.per_round({key: float(t.sum()) for key, t in records.replay.items()})
    values["jitter"] = records.of_own_times(_jitter)
    values |= per_parameter(tables, records) | per_bucket(records)
    times = curve.sweep_times(tables.fabric, n)
    parts = times.partition_by("bytes", as_dict=True).items()
    return values | {str(size): records.column(part, "time_ns") for (size,), part in parts}


def per_parameter(tables: Tables, records: TrialRecords) -> dict[str, Floats]:
    """`parameter.<i>`: ready since the step's begin, mean over ranks."""
    of_rounds = _parameters(tables, records.trial.world_size).group_by("launch", "round", "index")
    mean = in_memory(of_rounds.agg(pl.col("ready_ns").mean()))
    parts = mean.partition_by("index", as_dict=True).items()
    return {f"parameter.{index}": records.column(part, "ready_ns") for (index,), part in parts}


def _parameters(tables: Tables, n: int) -> Frame:
    """Ready times of parameters in the first sub-group of a world size."""
    return tables.parameters.filter((pl.col("world_size") == n) & (pl.col("rank") < n))


def per_bucket(records: TrialRecords) -> dict[str, Floats]:
    """`bucket.<k>`: ready since the step's begin, mean over ranks."""
    count = max((solo["ready"].shape[1] for solo in records.solo.values()), default=0)
    whole = {key: solo["ready"] for key, solo in records.solo.items() if solo["ready"].shape[1] == count}
    return {
        f"bucket.{k}": records.per_round({key: float(times[:, k].mean()) for key, times in whole.items()})
        for k in range(count)
    }


def ready(
    tables: Tables, records: TrialRecords, means: Means, phases: Mapping[str, Floats], micro_steps: int
) -> tuple[Gradients, Gradients]:
    """When each bucket and each parameter's gradient is ready, as a fraction of the last micro-step's backward.

    `phases`: of ddp_solo, mean over ranks, S.
    """
    last = phases["compute"] / micro_steps
    begin = phases["input"] + phases["forward"] + phases["compute"] - last

    def part(name: str) -> Floats:
        fraction: Floats = np.clip((means[name] - begin) / last, 0.0, 1.0)
        return fraction

    reduced = records.gradients[: sum(name.startswith("bucket.") for name in means)]
    if not reduced:
        raise UnknownQuantityError("ready")
    of_buckets = np.stack([part(f"bucket.{k}") for k in range(len(reduced))], axis=-1)
    buckets = Gradients(sizes=reduced, ready=of_buckets)
    of_parameters = _parameters(tables, records.trial.world_size).select("index", "bytes").unique()
    sizes = in_memory(of_parameters).sort("index")["bytes"].to_list()
    if not sizes:
        return buckets, pieces(buckets)
    ready_at = np.stack([part(f"parameter.{i}") for i in range(len(sizes))], axis=-1)
    return buckets, Gradients(sizes=tuple(sizes), ready=ready_at)


def measured_link(means: Means, plan: Plan, n: int, swept: Sequence[int], replayed: Sequence[int]) -> Hops:
    """The measured link: beta of the sweep, alpha by size.

    The time of large messages is taken from the model's own buckets, sent one after the other (`replayed`, bytes),
    since a single message profits from a shaper's refilled burst. What the sweep's slope does not explain counts as
    latency, between zero and a small message's latency; the slope of few sizes is too uncertain for more. The rest
    counts as bandwidth.
    """
    topology = plan.spec.topology
    beta = curve.fit(means, tuple(swept), n).beta_ns
    nominal = plan.nominal_bit_s(n)
    if nominal is not None and topology.kind == "emulated":
        beta = np.maximum(beta, 8e9 / nominal)  # a shaper does not let data through faster
    moved = 2 * (n - 1) / n * beta

    def beyond(name: str, size: float, count: int) -> Floats:
        result: Floats = (means[name] - moved * size) / (2 * (n - 1) * count)
        return result

    alpha = {size: beyond(str(size), size, 1) for size in swept if size < curve.LARGE_BYTES}
    if not alpha:
        raise UnknownQuantityError("small messages")
    least = alpha[min(alpha)]
    if replayed and min(replayed) >= curve.LARGE_BYTES:
        count, size = len(replayed), sum(replayed)
        large = np.clip(beyond("replay", size, count), 0.0, np.maximum(least, 0.0))
        beta = (means["replay"] - 2 * (n - 1) * count * large) / (2 * (n - 1) / n * size)
    else:
        alone = [beyond(str(size), size, 1) for size in swept if size >= curve.LARGE_BYTES]
        large = np.clip(np.mean(alone, axis=0), 0.0, np.maximum(least, 0.0)) if alone else least
    alpha[curve.LARGE_BYTES] = large
    name = "network" if topology.hosts_of(n) > 1 else "host"
    values = np.stack(list(alpha.values()), axis=-1)
    return Hops(name=name, ranks=None, alpha=PerHop(sizes=tuple(alpha), values=values), beta_ns=beta)


def _curve(means: Means, swept: Sequence[int], replayed: Sequence[int]) -> Points:
    """The size sweep, scaled so that the model's own messages take what they took one after the other.

    A single message may be faster than many (a shaper's refilled burst) or slower (a link that was idle).
    """
    points = Points(sizes=tuple(swept), times=np.stack([means[str(size)] for size in swept], axis=-1))
    if not replayed:
        return points
    alone = sum((points.at(size) for size in replayed), np.zeros(1))
    return Points(sizes=points.sizes, times=points.times * (means["replay"] / alone)[:, None])


def _jitter(own_ns: Floats) -> float:
    """Standard deviation over steps of each rank's own deviation from the mean rank; own times S x R, ns."""
    apart = own_ns - own_ns.mean(axis=1, keepdims=True)
    ranks = own_ns.shape[1]
    return float(apart.std(axis=0, ddof=1).mean() * (ranks / (ranks - 1)) ** 0.5) if len(apart) > 1 else 0.0


def _halved(tables: Tables, plan: Plan, records: TrialRecords) -> dict[str, Floats]:
    """`micro.half` and `micro.whole`: forward and backward compute of a rank alone with half and all of its batch.

    Only ranks that ran both in a round are used; empty where none did.
    """
    half, whole = half_batch(plan.spec), records.trial.batch
    if half is None:
        return {}
    alone = (pl.col("arm") == BARE_ONE) & (pl.col("solo_rank") < records.trial.world_size)
    rows = tables.steps.filter(alone & pl.col("batch").is_in([half, whole]))
    phases = [e for e in DURATIONS if e.meta.output_name() in ("forward", "compute")]
    place = ["launch", "round", "rank"]
    each = in_memory(rows.group_by(*place, "batch").agg(own=pl.sum_horizontal([e.mean() for e in phases])))
    of_half, of_whole = (each.filter(pl.col("batch") == batch) for batch in (half, whole))
    pairs = of_half.join(of_whole, on=place, suffix="_whole")
    if pairs.is_empty():
        return {}
    by_round = pairs.group_by("launch", "round").agg(pl.col("own", "own_whole").mean())
    columns = zip(HALVED, ("own", "own_whole"), strict=True)
    return {name: records.column(by_round, column) for name, column in columns}


def _fixed_by_half(means: Means) -> Floats | None:
    """Fixed share of forward and backward: a line through half and whole batch at batch 0; None: not measured."""
    try:
        half, whole = (means[name] for name in HALVED)
        share: Floats = 2 * half / whole - 1
    except UnknownQuantityError:
        return None
    return np.clip(share, 0.0, 1.0)


def _fixed(alone: Mapping[str, Floats], whole: Mapping[str, Floats], parts: int) -> Floats:
    """Fixed share of forward and backward in strong scaling. The whole batch is `parts` times as large as a rank's."""
    small, large = (phases["forward"] + phases["compute"] for phases in (alone, whole))
    each = (large - small) / (parts - 1)
    return np.clip(1 - each / small, 0.0, 1.0)


LINK_REACHED = 0.9
"""If the sweep reaches less than this share of what the link can carry, the link did not limit the run."""
NO_SOURCE = (
    "no world size above 1 has everything that a prediction starts from: a step's parts, its buckets, the link, and in "
    "strong scaling the whole batch on one rank; if the time did not hold them, raise measure.budget_s"
)


NOTHING_INSIDE = (
    "these ranks share one host, and the link between them is not known: the topology has no levels, and the run "
    "measured no link within one host that stands for it; give topology.levels, or name a machine of conf/topology, "
    "such as topology=hgx_h100"
)


def nearest(sources: Sequence[Source], world_size: int, topology: Topology) -> Source:
    """The measured world size to start from: the largest up to this one, of those that cross hosts as it does."""
    across = topology.hosts_of(world_size) > 1
    alike = [s for s in sources if (topology.hosts_of(s.world_size) > 1) == across] or list(sources)
    below = [s for s in alike if s.world_size <= world_size]
    return below[-1] if below else alike[0]


def inside_one_host(n: int, topology: Topology) -> bool:
    """Whether `n` ranks are on one host and the topology does not say how they are joined there."""
    return n > 1 and topology.hosts_of(n) == 1 and not topology.levels


def joined_inside(n: int, home: Topology, sources: Sequence[Source], asked: WhatIf) -> bool:
    """False for ranks on one host where neither the topology nor the run gives the link between them."""
    alone = inside_one_host(n, asked.topology) if asked.elsewhere else n > 1 and home.hosts_of(n) == 1
    return not alone or inside_fabric(asked.topology, home, sources) is not None


def cannot(n: int, sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf) -> str | None:
    """Why nothing can be predicted for `n` ranks; None where it can."""
    if not sources:
        return NO_SOURCE
    if _crowded(n, sources, plan.spec.topology, asked):
        return (
            f"{n} ranks spread over {asked.topology.hosts} hosts share their hosts' links, and how they share "
            "them depends on the backend (topology.placement=spread): measure it, or ask for topology.placement=packed"
        )
    if not joined_inside(n, plan.spec.topology, sources, asked):
        return NOTHING_INSIDE
    if not asked.elsewhere or n == 1:
        return None
    at_work = sum(map(len, plan.sub_groups(nearest(sources, n, plan.spec.topology).world_size)))
    if plan.spec.topology.spread and at_work > plan.spec.topology.hosts:
        return (
            "this run's sub-groups worked at the same time and shared their hosts' links "
            "(topology.placement=spread), so the link of one sub-group alone was not measured"
        )
    for level in analysis.fabric.levels:
        reached = max((c.busbw_gbit_s.value for c in level.curve), default=0.0)
        if level.nominal_gbit_s and reached < LINK_REACHED * level.nominal_gbit_s:
            return (
                f"this run's link reaches {reached / level.nominal_gbit_s:.0%} of what it can carry at "
                f"{level.world_size} ranks: something else limits it (perhaps the CPU), and a faster link "
                "does not change that"
            )
    return None


def _crowded(n: int, sources: Sequence[Source], home: Topology, asked: WhatIf) -> bool:
    """Whether spread ranks share a host's link in a way that was not measured at this world size."""

    def shared(topology: Topology, world_size: int) -> bool:
        return topology.spread and world_size > topology.hosts

    measured = not asked.elsewhere and any(s.world_size == n for s in sources)
    start = nearest(sources, n, home).world_size
    return not measured and (shared(asked.topology, n) or shared(home, start))
