"""A run under other settings at every world size asked for, and the back-test of the same model on the run itself.

A prediction's interval has the run's own error and the model's assumptions in it. Each assumption that a change relies
on is varied, one at a time. The change in the result is added to the statistical interval in quadrature. How far each
is varied was set with benchmarks/prediction.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from scaling.analysis.invariants import UNSPLIT, splits
from scaling.analysis.network.curve import NoPathError
from scaling.analysis.predict.change import LATENCY, NO_CHANGE, UNVARIED, Change, Lean, Source
from scaling.analysis.predict.fabrics import Links, carries, inside_fabric, measured_fabric, named_fabric
from scaling.analysis.predict.sources import (
    NO_SOURCE,
    NOTHING_INSIDE,
    cannot,
    inside_one_host,
    joined_inside,
    nearest,
)
from scaling.analysis.predict.whatif import outcome
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Assumption,
    Backtest,
    Loss,
    Measured,
    PredictedPoint,
    Prediction,
)
from scaling.analysis.statistics.rounds import MS, interval
from scaling.settings.plan import Plan
from scaling.settings.run import WhatIf
from scaling.settings.topology import Topology
from scaling.units import ranks

LAUNCH = 0.02
"""Relative difference of compute and link between launches."""
LINK = 0.02
"""Relative error of alpha and beta for another rate or world size."""
FIXED_SHARE = 0.2
"""Possible fixed share of forward and backward where only one batch was measured."""

FIGURES = ("step", "efficiency", "gain")
"""What `outcome` gives beside the losses; all are positive."""


def predict(
    source: Source, change: Change, *, other_launch: bool = True, doubt: float = 0.0
) -> dict[str, Measured]:
    """`outcome` with intervals.

    `other_launch`: False for a comparison within one launch, as `verify` makes it. `doubt`: the model's relative error
    on the run itself, from the back-test.
    """
    values = outcome(source, change)
    moves = []
    if not unchanged(source, change):
        middle = source.estimate()
        upright = outcome(middle, change)
        for _, lean in named_leans(source, change, other_launch=other_launch):
            varied = outcome(middle, change, lean)
            moves.append({name: float(varied[name][0] - upright[name][0]) for name in values})
        if doubt:
            moves.append({name: doubt * (values[name][0] if name in FIGURES else 0.0) for name in values})
    predicted = {}
    for name, drawn in values.items():
        number = interval(
            float(drawn[0]), drawn[1:], source.units, groups=source.groups, positive=name in FIGURES
        )
        predicted[name] = number.with_error(math.hypot(*(move[name] for move in moves)))
    return predicted


def named_leans(source: Source, change: Change, *, other_launch: bool) -> Iterator[tuple[str, Lean]]:
    """What the prediction leans on, each with its name in `assumptions`."""
    moved = change.world_size not in (None, source.world_size)
    elsewhere = moved or change.fabric is not None
    micro_batch = (change.batch or source.batch) / (change.accumulation or source.accumulation)
    yield "missed", Lean(residual_follows=False)
    yield "overlap", Lean(overlap_rule_swapped=True)
    if other_launch:
        yield "launch_compute", Lean(compute=1 + LAUNCH)
        yield "launch_link", Lean(transfer=1 + LAUNCH)
    if elsewhere:
        yield "bandwidth", Lean(transfer=1 + max(LINK, change.fabric_doubt))
    if elsewhere or change.bucket_cap_mb is not None:
        yield "latency", Lean(alpha=change.latency_factor)
    if moved:
        yield "jitter", Lean(jitter=0.0)
    if micro_batch != source.batch / source.accumulation:
        yield "fixed", Lean(fixed_off=FIXED_SHARE if source.fixed_doubt is None else source.fixed_doubt)


def unchanged(source: Source, change: Change) -> bool:
    """Whether nothing is asked that the run did not measure."""
    return change in (NO_CHANGE, Change(world_size=source.world_size))


SCALE_OFF = 0.9
"""A `compute_scale` that was given is varied by this factor."""


def _compute(change: Change, device: str) -> tuple[str, str, Change]:
    """How fast the target computes: given, or not known and assumed to be as in the run."""
    scale = change.compute_scale
    if scale == 1:
        claim = f"compute is as fast as in the run, on {device}; compute_scale=2 makes it twice as fast"
        return claim, "twice as fast", dataclasses.replace(change, compute_scale=2.0)
    claim = f"compute is {scale:g} times as fast as in the run, on {device}, as compute_scale says"
    return claim, f"{1 - SCALE_OFF:.0%} less", dataclasses.replace(change, compute_scale=scale * SCALE_OFF)


def _sentences(name: str, lean: Lean, source: Source, links: Links | None) -> tuple[str, str]:
    """What is assumed, and how it is varied. `links`: where the target's figures come from; None: as measured."""
    if name == "bandwidth":
        return f"bandwidth: {_from(links.bandwidth if links else ())}", f"{lean.transfer - 1:.0%} slower"
    if name == "latency":
        return f"latency: {_from(links.latency if links else ())}", f"x{lean.alpha:g}"
    if name == "overlap":
        proportion, fixed = "in proportion to the time that both run", "as much as in the run"
        follows, other = (proportion, fixed) if source.kernels else (fixed, proportion)
        return f"communication slows compute down {follows}", other
    return {
        "missed": (
            "what the simulation misses of the measured step is in proportion to the step",
            "a fixed time instead",
        ),
        "launch_compute": ("compute is as fast as in the run's launch", f"{LAUNCH:.0%} slower"),
        "launch_link": ("links are as fast as in the run's launch", f"{LAUNCH:.0%} slower"),
        "jitter": (
            "ranks vary from step to step as measured, so the latest of more ranks is later",
            "not at all",
        ),
        "fixed": ("the fixed part of forward and backward is known", f"{lean.fixed_off:.0%} more"),
    }[name]


