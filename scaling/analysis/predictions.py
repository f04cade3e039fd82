"""A run under other settings at every world size asked for, and the back-test of the same model on the run itself."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.change import Change, Source
from scaling.analysis.cost import inverse
from scaling.analysis.fabrics import Fabric, inside_fabric, measured_fabric, named_fabric
from scaling.analysis.predict import predict
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Backtest,
    Loss,
    PredictedPoint,
    Prediction,
)
from scaling.analysis.ring import NoPathError
from scaling.analysis.stats import scaled
from scaling.analysis.whatif import outcome
from scaling.fabric import Topology
from scaling.plan import Plan
from scaling.spec import WORLD_SIZE_MAX, WhatIf

LINK_REACHED = 0.9
"""A link whose own sweep stays below this share of what it can carry was not what the run waited for."""
HALF = 0.5
_NO_SOURCE = (
    "at no world size above 1 was all measured that this starts from: a step's parts, its buckets, the link, and in "
    "strong scaling the whole batch on one rank"
)


_NOTHING_INSIDE = (
    "these ranks are on one host, and nothing is known of what joins them there: the run measured no world size on one "
    "host, and the topology has no levels"
)


def predictions(
    sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf, *, start: int | None = None
) -> Prediction:
    """All of what `scaling predict` says. `start`: predict from this measured world size only.

    NoPathError where the asked world size is larger than what the topology's links join.
    """
    from_ = [s for s in sources if start in (None, s.world_size)]
    tests = _backtest(sources, plan)
    doubt = (sum(test.error**2 for test in tests) / len(tests)) ** 0.5 if tests else 0.0
    points = tuple(_point(n, from_, plan, analysis, asked, doubt) for n in asked.world_sizes)
    half, up_to = _half(from_, plan, asked)
    return Prediction(
        schema=SCHEMA,
        run=analysis.run,
        changes=asked.changes,
        topology=asked.topology.name,
        points=points,
        half_at=half,
        looked_up_to=up_to,
        backtest=tests,
        backtest_missing=None if tests else _no_backtest(sources),
        notes=_notes(plan, analysis, asked, from_),
    )


def _point(
    n: int, sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf, doubt: float
) -> PredictedPoint:
    hosts = asked.topology.hosts_of(n)
    why = _cannot(n, sources, plan, analysis, asked)
    if why is not None:
        return PredictedPoint(
            world_size=n, hosts=hosts, from_world_size=sources[0].world_size if sources else 0, cannot=why
        )
    source = nearest(sources, n, plan.spec.topology)
    found = predict(source, change_of(n, source, sources, plan, asked), doubt=doubt)
    step_ms = scaled(found["step"], 1e-6)
    samples = asked.batch_at(n, plan.spec.mode) * n * 1e3
    return PredictedPoint(
        world_size=n,
        hosts=hosts,
        from_world_size=source.world_size,
        step_ms=step_ms,
        samples_per_s=inverse(step_ms, samples),
        speedup=scaled(found["efficiency"], n),
        efficiency=found["efficiency"],
        loss=Loss(**{cause: number for cause, number in found.items() if cause in Loss.__dataclass_fields__}),
    )


def nearest(sources: Sequence[Source], world_size: int, topology: Topology) -> Source:
    """The measured world size to start from: the largest up to this one, of those that cross hosts as it does."""
    across = topology.hosts_of(world_size) > 1
    alike = [s for s in sources if (topology.hosts_of(s.world_size) > 1) == across] or list(sources)
    below = [s for s in alike if s.world_size <= world_size]
    return below[-1] if below else alike[0]


def change_of(n: int, source: Source, sources: Sequence[Source], plan: Plan, asked: WhatIf) -> Change:
    """What differs at world size `n` from `source`."""
    own, mode = plan.spec.topology, plan.spec.mode
    fabric = _fabric(n, source, sources, own, asked)
    batch = asked.batch_at(n, mode)
    return Change(
        world_size=n,
        fabric=fabric.levels if fabric else None,
        fabric_doubt=fabric.doubt if fabric else 0.0,
        batch=None if batch == source.batch else batch,
        whole_batch=asked.global_batch / plan.spec.global_batch,
        accumulation=asked.accumulation,
        bucket_cap_mb=asked.bucket_cap_mb,
        compression=asked.compression,
        compute_scale=asked.compute_scale,
        without_straggler=asked.without_straggler,
    )


def _fabric(n: int, source: Source, sources: Sequence[Source], own: Topology, asked: WhatIf) -> Fabric | None:
    """None where the measured link of `source` stands as it is. NoPathError where nothing joins `n` ranks."""
    named = asked.elsewhere
    if not _joined_inside(n, own, sources, asked):
        raise NoPathError(_NOTHING_INSIDE)
    if named and _within(n, asked.topology):
        inside = inside_fabric(asked.topology, own, sources)
        assert inside is not None
        return None if inside.doubt == 0.0 and own.hosts_of(source.world_size) == 1 else inside
    fabric = named_fabric(asked.topology, own, source, n) if named else measured_fabric(own, sources)
    joined = max((n if level.ranks is None else level.ranks for level in fabric.levels), default=1)
    if n > joined:
        raise NoPathError(
            f"topology={asked.topology.name} joins {joined} ranks of one host, and nothing is known of a link "
            "between hosts: name its rate, such as topology.link.rate=100gbit"
        )
    same = not named and (own.hosts_of(n) > 1) == (own.hosts_of(source.world_size) > 1)
    return None if same else fabric


def _within(n: int, topology: Topology) -> bool:
    """Whether `n` ranks are on one host of which the topology does not say how they are joined."""
    return n > 1 and topology.hosts_of(n) == 1 and not topology.levels


def _joined_inside(n: int, own: Topology, sources: Sequence[Source], asked: WhatIf) -> bool:
    """False of ranks on one host where neither the topology nor the run tells what joins them."""
    alone = _within(n, asked.topology) if asked.elsewhere else n > 1 and own.hosts_of(n) == 1
    return not alone or inside_fabric(asked.topology, own, sources) is not None


def _cannot(n: int, sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf) -> str | None:
    if not sources:
        return _NO_SOURCE
    if _crowded(n, sources, plan.spec.topology, asked):
        return (
            f"{n} ranks spread over {asked.topology.hosts} hosts share their hosts' links, in an order that is the "
            "backend's own (topology.placement=spread): measure it, or ask for topology.placement=packed"
        )
    if not _joined_inside(n, plan.spec.topology, sources, asked):
        return _NOTHING_INSIDE
    if not asked.elsewhere or n == 1:
        return None
    at_work = sum(map(len, plan.sub_groups(nearest(sources, n, plan.spec.topology).world_size)))
    if plan.spec.topology.spread and at_work > plan.spec.topology.hosts:
        return (
            "this run's sub-groups were at work side by side and shared their hosts' links "
            "(topology.placement=spread): what one has by itself was not measured"
        )
    for level in analysis.fabric.levels:
        reached = max((c.busbw_gbit_s.value for c in level.curve), default=0.0)
        if level.nominal_gbit_s and reached < LINK_REACHED * level.nominal_gbit_s:
            return (
                f"this run's link reaches {reached / level.nominal_gbit_s:.0%} of what it can carry at "
                f"{level.world_size} ranks: something else sets its pace (the CPU?), and that does not go by the rate"
            )
    return None


def _crowded(n: int, sources: Sequence[Source], own: Topology, asked: WhatIf) -> bool:
    """Whether spread ranks share a host's link, and how they do was not measured at this world size."""

    def shared(topology: Topology, world_size: int) -> bool:
        return topology.spread and world_size > topology.hosts

    measured = not asked.elsewhere and any(s.world_size == n for s in sources)
    start = nearest(sources, n, own).world_size
    return not measured and (shared(asked.topology, n) or shared(own, start))


