"""Comparisons of runs, and the allocations that they rest on, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis import results
from scaling.plain import plain
from scaling.report import cases
from scaling.report.text import NONE, count, quantity, ranks, sentence, value_of
from scaling.units import hostlist

KEY = "cluster.allocations"


def allocations_answer(comparison: results.Comparison, names: tuple[str, str]) -> str:
    """What the answer of a comparison rests on, as a sentence; empty where nodes do not come into it."""
    allocations = comparison.allocations
    if allocations is None:
        return ""
    many = (len(allocations.base), len(allocations.other))
    counts = _each(many, names)
    if min(many) < 2:
        return f"This is {counts}; nodes of one partition may differ: {KEY}=3 measures how much."
    decided = [point for point in comparison.points if point.allocations is not None]
    if not decided:
        return f"The intervals contain how far nodes differ: {counts}."
    point = max(decided, key=lambda p: p.world_size)
    assert point.allocations is not None
    first, second = map(_apart, (point.allocations.base, point.allocations.other))
    return (
        f"The interval contains how far nodes differ: {counts}, which are up to {first} % apart with {names[0]} and "
        f"{second} % with {names[1]}."
    )


def allocation_lines(comparison: results.Comparison, names: tuple[str, str]) -> Iterator[str]:
    """The nodes of each side, and how far they are apart at each world size."""
    sides = comparison.allocations
    if sides is None:
        return
    both = tuple(zip(names, (sides.base, sides.other), strict=True))
    for name, side in both:
        yield f"{name}: {count(len(side), 'allocation')}: {'; '.join(map(_allocation_nodes, side))}"
    for point in comparison.points:
        if point.allocations is None:
            continue
        rates_of = (point.allocations.base, point.allocations.other)
        for (name, side), rates in zip(both, rates_of, strict=True):
            slowest = _slowest(side, rates)
            yield f"{ranks(point.world_size)}: {name}: up to {_apart(rates)} % apart, slowest {slowest}"


def _each(many: tuple[int, int], names: tuple[str, str]) -> str:
    """`one allocation of each`, `3 allocations of each`, `1 allocation of a and 3 of b`."""
    if many[0] == many[1]:
        return f"{'one allocation' if many[0] == 1 else count(many[0], 'allocation')} of each"
    return f"{count(many[0], 'allocation')} of {names[0]} and {many[1]} of {names[1]}"


def _apart(rates: Sequence[results.Measured | None]) -> str:
    """The fastest over the slowest, minus 1, in percent."""
    speeds = [rate.value for rate in rates if rate is not None]
    return f"{(max(speeds) / min(speeds) - 1) * 100:.2g}"


def _slowest(side: Sequence[results.Allocation], rates: Sequence[results.Measured | None]) -> str:
    pairs = [(rate.value, nodes) for rate, nodes in zip(rates, side, strict=True) if rate is not None]
    return _allocation_nodes(min(pairs, key=lambda pair: pair[0])[1])


def _allocation_nodes(allocation: results.Allocation) -> str:
    return plain(hostlist(name.partition(".")[0] for name in allocation.nodes))


NAMED_SETTINGS = 2
"""Two runs are named after the first so many settings that differ."""


def answer(comparison: results.Comparison) -> str:
    """Which run is faster, or why that cannot be said; a hint where a run was contended."""
    contended = comparison.comparable and comparison.contended
    hint = "A run was contended, so this is a hint and not a finding." if contended else ""
    nodes = allocations_answer(comparison, run_names(comparison))
    alone = (
        "The samples of a step are not known, so this is a ratio of step times: equal batches are assumed."
    )
    told = comparison.comparable and comparison.batch_unknown and not comparison.one_run
    steps = alone if told else ""
    return " ".join(filter(None, (_answer(comparison), steps, nodes, hint)))


def _answer(comparison: results.Comparison) -> str:
    if not comparison.comparable:
        return f"The two runs are not comparable: {'; '.join(map(plain, comparison.reasons))}."
    if comparison.one_run:
        return "Both are the same run, so every ratio is 1 by definition: name two runs to compare them."
    if comparison.cases:
        return cases.comparison_answer(comparison, run_names(comparison))
    measured = [p for p in comparison.points if p.ratio is not None]
    if not measured:
        return "The two runs have no world size in common that was measured in both."
    point = max(measured, key=lambda p: p.world_size)
    at, ratio = f"At {ranks(point.world_size)}", quantity(point.ratio)
    if point.ratio is not None and point.ratio.low is None:
        return f"{at} the throughput ratio is {ratio}, from too few rounds for an interval: measure longer."
    if not point.distinguishable or point.ratio is None:
        return f"{at} the two runs are not distinguishable: their throughput ratio is {ratio}."
    base, other = run_names(comparison)
    faster = "faster" if point.ratio.value > 1 else "slower"
    verdict = f"{at} {other} is {faster} than {base}: {ratio} times its throughput."
    return " ".join([verdict, *(sentence(line) for line in cost_lines(point.cost)[:1])])


def run_names(comparison: results.Comparison) -> tuple[str, str]:
    """What tells the two runs apart: the settings that differ, rank 0's host where nothing else does, or their ids."""
    asked = [s for s in comparison.settings if s.of == "settings"]
    if any(s.key == "batch_per_rank" for s in asked):
        asked = [s for s in asked if s.key != "global_batch"]  # in weak scaling it follows
    if not _differing([comparison.base, comparison.other]) and asked:
        told = (
            ", ".join(f"{s.key}={getattr(s, role) or 'unset'}" for s in asked[:NAMED_SETTINGS])
            for role in ("base", "other")
        )
        base, other = map(plain, told)
    elif not asked and (where := next((s for s in comparison.settings if s.key == "hostname"), None)):
        base, other = (plain(f"on {host or 'unknown'}") for host in (where.base, where.other))
    else:
        base, other = names_of([comparison.base, comparison.other])
    return base, other