def _from(notes: tuple[str, ...]) -> str:
    return "; ".join(notes) if notes else "as measured in the run"


def predictions(
    sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf, *, start: int | None = None
) -> Prediction:
    """Everything that `scaling predict` shows. `start`: predict from this measured world size only.

    NoPathError where the asked world size is larger than what the topology's links join.
    """
    from_ = [s for s in sources if start in (None, s.world_size)]
    tests = tuple(_backtest(sources, plan))
    doubt = (sum(test.error**2 for test in tests) / len(tests)) ** 0.5 if tests else 0.0
    points = tuple(_point(n, from_, plan, analysis, asked, doubt) for n in asked.world_sizes)
    return Prediction(
        schema=SCHEMA,
        run=analysis.run,
        changes=asked.changes,
        topology=asked.topology.name,
        points=points,
        backtest=tests,
        backtest_missing=None if tests else _no_backtest(sources),
        assumptions=_assumptions(points, from_, plan, analysis, asked, doubt),
        notes=tuple(_notes(plan, asked, from_, points)),
    )


def _point(
    n: int, sources: Sequence[Source], plan: Plan, analysis: Analysis, asked: WhatIf, doubt: float
) -> PredictedPoint:
    hosts = asked.topology.hosts_of(n)
    why = cannot(n, sources, plan, analysis, asked)
    if why is not None:
        start = sources[0].world_size if sources else 0
        return PredictedPoint(world_size=n, hosts=hosts, from_world_size=start, cannot=why)
    source = nearest(sources, n, plan.spec.topology)
    numbers = predict(source, change_of(n, source, sources, plan, asked), doubt=doubt)
    step_ms = numbers["step"] * MS
    samples = asked.batch_at(n, plan.spec.mode) * n * 1e3
    causes = Loss(**{cause: cost for cause, cost in numbers.items() if cause not in FIGURES})
    return PredictedPoint(
        world_size=n,
        hosts=hosts,
        from_world_size=source.world_size,
        step_ms=step_ms,
        samples_per_s=samples / step_ms,
        speedup=numbers["efficiency"] * n,
        efficiency=numbers["efficiency"],
        loss=causes if splits(causes, numbers["efficiency"]) else None,
    )


def _assumptions(
    points: Sequence[PredictedPoint],
    sources: Sequence[Source],
    plan: Plan,
    analysis: Analysis,
    asked: WhatIf,
    doubt: float,
) -> tuple[Assumption, ...]:
    """Those of the largest world size that can be predicted, the largest effect first; none where nothing changes.

    `doubt`: the model's relative error on the run itself, from the back-test.
    """
    home, n = plan.spec.topology, max((p.world_size for p in points if p.step_ms), default=0)
    if not n:
        return ()
    source = nearest(sources, n, home)
    change = change_of(n, source, sources, plan, asked)
    if unchanged(source, change):
        return ()
    middle = source.estimate()
    upright = outcome(middle, change)

    def effect(what: str, varied: str, change: Change, lean: Lean = UNVARIED) -> Assumption:
        other = outcome(middle, change, lean)
        return Assumption(
            what=what,
            varied=varied,
            step_change=float(other["step"][0]) / float(upright["step"][0]) - 1,
            efficiency_change=float(other["efficiency"][0]) - float(upright["efficiency"][0]),
        )

    links = _fabric(n, source, sources, home, asked)
    assumed = [
        effect(*_sentences(name, lean, source, links), change, lean)
        for name, lean in named_leans(source, change, other_launch=True)
    ]
    if asked.topology.name != home.name or change.compute_scale != 1:
        assumed.append(effect(*_compute(change, analysis.run.device_name or analysis.run.device)))
    if doubt:
        claim = f"the model errs as on the run itself, where the back-test missed by {doubt:.1%}"
        assumed.append(Assumption(what=claim, varied="as much", step_change=doubt, efficiency_change=None))
    return tuple(sorted(assumed, key=lambda assumption: -abs(assumption.step_change)))