def _half(sources: Sequence[Source], plan: Plan, asked: WhatIf) -> tuple[int | None, int]:
    """(the first world size with an efficiency below a half or None, how far it was looked)."""
    if not sources or asked.topology.spread or plan.spec.topology.spread:
        return None, 0
    middle = [s.estimate() for s in sources]

    def efficient(n: int) -> bool:
        source = nearest(middle, n, plan.spec.topology)
        found = outcome(source, change_of(n, source, middle, plan, asked))
        return bool(found["efficiency"][0] >= HALF)

    looked, low = 1, 1
    try:
        if not _joined_inside(2, plan.spec.topology, sources, asked):  # then it is looked from two hosts on
            looked, low = 0, asked.topology.ranks_per_host + 1
            if not efficient(low):
                return None, 0
            looked = low
        high = 2 * low
        while efficient(high):
            looked, low, high = high, high, high * 2
            if high > WORLD_SIZE_MAX:
                return None, looked
    except NoPathError:
        return None, looked
    while high - low > 1:
        middle_size = (low + high) // 2
        low, high = (middle_size, high) if efficient(middle_size) else (low, middle_size)
    return high, high


def _backtest(sources: Sequence[Source], plan: Plan) -> tuple[Backtest, ...]:
    """Every measured world size, predicted from the others."""
    asked = as_measured(plan)
    tests = []
    for left_out in sources:
        others = [s for s in sources if s is not left_out]
        if not others:
            continue
        n = left_out.world_size
        source = nearest(others, n, plan.spec.topology)
        try:
            change = change_of(n, source, others, plan, asked)
        except NoPathError:
            continue
        predicted = predict(source, change, other_launch=False)["step"]
        measured = predict(left_out, Change())["step"]
        low, high = predicted.low, predicted.high
        tests.append(
            Backtest(
                world_size=n,
                from_world_size=source.world_size,
                predicted_ms=scaled(predicted, 1e-6),
                measured_ms=scaled(measured, 1e-6),
                error=predicted.value / measured.value - 1,
                held=low is not None and high is not None and low <= measured.value <= high,
            )
        )
    return tuple(tests)