def names_of(runs: Sequence[results.RunInfo]) -> tuple[str, ...]:
    """Names for several runs: the settings in which they differ, with their ids where those are not enough."""
    names = [plain(", ".join(getattr(run, f) for f in _differing(runs))) for run in runs]
    if len(set(names)) == len(runs):
        return tuple(names)
    return tuple(plain(f"{name} {run.id}".strip()) for name, run in zip(names, runs, strict=True))


def split_line(point: results.PointComparison) -> str:
    """`x1.9 = x1.4 compute x x1.36 fabric x x1.00 left`; empty where it was not split."""
    split = point.split
    if split is None:
        return ""
    parts = [(split.compute, "compute"), (split.fabric, "fabric"), (split.left, "left")]
    product = " x ".join(f"x{quantity(value)} {name}" for value, name in parts)
    return f"x{value_of(point.ratio)} = {product} (a rank alone computes x{quantity(split.alone)} as fast)"


def cost_lines(cost: results.CostComparison) -> tuple[str, ...]:
    """Money and energy of both runs, and how many samples the other gives for the same amount."""
    lines = []
    a, b = cost.base, cost.other
    if a.usd_per_million_samples or b.usd_per_million_samples:
        more = f": x{quantity(cost.per_usd)} the samples a dollar" if cost.per_usd else ""
        lines.append(
            f"{quantity(b.usd_per_million_samples, 'USD')} a million samples, base "
            f"{quantity(a.usd_per_million_samples, 'USD')}{more}"
        )
    if a.samples_per_joule or b.samples_per_joule:
        more = f": x{quantity(cost.per_joule)}" if cost.per_joule else ""
        lines.append(
            f"{quantity(b.samples_per_joule)} samples a joule, base {quantity(a.samples_per_joule)}{more}"
        )
    return tuple(lines)


def setting_line(setting: results.SettingDifference) -> str:
    """`ddp.bucket_cap_mb: 25 and 100`."""
    a, b = (NONE if value is None else plain(value) for value in (setting.base, setting.other))
    return f"{plain(setting.key)}: {a} and {b}"


def largest_causes(
    causes: dict[str, results.Measured | None], most: int
) -> tuple[tuple[str, results.Measured], ...]:
    """The largest causes of a difference, by their absolute value."""
    measured = [(cause, value) for cause, value in causes.items() if value is not None]
    return tuple(sorted(measured, key=lambda pair: -abs(pair[1].value))[:most])


def _differing(runs: Sequence[results.RunInfo]) -> list[str]:
    fields = ("model", "topology", "precision", "mode", "backend", "device", "device_name")
    return [f for f in fields if len({getattr(run, f) for run in runs}) > 1]