def change_of(n: int, source: Source, sources: Sequence[Source], plan: Plan, asked: WhatIf) -> Change:
    """What differs at world size `n` from `source`."""
    home, mode = plan.spec.topology, plan.spec.mode
    fabric = _fabric(n, source, sources, home, asked)
    batch = asked.batch_at(n, mode)
    return Change(
        world_size=n,
        fabric=fabric.levels if fabric else None,
        fabric_doubt=fabric.doubt if fabric else 0.0,
        latency_factor=fabric.latency_factor if fabric else LATENCY,
        batch=None if batch == source.batch else batch,
        whole_batch=asked.global_batch / plan.spec.global_batch,
        accumulation=asked.accumulation_steps,
        bucket_cap_mb=asked.bucket_cap_mb,
        compression=asked.gradient_compression,
        compute_scale=asked.compute_scale,
        without_straggler=asked.without_straggler,
    )


def _fabric(n: int, source: Source, sources: Sequence[Source], home: Topology, asked: WhatIf) -> Links | None:
    """None where the measured link of `source` is kept. NoPathError where no known link joins `n` ranks."""
    named = asked.elsewhere
    if not joined_inside(n, home, sources, asked):
        raise NoPathError(NOTHING_INSIDE)
    if named and inside_one_host(n, asked.topology):
        inside = inside_fabric(asked.topology, home, sources)
        assert inside is not None
        return None if inside.doubt == 0.0 and home.hosts_of(source.world_size) == 1 else inside
    fabric = named_fabric(asked.topology, home, source, n) if named else measured_fabric(home, sources)
    joined = max((n if level.ranks is None else level.ranks for level in fabric.levels), default=1)
    if n > joined:
        where = asked.topology
        raise NoPathError(
            f"{n} ranks need {where.hosts_of(n)} hosts of {where.ranks_per_host}, and topology={where.name} gives no "
            "link between hosts: give its rate, such as topology.link.rate=100gbit"
        )
    same = not named and (home.hosts_of(n) > 1) == (home.hosts_of(source.world_size) > 1)
    return None if same else fabric


def _backtest(sources: Sequence[Source], plan: Plan) -> Iterator[Backtest]:
    """Every measured world size, predicted from the others."""
    asked = as_measured(plan)
    for left_out in sources if len(sources) > 1 else ():
        n, others = left_out.world_size, [s for s in sources if s is not left_out]
        source = nearest(others, n, plan.spec.topology)
        try:
            change = change_of(n, source, others, plan, asked)
        except NoPathError:
            continue
        predicted = predict(source, change, other_launch=False)["step"]
        measured = predict(left_out, Change())["step"]
        yield Backtest(
            world_size=n,
            from_world_size=source.world_size,
            predicted_ms=predicted * MS,
            measured_ms=measured * MS,
            error=predicted.value / measured.value - 1,
            held=predicted.holds(measured.value),
        )


def as_measured(plan: Plan) -> WhatIf:
    """A question that changes nothing."""
    spec = plan.spec
    return WhatIf(
        world_sizes=spec.world_sizes,
        topology=spec.topology,
        batch_per_rank=spec.batch_per_rank,
        global_batch=spec.global_batch,
    )


def _no_backtest(sources: Sequence[Source]) -> str:
    if not sources:
        return NO_SOURCE
    return (
        f"{sources[0].world_size} is the only world size above 1 that was measured, so nothing is left to predict it "
        "from; measure another one"
    )


def _notes(
    plan: Plan, asked: WhatIf, sources: Sequence[Source], points: Sequence[PredictedPoint]
) -> Iterator[str]:
    home = plan.spec.topology
    if asked.elsewhere and not carries(home, asked.topology):
        yield (
            f"the run used {home.backend} over {home.name}: its compute, ready times and overlap are carried over, its "
            "latency and bandwidth are not"
        )
    if asked.topology.name != home.name and asked.topology.note:
        yield asked.topology.note
    if asked.gradient_compression != 1:
        yield "the cost of compressing and decompressing gradients is not included"
    if asked.bucket_cap_mb is not None and not all(s.gradients.exact for s in sources):
        yield "ready times of single parameters were not recorded; they are assumed to be even within a bucket"
    for point in points:
        if point.efficiency is not None and point.loss is None:
            yield f"at {ranks(point.world_size)} the causes are known to no better than the whole step; {UNSPLIT}"