def as_measured(plan: Plan) -> WhatIf:
    """Nothing changed."""
    return WhatIf(
        changes=(),
        world_sizes=plan.spec.world_sizes,
        topology=plan.spec.topology,
        elsewhere=False,
        bucket_cap_mb=None,
        accumulation=None,
        batch_per_rank=plan.spec.batch_per_rank,
        global_batch=plan.spec.global_batch,
        compute_scale=1.0,
        compression=1.0,
        without_straggler=False,
    )


def _no_backtest(sources: Sequence[Source]) -> str:
    if not sources:
        return _NO_SOURCE
    return (
        f"{sources[0].world_size} is the only world size above 1 that was measured: leaving it out leaves nothing "
        "to predict from; measure another one"
    )


def _notes(plan: Plan, analysis: Analysis, asked: WhatIf, sources: Sequence[Source]) -> tuple[str, ...]:
    own, notes = plan.spec.topology, []
    if asked.topology.name != own.name and asked.compute_scale == 1:
        notes.append(
            f"compute is taken to be as fast as in the run, on {analysis.run.device}; "
            "compute_scale=2 makes it twice as fast"
        )
    if asked.elsewhere and own.kind == "emulated" and asked.topology.kind != "emulated":
        notes.append(
            "the run's links are emulated and Gloo's: what is carried over is compute and the order of buckets"
        )
    if asked.topology.name != own.name and asked.topology.note:
        notes.append(asked.topology.note)
    if asked.compression != 1:
        notes.append("what compressing and unpacking gradients costs is not in this")
    if asked.bucket_cap_mb is not None and not all(s.gradients.exact for s in sources):
        notes.append(
            "parameters' own ready times were not recorded: they are taken to come evenly within a bucket"
        )
    return tuple(notes)
